//! Compiled code: from a source or an image to a launch.
//!
//! ```no_run
//! use plimsoll_memory::backend::cuda::{Argument, Cuda, Launch, compile};
//! use plimsoll_memory::{Bytes, Memory, Request, Stream};
//!
//! let source = r#"extern "C" __global__ void twice(float *x, unsigned n) {
//!     unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
//!     if (i < n) x[i] *= 2.0f;
//! }"#;
//! let device = Cuda::open(0)?;
//! let module = device.load(&compile(source, &device.target(), &[])?)?;
//! let twice = module.function("twice")?;
//! let block = device.allocate(Request::new(Bytes::mib(4)))?;
//! let launch = Launch::over(1 << 20, 256);
//! // SAFETY: the function takes a pointer and a number, and keeps inside the block.
//! unsafe {
//!     twice.launch(Stream::DEFAULT, launch, &[block.address().into(), (1u32 << 20).into()])?;
//! }
//! device.release(block, Stream::DEFAULT)?;
//! # Ok::<(), plimsoll_memory::Error>(())
//! ```

use std::ffi::c_void;
use std::sync::Arc;

use super::Cuda;
use crate::memory::{Address, Stream};
use plimsoll_cuda::{LaunchMode, RawFunction, RawModule};
use plimsoll_machine::error::{Error, Result};

/// A block may have 48 KiB of shared memory without being asked for more. What a kernel declares for
/// itself counts as well and is not known here: so it is asked for from this much on.
const PLAIN_SHARED: u32 = 32 << 10;
/// More arguments than any kernel here takes.
const MOST_ARGUMENTS: usize = 64;

/// Code that a device can load.
#[derive(Debug, Clone)]
pub struct Code(Vec<u8>);

impl Code {
    /// PTX, which the driver compiles for the device that it has.
    #[must_use]
    pub fn ptx(text: &str) -> Code {
        Code(text.as_bytes().to_vec())
    }

    /// A cubin or a fat binary that was compiled before.
    ///
    /// # Safety
    ///
    /// A compiler of NVIDIA's made it, and it is complete: the driver does not get its
    /// length.
    #[must_use]
    #[expect(unsafe_code, reason = "the driver believes what the image says of itself")]
    pub unsafe fn image(bytes: Vec<u8>) -> Code {
        Code(bytes)
    }

    /// The bytes, to be kept for the next time.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Compiles CUDA C++ with NVRTC, which is looked for at run time. `target` is the kind of
/// device: [`Cuda::target`], `sm_90` or, for PTX, `compute_75`.
///
/// # Errors
///
/// [`Error::Unavailable`](crate::Error::Unavailable) without NVRTC, with the files tried;
/// [`Error::Device`](crate::Error::Device) with the compiler's log where the source is wrong.
pub fn compile(source: &str, target: &str, options: &[&str]) -> Result<Code> {
    Ok(Code(plimsoll_cuda::compile(source, target, options)?))
}

/// A module that was loaded.
#[derive(Debug, Clone)]
pub struct Module {
    device: Arc<RawModule>,
    queue: super::queue::CudaStreams,
}

/// A function of a module.
#[derive(Debug, Clone)]
pub struct Function {
    module: Module,
    raw: RawFunction,
}

/// How many threads run a function, and with how much shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in x, y and z.
    pub grid: [u32; 3],
    /// Threads of a block in x, y and z.
    pub block: [u32; 3],
    /// Bytes of shared memory that are asked for at the launch.
    pub shared: u32,
}

impl Launch {
    /// At least `threads` threads in a row, in blocks of `block` threads.
    #[must_use]
    pub fn over(threads: u32, block: u32) -> Launch {
        let block = block.max(1);
        Launch { grid: [threads.div_ceil(block).max(1), 1, 1], block: [block, 1, 1], shared: 0 }
    }

    /// With this many bytes of shared memory.
    #[must_use]
    pub fn with_shared(mut self, bytes: u32) -> Launch {
        self.shared = bytes;
        self
    }
}

/// What a function is given.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Argument {
    /// An address, or any number of 64 bits.
    U64(u64),
    /// A number of 32 bits.
    U32(u32),
    /// A signed one.
    I32(i32),
    /// A float.
    F32(f32),
    /// A double.
    F64(f64),
}

macro_rules! argument {
    ($($kind:ident($of:ty))*) => {$(
        impl From<$of> for Argument {
            fn from(value: $of) -> Argument {
                Argument::$kind(value)
            }
        }
    )*};
}
argument! { U64(u64) U32(u32) I32(i32) F32(f32) F64(f64) }

