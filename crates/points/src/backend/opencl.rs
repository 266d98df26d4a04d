//! Any device with an OpenCL driver that divides correctly rounded.
//!
//! The standard lets a device divide two floats with an error of 2.5 units; such a device would
//! put points at the edge of a voxel into its neighbour now and then. Only those that promise
//! the exact quotient, and subnormals, are used.

#![expect(unsafe_code, reason = "foreign calls")]

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::path::Path;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use cl3::command_queue::{enqueue_fill_buffer, enqueue_nd_range_kernel, finish};
use cl3::device::{
    CL_DEVICE_DOUBLE_FP_CONFIG, CL_DEVICE_SINGLE_FP_CONFIG, CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT,
    CL_FP_DENORM, get_device_info,
};
use cl3::error_codes::error_text;
use cl3::event::release_event;
use cl3::kernel::{create_kernel, release_kernel, set_kernel_arg};
use cl3::program::{
    CL_PROGRAM_BUILD_LOG, build_program, create_program_with_source, get_program_build_info,
    release_program,
};
use cl3::types::{cl_int, cl_kernel, cl_mem, cl_program, cl_uint};
use plimsoll_machine::platform::memory_left;
use plimsoll_memory::backend::opencl::{OpenCl, OpenClView};
use plimsoll_memory::{Block, Bytes, Device, Error, Memory, Pool, Result, Stream};

use super::device::program::ProgramText;
use super::device::{
    Arg, Kernel, KernelEngine, KernelProgram, KernelShape, Staging, VoxelDevice, pool_on,
};

/// Opens a device as a backend, with no more of its memory than a limit says.
///
/// # Errors
///
/// [`Error::Unavailable`] without OpenCL, or where the device's arithmetic is not exact.
pub fn open(number: u32, limit: Option<Bytes>) -> Result<VoxelDevice> {
    let device = Arc::new(OpenCl::open(number)?);
    let config = |what| match get_device_info(device.raw_device(), what) {
        Ok(info) => info.to_ulong(),
        Err(_) => 0,
    };
    let single = config(CL_DEVICE_SINGLE_FP_CONFIG);
    for (bit, what) in [
        (CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT, "correctly rounded division"),
        (CL_FP_DENORM, "subnormal numbers"),
    ] {
        if single & bit == 0 {
            return Err(Error::Unavailable {
                what: format!("voxelization on {device}"),
                why: format!("it has no {what}, and would differ from others; use the host"),
            });
        }
    }
    let free = device.free_memory().unwrap_or_else(|_| device.capacity());
    // Memory that is the host's is bounded as this process is, and what is on its way to the
    // device is there twice.
    let confined = memory_left(Path::new("/")).filter(|_| device.info().is_unified == Some(true));
    let free = confined.map_or(free, |left| free.min(left.fraction(0.5)));
    let limit = limit.unwrap_or(Bytes::MAX).min(free);
    let doubles = config(CL_DEVICE_DOUBLE_FP_CONFIG) != 0;
    let pool = pool_on(Arc::clone(&device) as Arc<dyn Memory>, limit)?;
    let engine = OpenClEngine { number, pool, doubles, programs: Mutex::default(), device };
    Ok(VoxelDevice::new(Box::new(engine), limit))
}

struct OpenClEngine {
    number: u32,
    // Before the device: what was compiled goes first.
    programs: Mutex<HashMap<ProgramText, Arc<OpenClProgram>>>,
    pool: Pool,
    doubles: bool,
    device: Arc<OpenCl>,
}

fn failed(call: &'static str) -> impl FnOnce(cl_int) -> Error {
    move |code| Error::Device { call, why: format!("{} ({code})", error_text(code)) }
}

impl OpenClEngine {
    fn view(&self, block: &Block) -> Result<OpenClView> {
        view(&self.device, block)
    }

    fn wait(&self, stream: Stream) -> Result<()> {
        finish(self.device.raw_queue(stream)?).map_err(failed("clFinish"))
    }
}

fn view(device: &OpenCl, block: &Block) -> Result<OpenClView> {
    device.view(block.address(), block.size())
}

impl KernelEngine for OpenClEngine {
    fn name(&self) -> String {
        format!("opencl:{}", self.number)
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn is_discrete(&self) -> bool {
        self.device.info().is_unified == Some(false)
    }

    fn has_doubles(&self) -> bool {
        self.doubles
    }

    fn stream(&self) -> Result<Stream> {
        self.device.new_stream()
    }

    fn program(&self, text: &ProgramText) -> Result<Arc<dyn KernelProgram>> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = programs.get(text) {
            return Ok(Arc::clone(program) as Arc<dyn KernelProgram>);
        }
        let program = Arc::new(OpenClProgram::build(&self.device, text, self.doubles)?);
        programs.insert(text.clone(), Arc::clone(&program));
        Ok(program)
    }

    fn is_cuda(&self) -> bool {
        false
    }

    fn staging(&self, bytes: u64) -> Result<Box<dyn Staging>> {
        Ok(Box::new(super::PlainStaging(super::zeroed_words(bytes)?)))
    }

