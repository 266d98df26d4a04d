//! The CUDA driver, as far as copies need it: one stream, pinned buffers, copies in order.
//!
//! `ort` (rc.15) cannot copy between the host and buffers that a session keeps on a device,
//! so the driver is asked itself. It is found at run time; the provider runs on the
//! driver's primary context, and so does this. The stream made here is handed to the
//! provider: copies and the model's work are then in order without a wait between them,
//! and one wait at the end is all.
//!
//! Everything that is in flight is borrowed by [`Lane::exchange`] until it has waited, so
//! that no buffer can go while the device reads or writes it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::{Arc, OnceLock};

use libloading::Library;
use ort::ep::CUDA;
use ort::memory::AllocationDevice;
use ort::value::Tensor as OrtTensor;

use crate::tensor::Tensor;

const FILES: [&str; 2] = ["libcuda.so.1", "libcuda.so"];

pub(super) type Handle = *mut c_void;

/// Declares a table of a library's functions that are called here, and its loader.
macro_rules! table {
    ($table:ident; $($name:ident = $symbol:literal ($($kind:ty),*);)*) => {
        #[derive(Debug)]
        pub(super) struct $table {
            $(pub(super) $name: unsafe extern "C" fn($($kind),*) -> std::ffi::c_int,)*
        }

        impl $table {
            fn load(library: &'static libloading::Library) -> Result<$table, String> {
                Ok($table {$(
                    // SAFETY: these are the signatures in the library's own header.
                    $name: *unsafe {
                        library.get::<unsafe extern "C" fn($($kind),*) -> std::ffi::c_int>($symbol)
                    }.map_err(|error| $crate::engine::ort::sys::driver::plain(&error))?,
                )*})
            }
        }
    };
}
pub(super) use table;