impl From<Address> for Argument {
    fn from(address: Address) -> Argument {
        Argument::U64(address.pointer())
    }
}

impl Argument {
    /// Where its value is. The driver's interface has no word for places that are only read.
    fn place(&self) -> *mut c_void {
        let place: *const c_void = match self {
            Argument::U64(value) => (&raw const *value).cast(),
            Argument::U32(value) => (&raw const *value).cast(),
            Argument::I32(value) => (&raw const *value).cast(),
            Argument::F32(value) => (&raw const *value).cast(),
            Argument::F64(value) => (&raw const *value).cast(),
        };
        place.cast_mut()
    }
}

impl Cuda {
    /// The target that [`compile`] takes for this device: `sm_90`; PTX for the oldest that
    /// CUDA 12 knows where the device does not say what it is.
    #[must_use]
    pub fn target(&self) -> String {
        match self.facts().compute_capability {
            Some((major, minor)) => format!("sm_{major}{minor}"),
            None => "compute_50".to_string(),
        }
    }

    /// Loads code.
    #[expect(unsafe_code, reason = "the driver believes what the image says of itself")]
    pub fn load(&self, code: &Code) -> Result<Module> {
        // SAFETY: PTX is a text; a binary came from NVRTC or with the caller's promise.
        let module = unsafe { RawModule::load(&self.context, &code.0) }?;
        Ok(Module { device: Arc::new(module), queue: self.queue.streams() })
    }
}

impl Module {
    /// A function by its name: that of an `extern "C"` one, or a mangled one.
    pub fn function(&self, name: &str) -> Result<Function> {
        Ok(Function { module: self.clone(), raw: self.device.function(name)? })
    }
}

impl Function {
    /// Queues the function on a stream of the device that it was loaded on; it takes at most 64
    /// arguments.
    ///
    /// # Safety
    ///
    /// The arguments are as many as the function takes, and of its types; and it touches
    /// no memory but what it is given and what lives until the stream is past it.
    #[expect(unsafe_code, reason = "compiled code does what it likes")]
    pub unsafe fn launch(
        &self,
        stream: Stream,
        launch: Launch,
        arguments: &[Argument],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.queue(stream, launch, arguments, None) }
    }

    /// The same, and it may start before the work before it is over: from CUDA 12 and Hopper
    /// on, a launch costs less so. It must wait by itself (`griddepcontrol.wait`) before it
    /// touches what that work leaves.
    ///
    /// # Safety
    ///
    /// As for [`Function::launch`].
    #[expect(unsafe_code, reason = "compiled code does what it likes")]
    pub unsafe fn launch_early(
        &self,
        stream: Stream,
        launch: Launch,
        arguments: &[Argument],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.queue(stream, launch, arguments, Some(LaunchMode::Early)) }
    }

    /// The same, with all of its blocks on the device at once, so that they may wait for each
    /// other; the driver refuses more of them than it has room for.
    ///
    /// # Safety
    ///
    /// As for [`Function::launch`].
    #[expect(unsafe_code, reason = "compiled code does what it likes")]
    pub unsafe fn launch_together(
        &self,
        stream: Stream,
        launch: Launch,
        arguments: &[Argument],
    ) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.queue(stream, launch, arguments, Some(LaunchMode::Together)) }
    }

    #[expect(unsafe_code, reason = "compiled code does what it likes")]
    unsafe fn queue(
        &self,
        stream: Stream,
        launch: Launch,
        arguments: &[Argument],
        extra: Option<LaunchMode>,
    ) -> Result<()> {
        let stream = self.module.queue.get(stream)?;
        let mut places = [std::ptr::null_mut(); MOST_ARGUMENTS];
        let places = places.get_mut(..arguments.len()).ok_or_else(|| Error::Config {
            field: "arguments",
            value: arguments.len().to_string(),
            range: "at most 64",
        })?;
        places.iter_mut().zip(arguments).for_each(|(place, argument)| *place = argument.place());
        let Launch { grid, block, shared } = launch;
        let module = &self.module.device;
        if shared > PLAIN_SHARED {
            module.allow_shared(self.raw, shared)?;
        }
        let shape = (grid, block, shared);
        // SAFETY: the function is of this module; the rest is the caller's promise. Arguments and
        // places outlive the call, which copies them and writes to none.
        unsafe {
            match extra {
                Some(extra) => Ok(module.launch_with(extra, self.raw, &stream, shape, places)?),
                None => Ok(module.launch(self.raw, &stream, shape, places)?),
            }
        }
    }
}