    fn write(&self, stream: Stream, to: &Block, bytes: &[u8]) -> Result<()> {
        self.wait(stream)?;
        self.device.write(to.address(), bytes)
    }

    fn clear(&self, stream: Stream, block: &Block, bytes: u64) -> Result<()> {
        let view = self.view(block)?;
        let zero = 0u32;
        // SAFETY: the buffer has as many bytes, in whole words, and lives until the queue is
        // through with it; the pattern is copied by the call.
        let filled = unsafe {
            enqueue_fill_buffer(
                self.device.raw_queue(stream)?,
                view.raw(),
                (&raw const zero).cast(),
                4,
                0,
                bytes.next_multiple_of(4) as usize,
                0,
                ptr::null(),
            )
        };
        forget(filled.map_err(failed("clEnqueueFillBuffer"))?);
        self.wait(stream)
    }

    fn read(&self, stream: Stream, from: &Block, bytes: &mut [u8]) -> Result<()> {
        self.wait(stream)?;
        self.device.read(from.address(), bytes)
    }
}

fn forget(event: cl3::types::cl_event) {
    // SAFETY: the event was just made and is used nowhere else.
    let _ = unsafe { release_event(event) };
}

struct OpenClProgram {
    program: cl_program,
    device: Arc<OpenCl>,
}

// SAFETY: the standard lets every thread use a program; kernels are made for each launch.
unsafe impl Send for OpenClProgram {}
// SAFETY: as above.
unsafe impl Sync for OpenClProgram {}

impl OpenClProgram {
    fn build(device: &Arc<OpenCl>, text: &ProgramText, doubles: bool) -> Result<OpenClProgram> {
        let program = create_program_with_source(device.raw_context(), &[text.source])
            .map_err(failed("clCreateProgramWithSource"))?;
        let compiled = OpenClProgram { program, device: Arc::clone(device) };
        let mut flags = text.flags.clone();
        flags.push("-cl-std=CL1.2".to_string());
        flags.push("-cl-fp32-correctly-rounded-divide-sqrt".to_string());
        if !doubles {
            flags.push("-DNO_DOUBLE".to_string());
        }
        let options = CString::new(flags.join(" ")).unwrap_or_default();
        let built = build_program(program, &[device.raw_device()], &options, None, ptr::null_mut());
        built.map_err(|code| {
            let log = get_program_build_info(program, device.raw_device(), CL_PROGRAM_BUILD_LOG);
            let log = log.map(|log| log.to_string()).unwrap_or_default();
            Error::Device {
                call: "clBuildProgram",
                why: format!("{} ({code}): {log}", error_text(code)),
            }
        })?;
        Ok(compiled)
    }

    fn arguments(&self, kernel: cl_kernel, arguments: &[Arg<'_>]) -> Result<Vec<OpenClView>> {
        let mut views = Vec::new();
        for (index, argument) in arguments.iter().enumerate() {
            let set = |size: usize, value: *const c_void| {
                // SAFETY: the value has this size, and is copied by the call.
                unsafe { set_kernel_arg(kernel, index as cl_uint, size, value) }
                    .map_err(failed("clSetKernelArg"))
            };
            match argument {
                Arg::U64(value) => set(8, ptr::from_ref(value).cast())?,
                Arg::U32(value) => set(4, ptr::from_ref(value).cast())?,
                Arg::F32(value) => set(4, ptr::from_ref(value).cast())?,
                Arg::Block(block) => {
                    let view = view(&self.device, block)?;
                    let raw: cl_mem = view.raw();
                    set(size_of::<cl_mem>(), (&raw const raw).cast())?;
                    views.push(view);
                }
            }
        }
        Ok(views)
    }
}

impl KernelProgram for OpenClProgram {
    fn launch(
        &self,
        stream: Stream,
        kernel: Kernel,
        shape: KernelShape,
        arguments: &[Arg<'_>],
    ) -> Result<()> {
        let name = CString::new(kernel.name()).unwrap_or_default();
        let made = create_kernel(self.program, &name).map_err(failed("clCreateKernel"))?;
        let lanes = shape.lanes as usize;
        let global = [shape.blocks[0] as usize * lanes, shape.blocks[1] as usize];
        let launched = self.arguments(made, arguments).and_then(|views| {
            let queue = self.device.raw_queue(stream)?;
            let local = [lanes, 1];
            // SAFETY: the arguments are those of the kernel, whose text keeps inside the
            // buffers that it is given; the queue is waited for before their views go.
            let event = unsafe {
                enqueue_nd_range_kernel(
                    queue,
                    made,
                    2,
                    ptr::null(),
                    global.as_ptr(),
                    local.as_ptr(),
                    0,
                    ptr::null(),
                )
            };
            forget(event.map_err(failed("clEnqueueNDRangeKernel"))?);
            let done = finish(queue).map_err(failed("clFinish"));
            drop(views);
            done
        });
        // SAFETY: it was made above and is used nowhere else.
        let _ = unsafe { release_kernel(made) };
        launched
    }
}

impl Drop for OpenClProgram {
    fn drop(&mut self) {
        // SAFETY: it was made by `build` and goes once.
        let _ = unsafe { release_program(self.program) };
    }
}