/// What the loader said: it is the cause of the error, not its text.
pub(super) fn plain(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Loads the first of some files that is there; it is never unloaded.
pub(super) fn open<T>(
    what: &str,
    files: &[&str],
    load: impl FnOnce(&'static Library) -> Result<T, String>,
) -> Result<T, String> {
    let mut tried = Vec::new();
    for &file in files {
        // SAFETY: loading NVIDIA's libraries runs their initialisers, as every CUDA program
        // does.
        match unsafe { Library::new(file) } {
            Ok(library) => return load(Box::leak(Box::new(library))),
            Err(error) => tried.push(format!("{file}: {}", plain(&error))),
        }
    }
    Err(format!("no {what}: {}", tried.join("; ")))
}

table! {
    Table;
    init = b"cuInit\0"(c_uint);
    error_name = b"cuGetErrorName\0"(c_int, *mut *const c_char);
    device = b"cuDeviceGet\0"(*mut c_int, c_int);
    retain = b"cuDevicePrimaryCtxRetain\0"(*mut Handle, c_int);
    release = b"cuDevicePrimaryCtxRelease_v2\0"(c_int);
    set_current = b"cuCtxSetCurrent\0"(Handle);
    stream_create = b"cuStreamCreate\0"(*mut Handle, c_uint);
    stream_destroy = b"cuStreamDestroy_v2\0"(Handle);
    stream_wait = b"cuStreamSynchronize\0"(Handle);
    to_device = b"cuMemcpyHtoDAsync_v2\0"(u64, *const c_void, usize, Handle);
    to_host = b"cuMemcpyDtoHAsync_v2\0"(*mut c_void, u64, usize, Handle);
    pin = b"cuMemHostRegister_v2\0"(*mut c_void, usize, c_uint);
    unpin = b"cuMemHostUnregister\0"(*mut c_void);
    attribute = b"cuDeviceGetAttribute\0"(*mut c_int, c_int, c_int);
    module_load = b"cuModuleLoadData\0"(*mut Handle, *const c_void);
    module_unload = b"cuModuleUnload\0"(Handle);
    module_function = b"cuModuleGetFunction\0"(*mut Handle, Handle, *const c_char);
    launch = b"cuLaunchKernel\0"(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle,
        *mut *mut c_void, *mut *mut c_void
    );
}

/// A stream that does not wait for the stream that all share.
const NON_BLOCKING: c_uint = 1;
/// The attributes for the two parts of the compute capability.
const CAPABILITY: [c_int; 2] = [75, 76];
/// Pinned for every context.
const PORTABLE: c_uint = 1;

impl Table {
    /// The one table of the process.
    fn get() -> Result<&'static Table, String> {
        static TABLE: OnceLock<Result<Table, String>> = OnceLock::new();
        let table = TABLE.get_or_init(|| open("CUDA driver", &FILES, Table::load));
        table.as_ref().map_err(Clone::clone)
    }

    pub(super) fn check(&self, what: &str, code: c_int) -> ort::Result<()> {
        if code == 0 {
            return Ok(());
        }
        let mut name = std::ptr::null();
        // SAFETY: the place for the answer is ours; the answer is a static string or null.
        let told = unsafe { (self.error_name)(code, &raw mut name) } == 0 && !name.is_null();
        let name = if told {
            // SAFETY: not null, static and terminated, by the driver's documentation.
            unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
        } else {
            format!("code {code}")
        };
        Err(ort::Error::new(format!("the CUDA driver cannot {what}: {name}")))
    }
}

/// A device's primary context and a stream on it.
#[derive(Debug)]
pub(in super::super) struct Stream {
    pub(super) table: &'static Table,
    device: c_int,
    context: Handle,
    pub(super) stream: Handle,
}

// SAFETY: the driver's handles may be used from any thread; each use makes the context
// current first.
unsafe impl Send for Stream {}
// SAFETY: the same; the driver locks inside.
unsafe impl Sync for Stream {}

impl Stream {
    /// A new stream on a device.
    pub(in super::super) fn new(device: u32) -> ort::Result<Arc<Stream>> {
        let table = Table::get().map_err(ort::Error::new)?;
        let number = c_int::try_from(device).unwrap_or(c_int::MAX);
        let (mut device, mut context) = (0, std::ptr::null_mut());
        // SAFETY: the driver is initialised before all else, and the places for the answers
        // are ours; each step is taken only after the one before it worked.
        unsafe {
            table.check("start", (table.init)(0))?;
            table.check("find the device", (table.device)(&raw mut device, number))?;
            table.check("open the device", (table.retain)(&raw mut context, device))?;
        }
        let mut made = Stream { table, device, context, stream: std::ptr::null_mut() };
        made.enter()?;
        // SAFETY: the context is current, the place for the answer ours.
        let code = unsafe { (table.stream_create)(&raw mut made.stream, NON_BLOCKING) };
        table.check("make a stream", code)?;
        Ok(Arc::new(made))
    }

    pub(super) fn enter(&self) -> ort::Result<()> {
        // SAFETY: the context is retained until this is dropped.
        self.table.check("enter the context", unsafe { (self.table.set_current)(self.context) })
    }

    /// The device's compute capability.
    pub(super) fn capability(&self) -> ort::Result<(c_int, c_int)> {
        let mut found = [0; 2];
        for (place, which) in found.iter_mut().zip(CAPABILITY) {
            // SAFETY: the device is open, the place for the answer ours.
            let code = unsafe { (self.table.attribute)(place, which, self.device) };
            self.table.check("tell its capability", code)?;
        }
        Ok((found[0], found[1]))
    }

    pub(super) fn wait(&self) -> ort::Result<()> {
        // SAFETY: the stream lives until this is dropped.
        self.table.check("wait", unsafe { (self.table.stream_wait)(self.stream) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.enter().is_err() {
            return;
        }
        // SAFETY: both are ours and used no more; a null stream was never made.
        unsafe {
            if !self.stream.is_null() {
                (self.table.stream_destroy)(self.stream);
            }
            (self.table.release)(self.device);
        }
    }
}

/// Which way bytes go between the host and the memory that a session computes in.
#[derive(Debug, Clone)]
pub(in super::super) enum Lane {
    /// It computes in the host's memory.
    Host,
    /// Over this stream.
    Cuda(Arc<Stream>),
}

/// Tensors that the device reaches without a stage between, where there is a device. Their
/// numbers can be changed, their place cannot.
#[derive(Debug)]
pub(in super::super) struct Pinned {
    // Before the tensors: let go before the memory is.
    _pins: Vec<Pin>,
    tensors: Vec<Tensor>,
}

/// Memory that the driver was told of.
#[derive(Debug)]
struct Pin(Arc<Stream>, *mut c_void);

// SAFETY: the address is only handed back to the driver, which takes it from any thread.
unsafe impl Send for Pin {}
// SAFETY: there is nothing to share.
unsafe impl Sync for Pin {}

impl Pin {
    /// # Safety
    ///
    /// The memory must stay where it is until this is dropped.
    unsafe fn new<T>(stream: &Arc<Stream>, memory: &mut [T]) -> ort::Result<Pin> {
        stream.enter()?;
        let start = memory.as_mut_ptr().cast::<c_void>();
        // SAFETY: the range is a slice's, and the caller promises that it stays.
        let code = unsafe { (stream.table.pin)(start, size_of_val(memory), PORTABLE) };
        stream.table.check("pin host memory", code)?;
        Ok(Pin(Arc::clone(stream), start))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.0.enter().is_ok() {
            // Nothing may be in flight when the memory goes.
            let _ = self.0.wait();
            // SAFETY: registered when this was made.
            unsafe { (self.0.table.unpin)(self.1) };
        }
    }
}

/// Pinned bytes that frames pass through.
#[derive(Debug)]
pub(in super::super) struct Stage {
    // Before the bytes: let go before the memory is.
    pin: Pin,
    bytes: Vec<u8>,
}

/// Bytes that are copied at a time, so that the device copies what came before meanwhile.
const PORTION: usize = 512 << 10;

impl Stage {
    /// Room for so many bytes.
    pub(in super::super) fn new(stream: &Arc<Stream>, length: usize) -> ort::Result<Stage> {
        let mut bytes = vec![0; length];
        // SAFETY: the bytes are private to the stage, never grow, and go after the pin.
        let pin = unsafe { Pin::new(stream, &mut bytes) }?;
        Ok(Stage { pin, bytes })
    }

    /// Puts the copy of a frame on the stream, behind all that is on it: what passed the
    /// stage before has been waited for.
    pub(in super::super) fn pass(
        &mut self,
        frame: &[u8],
        to: &mut OrtTensor<u8>,
    ) -> ort::Result<()> {
        if frame.len() > self.bytes.len() || frame.len() > to.shape().num_elements() {
            return Err(ort::Error::new("a frame is larger than the room for it"));
        }
        let stream = &self.pin.0;
        stream.enter()?;
        // What passed before must have left.
        stream.wait()?;
        let start = to.data_ptr_mut() as u64;
        let portions = self.bytes.chunks_mut(PORTION).zip(frame.chunks(PORTION));
        for (number, (stage, portion)) in portions.enumerate() {
            let stage = &mut stage[..portion.len()];
            stage.copy_from_slice(portion);
            let place = start + (number * PORTION) as u64;
            // SAFETY: both ranges were seen to be large enough; the stage stays pinned and
            // untouched until the stream is waited for, here or when the pin goes.
            let code = unsafe {
                (stream.table.to_device)(place, stage.as_ptr().cast(), stage.len(), stream.stream)
            };
            stream.table.check("copy a frame to the device", code)?;
        }
        Ok(())
    }
}

impl Stream {
    /// Copies a table to the device, and waits.
    pub(in super::super) fn put(&self, from: &[i32], to: &mut OrtTensor<i32>) -> ort::Result<()> {
        if from.len() > to.shape().num_elements() {
            return Err(ort::Error::new("a table is larger than the room for it"));
        }
        self.enter()?;
        let start = to.data_ptr_mut() as u64;
        // SAFETY: both ranges are large enough, and are waited for before this returns.
        let code = unsafe {
            (self.table.to_device)(start, from.as_ptr().cast(), size_of_val(from), self.stream)
        };
        let copied = self.table.check("copy a table to the device", code);
        self.wait().and(copied)
    }
}

impl Pinned {
    pub(in super::super) fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The numbers of one of them.
    pub(in super::super) fn data_mut(&mut self, index: usize) -> &mut [f32] {
        self.tensors.get_mut(index).map(|tensor| &mut tensor.data[..]).unwrap_or_default()
    }
}

impl Lane {
    /// A provider that works on this lane's stream. The session that it is for must go
    /// before the lane does.
    pub(in super::super) fn on(&self, provider: CUDA) -> CUDA {
        match self {
            Lane::Host => provider,
            // SAFETY: `Ort` holds the lane and drops its session before it.
            Lane::Cuda(stream) => unsafe { provider.with_compute_stream(stream.stream.cast()) },
        }
    }

    /// Takes tensors in, for good.
    pub(in super::super) fn pin(&self, mut tensors: Vec<Tensor>) -> ort::Result<Pinned> {
        let mut pins = Vec::new();
        if let Lane::Cuda(stream) = self {
            for tensor in &mut tensors {
                // SAFETY: the numbers stay where they are until the pin is dropped: the
                // tensors are private to `Pinned`, which gives out slices alone and drops
                // its pins first.
                pins.push(unsafe { Pin::new(stream, &mut tensor.data) }?);
            }
        }
        Ok(Pinned { _pins: pins, tensors })
    }

    /// Copies `input` in where there is one, lets `run` put the model's work behind it,
    /// copies the results out behind that, and waits for all.
    pub(in super::super) fn exchange(
        &self,
        input: Option<(&Pinned, &mut OrtTensor<f32>)>,
        run: impl FnOnce() -> ort::Result<()>,
        (results, device_results): (&mut Pinned, &[OrtTensor<f32>]),
    ) -> ort::Result<()> {
        for (device, result) in device_results.iter().zip(&results.tensors) {
            self.here(device, result)?;
        }
        let all = || {
            if let Some((input, device)) = input
                && let Some(input) = input.tensors.first()
            {
                self.here(device, input)?;
                self.copy_in(&input.data, device)?;
            }
            run()?;
            let mut pairs = device_results.iter().zip(&mut results.tensors);
            pairs.try_for_each(|(device, result)| self.copy_out(device, &mut result.data))
        };
        let done = match self {
            Lane::Host => return all(),
            Lane::Cuda(stream) => stream.enter().and_then(|()| all()).map(|()| stream),
        };
        // Whatever happened, nothing may be in flight when the borrows end.
        if let Lane::Cuda(stream) = self {
            stream.wait()?;
        }
        done.map(|_| ())
    }

    /// Whether a session's tensor lies where this lane leads to, and is as large.
    fn here(&self, device: &OrtTensor<f32>, host: &Tensor) -> ort::Result<()> {
        let place = match self {
            Lane::Host => AllocationDevice::CPU,
            Lane::Cuda(_) => AllocationDevice::CUDA,
        };
        let right = device.memory_info().allocation_device() == place
            && device.shape().num_elements() == host.data.len();
        if right { Ok(()) } else { Err(ort::Error::new("a buffer lies elsewhere than planned")) }
    }

    fn copy_in(&self, from: &[f32], to: &mut OrtTensor<f32>) -> ort::Result<()> {
        let start = to.data_ptr_mut();
        match self {
            Lane::Host => {
                // SAFETY: `here` saw that it is the host's memory and as many numbers; it is
                // borrowed exclusively, and of the runtime's own making.
                unsafe { start.cast::<f32>().copy_from_nonoverlapping(from.as_ptr(), from.len()) };
                Ok(())
            }
            Lane::Cuda(stream) => {
                let bytes = size_of_val(from);
                // SAFETY: `here` saw that it is the device's memory and as many numbers;
                // `exchange` holds both until it has waited.
                let code = unsafe {
                    let from = from.as_ptr().cast::<c_void>();
                    (stream.table.to_device)(start as u64, from, bytes, stream.stream)
                };
                stream.table.check("copy to the device", code)
            }
        }
    }

    fn copy_out(&self, from: &OrtTensor<f32>, to: &mut [f32]) -> ort::Result<()> {
        let start = from.data_ptr();
        match self {
            Lane::Host => {
                // SAFETY: as in `copy_in`, the other way.
                unsafe {
                    to.as_mut_ptr().copy_from_nonoverlapping(start.cast::<f32>(), to.len());
                };
                Ok(())
            }
            Lane::Cuda(stream) => {
                let bytes = size_of_val(to);
                // SAFETY: as in `copy_in`, the other way.
                let code = unsafe {
                    let to = to.as_mut_ptr().cast::<c_void>();
                    (stream.table.to_host)(to, start as u64, bytes, stream.stream)
                };
                stream.table.check("copy to the host", code)
            }
        }
    }
}
