//! GPUs of NVIDIA's.
//!
//! The kernels are compiled when they are first used, for the device that is there, by NVRTC;
//! what was compiled is kept on disk. Nothing is fused, divisions are exact and subnormals
//! stay, so that a GPU puts every point where the host does.

#![expect(unsafe_code, reason = "kernels are launched, and pinned memory has an address")]

mod hard;
mod held;
mod pillars;
mod places;
mod plan;
mod reduced;
mod resident;
mod scatter;
mod started;
mod totals;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_memory::backend::cuda::{
    Argument, Code, Cuda, CudaMemory, CudaOptions, Function, Launch, Module, compile,
};
use plimsoll_memory::{Block, Bytes, Device, Error, Memory, Pool, Request, Result, Stream};

use super::cache;
use super::device::program::{
    Defines, Division, ProgramText, hard_text, network_text, scatter_text,
};
use super::device::{
    Arg, Kernel, KernelEngine, KernelProgram, KernelShape, Staging, VoxelDevice, pool_on,
};
use crate::grid::VoxelGrid;
use crate::network::{CoordinateForm, HardSpec};

pub use hard::{HardBuffers, HardClouds, HardShape, ResidentHard};
pub use held::CallerStreams;
pub use pillars::{PillarCount, ResidentPillars};
pub use places::ResidentPlaces;
pub use reduced::ResidentReduced;
pub use resident::{ResidentCounts, ResidentShape, ResidentVoxels};
pub use scatter::{ResidentScatter, ScatterShape};
pub use started::StartedHard;

/// Every operation for itself, rounded to nearest, with subnormals.
const EXACT: [&str; 4] = ["--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false"];

/// Opens a device as a backend, with no more of its memory than a limit says.
///
/// # Errors
///
/// [`Error::Unavailable`] without NVIDIA's driver or a device of that number.
pub fn open(number: u32, limit: Option<Bytes>) -> Result<VoxelDevice> {
    // Plain blocks: a lane has a few large ones, and a limit may be smaller than a page.
    let device = Arc::new(Cuda::open_with(&CudaOptions::new(number).mapping(false))?);
    let discrete = device.info().is_unified != Some(true);
    let free = available(&device, discrete)?;
    let limit = limit.unwrap_or(Bytes::MAX).min(free);
    let pinned = CudaOptions::new(number).memory(CudaMemory::Pinned);
    // Pinning memory takes longer than using it, so a pool keeps it.
    let pinned = match discrete {
        true => Some(Arc::new(pool_on(Arc::new(Cuda::open_with(&pinned)?), Bytes::MAX)?)),
        false => None,
    };
    let pool = pool_on(Arc::clone(&device) as Arc<dyn Memory>, limit)?;
    let engine = CudaEngine { number, pool, pinned, programs: Mutex::default(), device };
    Ok(VoxelDevice::new(Box::new(engine), limit))
}

/// What is free now: on unified memory what the system has, and not the driver's figure,
/// which leaves out what the page cache would give back.
fn available(device: &Cuda, discrete: bool) -> Result<Bytes> {
    let system = || plimsoll_machine::platform::system_memory(Path::new("/")).ok()?.available;
    match system().filter(|_| !discrete) {
        Some(available) => Ok(available.min(device.info().total)),
        None => device.free_memory(),
    }
}

/// Compiles the programs for a kind of device into a folder, which `PLIMSOLL_KERNELS` may name
/// on boards without the compiler. `features` are those of points whose mean or maximum is
/// wanted there.
///
/// # Errors
///
/// [`Error::Unavailable`] without NVRTC; [`Error::Device`] where the folder cannot be written.
pub fn compile_kernels(folder: &Path, target: &str, features: &[usize]) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for stride in [3].into_iter().chain(features.iter().map(|features| 3 + features)) {
        for division in [Division::Product, Division::Once, Division::Twice, Division::Plain] {
            // The forms that ordinary work has; others are compiled where the compiler is.
            for (wide, whole) in [(false, true), (false, false), (true, true), (true, false)] {
                let one = Defines {
                    stride,
                    wide,
                    wide_keys: false,
                    whole,
                    division,
                    ragged: true,
                    bytes: false,
                };
                names.push(keep_compiled(folder, target, &one.text())?);
            }
        }
    }
    Ok(names)
}

