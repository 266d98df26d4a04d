//! Kernels of our own on the engine's stream: the frame is fitted into the model's input
//! on the device, and only the best score of each place comes back.
//!
//! The bytes of a frame are a quarter of its tensor, and the answer is a fourteenth of the
//! raw output; more than the bus, it saves reading and writing them all on one core.
//!
//! The source is compiled when a model is opened, by NVRTC, which is wherever cuDNN is.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::{Arc, OnceLock};

use super::driver::{Handle, Stream};
use super::pinned::{Buffer, Place};
use super::{Failure, Result};
use crate::prepare::Letterbox;

pub(crate) const SOURCE: &CStr =
    match CStr::from_bytes_with_nul(concat!(include_str!("kernels.cu"), "\0").as_bytes()) {
        Ok(text) => text,
        Err(_) => c"",
    };

const FILES: [&str; 4] = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "libnvrtc.so.11.2"];

/// Threads of a block.
const THREADS: u32 = 128;

super::driver::table! {
    Nvrtc;
    create = b"nvrtcCreateProgram\0"(
        *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char,
        *const *const c_char
    );
    compile = b"nvrtcCompileProgram\0"(Handle, c_int, *const *const c_char);
    destroy = b"nvrtcDestroyProgram\0"(*mut Handle);
    log_size = b"nvrtcGetProgramLogSize\0"(Handle, *mut usize);
    log = b"nvrtcGetProgramLog\0"(Handle, *mut c_char);
    code_size = b"nvrtcGetCUBINSize\0"(Handle, *mut usize);
    code = b"nvrtcGetCUBIN\0"(Handle, *mut c_char);
}

impl Nvrtc {
    fn get() -> Result<&'static Nvrtc> {
        static TABLE: OnceLock<std::result::Result<Nvrtc, String>> = OnceLock::new();
        let table = TABLE.get_or_init(|| super::driver::open("NVRTC", &FILES, Nvrtc::load));
        table.as_ref().map_err(Failure::new)
    }
}

/// How a frame lies in the model's input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::engine) struct Shape {
    /// Bytes of a pixel.
    pub(in crate::engine) channels: usize,
    /// Whether blue comes first.
    pub(in crate::engine) blue_first: bool,
    /// How it is fitted.
    pub(in crate::engine) letterbox: Letterbox,
    /// Rows and columns of the input.
    pub(in crate::engine) tensor: (usize, usize),
}

/// A frame and the tables of its fit, on the device.
#[derive(Debug)]
pub(in crate::engine) struct OnDevice {
    pub(in crate::engine) frame: Buffer,
    pub(in crate::engine) columns: Buffer,
    pub(in crate::engine) rows: Buffer,
}

/// The kernels, ready to be launched on a stream.
#[derive(Debug)]
pub(in crate::engine) struct Kernels {
    stream: Arc<Stream>,
    module: Handle,
    letterbox: Handle,
    best: Handle,
}

// SAFETY: the driver's handles may be used from any thread; each use makes the context
// current first.
unsafe impl Send for Kernels {}

impl Kernels {
    /// Compiles them for the stream's device.
    pub(in crate::engine) fn new(stream: &Arc<Stream>) -> Result<Kernels> {
        let code = compile(stream.capability()?)?;
        stream.enter()?;
        let table = stream.table;
        let mut made = Kernels {
            stream: Arc::clone(stream),
            module: std::ptr::null_mut(),
            letterbox: std::ptr::null_mut(),
            best: std::ptr::null_mut(),
        };
        // SAFETY: the context is current, the code whole, the names terminated, and the
        // places for the answers ours.
        unsafe {
            let loaded = (table.module_load)(&raw mut made.module, code.as_ptr().cast());
            table.check("load kernels", loaded)?;
            for (name, place) in
                [(c"letterbox", &raw mut made.letterbox), (c"best", &raw mut made.best)]
            {
                let found = (table.module_function)(place, made.module, name.as_ptr());
                table.check("find a kernel", found)?;
            }
        }
        Ok(made)
    }

