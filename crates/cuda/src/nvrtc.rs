//! NVRTC, NVIDIA's run-time compiler: CUDA C++ in, PTX or a cubin out.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

use crate::error::{CudaError, CudaResult};
use crate::library::SharedLibrary;

#[cfg(windows)]
const FILES: [&str; 3] = ["nvrtc64_130_0.dll", "nvrtc64_120_0.dll", "nvrtc64_112_0.dll"];
#[cfg(not(windows))]
const FILES: [&str; 5] = [
    "libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so.11.2",
    "libnvrtc.so",
    "/usr/local/cuda/lib64/libnvrtc.so",
];

const REMEDY: &str = "install the CUDA toolkit's NVRTC (the PyPI package nvidia-cuda-nvrtc \
                      carries it, too) and put its folder into LD_LIBRARY_PATH";

type ProgramHandle = *mut c_void;
type Size = unsafe extern "C" fn(ProgramHandle, *mut usize) -> c_int;
type Get = unsafe extern "C" fn(ProgramHandle, *mut c_char) -> c_int;

struct Nvrtc {
    create: unsafe extern "C" fn(
        *mut ProgramHandle,
        *const c_char,
        *const c_char,
        c_int,
        *const *const c_char,
        *const *const c_char,
    ) -> c_int,
    compile: unsafe extern "C" fn(ProgramHandle, c_int, *const *const c_char) -> c_int,
    destroy: unsafe extern "C" fn(*mut ProgramHandle) -> c_int,
    ptx: (Size, Get),
    cubin: (Size, Get),
    log: (Size, Get),
    error_text: unsafe extern "C" fn(c_int) -> *const c_char,
}

/// Compiles a source for a compute capability: `sm_90` gives a cubin, `compute_90` PTX.
pub fn compile(source: &str, target: &str, options: &[&str]) -> CudaResult<Vec<u8>> {
    let library = SharedLibrary::open("NVRTC", &FILES, REMEDY)?;
    let compiler = Nvrtc::load(&library)?;
    let target_option = format!("--gpu-architecture={target}");
    let options = [target_option.as_str()].into_iter().chain(options.iter().copied());
    let options = options.map(c_string).collect::<CudaResult<Vec<_>>>()?;
    let program = NvrtcProgram::new(&compiler, &c_string(source)?)?;
    program.compile(&options)?;
    let image = if target.starts_with("sm_") { compiler.cubin } else { compiler.ptx };
    program.get(image, "nvrtcGetCUBIN or nvrtcGetPTX")
}

fn c_string(text: &str) -> CudaResult<CString> {
    CString::new(text).map_err(|_| failed("nvrtcCreateProgram", "a zero in the text".to_string()))
}

fn failed(call: &'static str, why: String) -> CudaError {
    CudaError::Compiler { call, why }
}

impl Nvrtc {
    #[expect(unsafe_code, reason = "a symbol has no type of its own")]
    fn load(library: &SharedLibrary) -> CudaResult<Nvrtc> {
        let missing = |name: &str| CudaError::Unavailable {
            what: "NVRTC".to_string(),
            why: format!("{} has no {name}; {REMEDY}", library.file()),
        };
        macro_rules! find {
            ($name:literal) => {
                // SAFETY: the types are those of NVRTC's header for these names.
                unsafe { library.find($name) }.ok_or_else(|| missing($name))?
            };
        }
        Ok(Nvrtc {
            create: find!("nvrtcCreateProgram"),
            compile: find!("nvrtcCompileProgram"),
            destroy: find!("nvrtcDestroyProgram"),
            ptx: (find!("nvrtcGetPTXSize"), find!("nvrtcGetPTX")),
            cubin: (find!("nvrtcGetCUBINSize"), find!("nvrtcGetCUBIN")),
            log: (find!("nvrtcGetProgramLogSize"), find!("nvrtcGetProgramLog")),
            error_text: find!("nvrtcGetErrorString"),
        })
    }

    #[expect(unsafe_code, reason = "a foreign call")]
    fn explain(&self, code: c_int) -> String {
        // SAFETY: the call returns a static text for every number.
        let text = unsafe { (self.error_text)(code) };
        if text.is_null() {
            return format!("code {code}");
        }
        // SAFETY: not null, static and terminated, as above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

/// A program that is being compiled; destroyed when it is dropped.
struct NvrtcProgram<'a> {
    compiler: &'a Nvrtc,
    raw: ProgramHandle,
}

#[expect(unsafe_code, reason = "foreign calls")]
impl<'a> NvrtcProgram<'a> {
    fn new(compiler: &'a Nvrtc, source: &CStr) -> CudaResult<NvrtcProgram<'a>> {
        let mut raw = std::ptr::null_mut();
        let (none, name) = (std::ptr::null(), c"plimsoll.cu".as_ptr());
        // SAFETY: NVRTC copies both terminated texts; there are no headers; it writes a
        // pointer to a variable of ours.
        let code = unsafe { (compiler.create)(&raw mut raw, source.as_ptr(), name, 0, none, none) };
        if code == 0 {
            return Ok(NvrtcProgram { compiler, raw });
        }
        Err(failed("nvrtcCreateProgram", compiler.explain(code)))
    }

    fn compile(&self, options: &[CString]) -> CudaResult<()> {
        let texts: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(texts.len()).unwrap_or(0);
        // SAFETY: the program and the options outlive the call.
        let code = unsafe { (self.compiler.compile)(self.raw, count, texts.as_ptr()) };
        if code == 0 {
            return Ok(());
        }
        let log = self.get(self.compiler.log, "nvrtcGetProgramLog").unwrap_or_default();
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_string();
        Err(failed("nvrtcCompileProgram", format!("{}: {log}", self.compiler.explain(code))))
    }

    fn get(&self, (size, get): (Size, Get), call: &'static str) -> CudaResult<Vec<u8>> {
        let check = |code: c_int| match code {
            0 => Ok(()),
            code => Err(failed(call, self.compiler.explain(code))),
        };
        let mut length = 0;
        // SAFETY: the program lives; NVRTC writes one number to a variable of ours.
        check(unsafe { size(self.raw, &raw mut length) })?;
        let mut bytes = vec![0u8; length];
        // SAFETY: the buffer has the length that NVRTC has just given.
        check(unsafe { get(self.raw, bytes.as_mut_ptr().cast()) })?;
        Ok(bytes)
    }
}

impl Drop for NvrtcProgram<'_> {
    #[expect(unsafe_code, reason = "a foreign call")]
    fn drop(&mut self) {
        // SAFETY: `new` created it, and it is destroyed once.
        let _ = unsafe { (self.compiler.destroy)(&raw mut self.raw) };
    }
}