/// The same for hard voxels of points with so many features, of one cloud and of batches, and what
/// else networks take of them.
///
/// # Errors
///
/// As [`compile_kernels`].
pub fn compile_hard_kernels(
    folder: &Path,
    target: &str,
    spec: &HardSpec,
    features: usize,
) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for batch_index in [false, true] {
        let spec = spec.with_form(CoordinateForm { batch_index, ..spec.form() });
        for ragged in [true, false] {
            let text = hard_text(&spec, 3 + features, ragged);
            names.push(keep_compiled(folder, target, &text)?);
        }
        // Images know no features of points.
        for columns in BTreeSet::from([3, 3 + features]) {
            names.push(keep_compiled(folder, target, &network_text(&spec, columns))?);
        }
    }
    names.push(keep_compiled(folder, target, &scatter_text())?);
    Ok(names)
}

/// Compiles a program into a folder; gives the name of its file.
fn keep_compiled(folder: &Path, target: &str, text: &ProgramText) -> Result<String> {
    let options = options(text);
    let name = cache::name(target, text.source, &options);
    cache::keep(folder, &name, build(target, text, &options)?.bytes())?;
    Ok(name)
}

fn options(text: &ProgramText) -> Vec<String> {
    let mut options: Vec<String> = EXACT.iter().map(ToString::to_string).collect();
    options.extend_from_slice(&text.flags);
    options.push("-diag-suppress=177".to_string());
    options
}

fn build(target: &str, text: &ProgramText, options: &[String]) -> Result<Code> {
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    compile(text.source, target, &options)
}

/// As [`program::grid_arguments`](super::device::program::grid_arguments), for launches here.
fn grid_arguments(grid: &VoxelGrid, launch: [u64; 4]) -> [Argument; 16] {
    super::device::program::grid_arguments(grid, launch).each_ref().map(argument)
}

/// Room for the arguments of a kernel over points.
const ARGUMENTS: usize = 32;

fn launch_of(shape: KernelShape) -> Launch {
    let [x, y] = shape.blocks;
    Launch { grid: [x, y, 1], block: [shape.lanes, 1, 1], shared: 0 }
}

fn argument(argument: &Arg<'_>) -> Argument {
    match argument {
        Arg::Block(block) => block.address().into(),
        Arg::U64(value) => (*value).into(),
        Arg::U32(value) => (*value).into(),
        Arg::F32(value) => (*value).into(),
    }
}

struct CudaEngine {
    number: u32,
    programs: Mutex<HashMap<ProgramText, Arc<CudaProgram>>>,
    pool: Pool,
    pinned: Option<Arc<Pool>>,
    device: Arc<Cuda>,
}

/// The program, from the disk where it was compiled before, otherwise by the compiler. Where the
/// driver refuses what lay on the disk (made for another driver, or for another device), it is
/// compiled anew.
fn load(device: &Cuda, text: &ProgramText) -> Result<Module> {
    let (target, options) = (device.target(), options(text));
    let name = cache::name(&target, text.source, &options);
    let mut refused = String::new();
    if let Some(code) = cache::find(&name) {
        // SAFETY: NVRTC made it, and the checksum says that all of it is here.
        match device.load(&unsafe { Code::image(code) }) {
            Err(Error::Device { why, .. }) => {
                refused = format!("the driver refused the compiled kernels {name} ({why}), and ");
                tracing::info!(name, why, "kept kernels are compiled anew");
            }
            loaded => return loaded,
        }
    }
    let code = build(&target, text, &options).map_err(|error| match error {
        Error::Unavailable { what, why } => Error::Unavailable {
            what: format!("{refused}{what}"),
            why: format!(
                "{why}; or have kernels for {target} compiled elsewhere by this version (plimsoll \
                 voxelize --compile-kernels DIR --target {target}) and name their folder in \
                 PLIMSOLL_KERNELS"
            ),
        },
        other => other,
    })?;
    if let Some(folder) = cache::folders().last()
        && let Err(error) = cache::keep(folder, &name, code.bytes())
    {
        tracing::info!(%error, "compiled kernels are not kept");
    }
    device.load(&code)
}