    /// Puts the letterbox of a frame on the stream. What is given must stay until the
    /// stream was waited for.
    pub(in crate::engine) fn letterbox(
        &self,
        from: &OnDevice,
        shape: &Shape,
        out: &Place,
    ) -> Result<()> {
        let (fit, (height, width)) = (&shape.letterbox, shape.tensor);
        let enough = from.frame.bytes() >= fit.frame_width * fit.frame_height * shape.channels
            && from.columns.bytes() >= 8 * fit.width
            && from.rows.bytes() >= 12 * fit.height
            && out.numbers() == 3 * width * height;
        if !enough {
            return Err(Failure::new("a buffer is smaller than its frame"));
        }
        let numbers = [
            fit.frame_width,
            shape.channels,
            usize::from(shape.blue_first),
            fit.width,
            fit.height,
            fit.pad_x,
            fit.pad_y,
            width,
            height,
        ];
        let pointers = [from.frame.start(), from.columns.start(), from.rows.start(), out.start()];
        let columns = (width as u32).div_ceil(THREADS);
        self.launch(self.letterbox, [columns, height as u32], &pointers, &numbers)
    }

    /// Puts the search for the best class of each place on the stream. `raw` and `out` must
    /// stay until the stream was waited for.
    pub(in crate::engine) fn best(&self, raw: &Place, classes: usize, out: &Buffer) -> Result<()> {
        let places = out.bytes() / 24;
        if raw.numbers() != (4 + classes) * places {
            return Err(Failure::new("the output has another size than its classes need"));
        }
        let blocks = (places as u32).div_ceil(THREADS);
        self.launch(self.best, [blocks, 1], &[raw.start(), out.start()], &[classes, places])
    }

    fn launch(
        &self,
        kernel: Handle,
        [x, y]: [u32; 2],
        pointers: &[u64],
        numbers: &[usize],
    ) -> Result<()> {
        self.stream.enter()?;
        let numbers: Vec<c_int> =
            numbers.iter().map(|&number| c_int::try_from(number).unwrap_or(0)).collect();
        let mut arguments: Vec<*mut c_void> = Vec::new();
        arguments.extend(pointers.iter().map(|pointer| (&raw const *pointer).cast_mut().cast()));
        arguments.extend(numbers.iter().map(|number| (&raw const *number).cast_mut().cast()));
        let table = self.stream.table;
        // SAFETY: the arguments are those of the kernel in kernels.cu, in its order, and are
        // read before the call returns; its two callers saw that buffers are large enough.
        let code = unsafe {
            let none = std::ptr::null_mut();
            let stream = self.stream.stream;
            let arguments = arguments.as_mut_ptr();
            (table.launch)(kernel, x, y, 1, THREADS, 1, 1, 0, stream, arguments, none)
        };
        table.check("launch a kernel", code)
    }
}

impl Drop for Kernels {
    fn drop(&mut self) {
        if self.stream.enter().is_ok() && self.stream.wait().is_ok() && !self.module.is_null() {
            // SAFETY: loaded by us, and none of its kernels runs any more.
            unsafe { (self.stream.table.module_unload)(self.module) };
        }
    }
}

/// The kernels in the device's own code.
fn compile((major, minor): (c_int, c_int)) -> Result<Vec<u8>> {
    let nvrtc = Nvrtc::get()?;
    let architecture = CString::new(format!("--gpu-architecture=sm_{major}{minor}"))
        .map_err(|error| Failure::new(error.to_string()))?;
    let options = [architecture.as_ptr(), c"--fmad=false".as_ptr()];
    let mut program = std::ptr::null_mut();
    let none = std::ptr::null();
    let refused = |what: &str, code: c_int| Failure::new(format!("NVRTC cannot {what}: {code}"));
    // SAFETY: the source and name are terminated, the place for the answer ours.
    let code = unsafe {
        (nvrtc.create)(
            &raw mut program,
            SOURCE.as_ptr(),
            c"kernels.cu".as_ptr(),
            0,
            none,
            none.cast(),
        )
    };
    if code != 0 {
        return Err(refused("begin", code));
    }
    // SAFETY: the program was just made and lives until it is destroyed below; every buffer
    // is as long as the library said right before.
    unsafe {
        let compiled = (nvrtc.compile)(program, 2, options.as_ptr());
        let mut size = 0;
        let result = if compiled != 0 {
            (nvrtc.log_size)(program, &raw mut size);
            let mut log = vec![0_u8; size];
            (nvrtc.log)(program, log.as_mut_ptr().cast());
            Err(Failure::new(format!("NVRTC: {}", String::from_utf8_lossy(&log))))
        } else {
            (nvrtc.code_size)(program, &raw mut size);
            let mut binary = vec![0_u8; size];
            match (nvrtc.code)(program, binary.as_mut_ptr().cast()) {
                0 if size > 0 => Ok(binary),
                code => Err(refused("hand over the code", code)),
            }
        };
        (nvrtc.destroy)(&raw mut program);
        result
    }
}

#[cfg(test)]
#[path = "kernels_tests.rs"]
mod tests;