impl KernelEngine for CudaEngine {
    fn name(&self) -> String {
        format!("cuda:{}", self.number)
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn is_discrete(&self) -> bool {
        self.pinned.is_some()
    }

    fn has_doubles(&self) -> bool {
        true
    }

    fn stream(&self) -> Result<Stream> {
        self.device.new_stream()
    }

    fn program(&self, text: &ProgramText) -> Result<Arc<dyn KernelProgram>> {
        let mut programs = self.programs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(program) = programs.get(text) {
            return Ok(Arc::clone(program) as Arc<dyn KernelProgram>);
        }
        let program = Arc::new(CudaProgram(load(&self.device, text)?));
        programs.insert(text.clone(), Arc::clone(&program));
        Ok(program)
    }

    fn is_cuda(&self) -> bool {
        true
    }

    fn staging(&self, bytes: u64) -> Result<Box<dyn Staging>> {
        let Some(pinned) = &self.pinned else {
            return Ok(Box::new(super::PlainStaging(super::zeroed_words(bytes)?)));
        };
        let block = pinned.allocate(Request::new(Bytes(bytes.max(8))))?;
        Ok(Box::new(PinnedStaging { block, pool: Arc::clone(pinned) }))
    }

    fn write(&self, stream: Stream, to: &Block, bytes: &[u8]) -> Result<()> {
        self.device.write_on(stream, to.address(), bytes)
    }

    fn clear(&self, stream: Stream, block: &Block, bytes: u64) -> Result<()> {
        self.device.fill_on(stream, block.address(), 0, Bytes(bytes))
    }

    fn read(&self, stream: Stream, from: &Block, bytes: &mut [u8]) -> Result<()> {
        self.device.read_on(stream, from.address(), bytes)
    }
}

/// Memory of the host that copies of the device go to and from at full speed.
struct PinnedStaging {
    block: Block,
    pool: Arc<Pool>,
}

impl Staging for PinnedStaging {
    fn bytes(&mut self) -> &mut [u8] {
        let address = self.block.address().pointer() as *mut u8;
        // SAFETY: a pinned block is memory of this process of that size, mapped until it is
        // returned when this value is dropped, and nobody else has its address.
        unsafe { std::slice::from_raw_parts_mut(address, self.block.size().get() as usize) }
    }
}

impl Drop for PinnedStaging {
    fn drop(&mut self) {
        // Copies to and from it have ended: each waits until its bytes are there.
        if let Err(error) = self.pool.release(self.block, Stream::DEFAULT) {
            tracing::warn!(%error, "pinned memory could not be returned");
        }
    }
}

/// Kernels of a program, looked up once: to look one up takes as long as to queue it.
#[derive(Debug)]
struct LoadedKernels(HashMap<Kernel, Function>);

impl LoadedKernels {
    fn load(device: &Cuda, text: &ProgramText, kernels: &[Kernel]) -> Result<LoadedKernels> {
        let module = load(device, text)?;
        let named = |kernel: &Kernel| Ok((*kernel, module.function(kernel.name())?));
        Ok(LoadedKernels(kernels.iter().map(named).collect::<Result<_>>()?))
    }

    /// # Safety
    ///
    /// The arguments are those of the kernel, and lead to memory that is as large as the kernel uses
    /// and lives until the stream is past the launch.
    unsafe fn launch(
        &self,
        kernel: Kernel,
        stream: Stream,
        shape: KernelShape,
        arguments: &[Argument],
    ) -> Result<()> {
        let function = self.0.get(&kernel).ok_or_else(|| Error::Device {
            call: "launch",
            why: format!("{} was not loaded", kernel.name()),
        })?;
        // SAFETY: the caller's promise.
        unsafe { function.launch(stream, launch_of(shape), arguments) }
    }
}

struct CudaProgram(Module);

impl KernelProgram for CudaProgram {
    fn launch(
        &self,
        stream: Stream,
        kernel: Kernel,
        shape: KernelShape,
        arguments: &[Arg<'_>],
    ) -> Result<()> {
        let function = self.0.function(kernel.name())?;
        let arguments: Vec<Argument> = arguments.iter().map(argument).collect();
        let launch = launch_of(shape);
        // SAFETY: the arguments are those of the kernel, whose text keeps inside the blocks
        // that it is given; a block is returned behind the work of its stream.
        unsafe { function.launch(stream, launch, &arguments) }
    }
}
