//! Which providers a session is built with, in which order of hope.
//!
//! A [`Plan`] is one way to build the session. The plans for a GPU go from the most that
//! was asked for to the CPU; each failure is kept in words, so that the plan that worked
//! can say what it is instead of.

use std::fmt;
use std::path::Path;

use ort::ep::{ArenaExtendStrategy, CPU, CUDA, ExecutionProvider, TensorRT};
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::session::builder::{AutoDevicePolicy, GraphOptimizationLevel, SessionBuilder};

use plimsoll::backend::{BackendKind, count};

use super::runtime::Runtime;
use super::sys::lane::Lane;
use crate::engine::{EngineDevice, EngineOptions};

/// Below this line convolutions are not given all the workspace that they like.
const ROOMY: u64 = 2 << 30;

/// One way to build a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// On the CPU.
    Cpu,
    /// On a GPU.
    Cuda {
        /// Which one.
        device: u32,
        /// Through TensorRT where it can.
        tensorrt: bool,
        /// Recorded once and replayed.
        graph: bool,
    },
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Plan::Cpu => f.write_str("the CPU provider"),
            Plan::Cuda { device, tensorrt, graph } => {
                f.write_str(if *tensorrt { "TensorRT and CUDA" } else { "CUDA" })?;
                write!(f, " on device {device}")?;
                f.write_str(if *graph { " with a CUDA graph" } else { "" })
            }
        }
    }
}

impl Plan {
    /// The plans for a request, the best first. The CPU is the last, unless a GPU was named.
    pub(super) fn all(options: &EngineOptions, fixed_shapes: bool, has_cuda: bool) -> Vec<Plan> {
        let device = match options.device {
            EngineDevice::Cpu => return vec![Plan::Cpu],
            EngineDevice::Auto if !has_cuda => return vec![Plan::Cpu],
            EngineDevice::Auto => 0,
            EngineDevice::Cuda(device) => device,
        };
        let mut plans = Vec::new();
        for tensorrt in [true, false] {
            for graph in [true, false] {
                if (options.tensorrt || !tensorrt) && (options.cuda_graph && fixed_shapes || !graph)
                {
                    plans.push(Plan::Cuda { device, tensorrt, graph });
                }
            }
        }
        plans.extend((options.device == EngineDevice::Auto).then_some(Plan::Cpu));
        plans
    }

    /// Where it runs, as users name it.
    pub(super) fn device(self) -> EngineDevice {
        match self {
            Plan::Cpu => EngineDevice::Cpu,
            Plan::Cuda { device, .. } => EngineDevice::Cuda(device),
        }
    }

    /// The memory that its tensors live in.
    pub(super) fn memory(self) -> ort::Result<MemoryInfo<'static>> {
        let (place, number) = match self {
            Plan::Cpu => (AllocationDevice::CPU, 0),
            Plan::Cuda { device, .. } => (AllocationDevice::CUDA, number(device)),
        };
        MemoryInfo::new(place, number, AllocatorType::Device, MemoryType::Default)
    }

    /// Builds a session. `profile` is the stem of the file that its first run is
    /// profiled into; a lane's stream is the one that it works on.
    pub(super) fn build(
        self,
        runtime: &Runtime,
        model: &[u8],
        options: &EngineOptions,
        profile: &Path,
        lane: &Lane,
    ) -> ort::Result<Session> {
        let mut builder = Session::builder(&runtime.environment)?
            .with_optimization_level(GraphOptimizationLevel::Level3)?
            // `ort` asks for the most efficient device; what was not asked for by name
            // must not be chosen.
            .with_auto_device(AutoDevicePolicy::PreferCPU)?
            .with_profiling(profile)?;
        if let Some(threads) = options.threads {
            builder = builder.with_intra_threads(threads.max(1))?;
        }
        self.register(&mut builder, options, lane)?;
        builder.commit_from_memory(model)
    }

    fn register(
        self,
        builder: &mut SessionBuilder,
        options: &EngineOptions,
        lane: &Lane,
    ) -> ort::Result<()> {
        let limit = options.memory_limit.map(|limit| limit.0);
        if let Plan::Cuda { device, tensorrt, graph } = self {
            if tensorrt {
                let mut provider =
                    TensorRT::default().with_device_id(number(device)).with_cuda_graph(graph);
                if let Some(limit) = limit {
                    // Half of the line: the engine's own buffers need the rest.
                    provider = provider.with_max_workspace_size(size(limit / 2));
                }
                provider.build().register(builder)?;
            }
            // Where TensorRT records the graph CUDA must not as well.
            let mut provider =
                CUDA::default().with_device_id(number(device)).with_cuda_graph(graph && !tensorrt);
            if graph {
                // The layout that tensor cores want: fewer kernels that only turn tensors.
                provider = provider.with_prefer_nhwc(true);
            }
            if let Some(limit) = limit {
                provider = provider
                    .with_memory_limit(size(limit))
                    // Doubling would run into the line with half of it empty.
                    .with_arena_extend_strategy(ArenaExtendStrategy::SameAsRequested)
                    .with_conv_max_workspace(limit >= ROOMY);
            }
            lane.on(provider).build().register(builder)?;
        }
        CPU::default().with_arena_allocator(true).register(builder)
    }
}

fn number(device: u32) -> i32 {
    i32::try_from(device).unwrap_or(i32::MAX)
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

/// Whether the library was built with CUDA in it, and there is a GPU for it: without one the
/// CPU is no fallback.
pub(super) fn has_cuda() -> bool {
    CUDA::is_available().unwrap_or(false) && count(BackendKind::Cuda).is_ok_and(|gpus| gpus > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plans(device: EngineDevice, change: impl Fn(&mut EngineOptions), cuda: bool) -> Vec<String> {
        let mut options = EngineOptions { device, ..EngineOptions::default() };
        change(&mut options);
        Plan::all(&options, true, cuda).iter().map(Plan::to_string).collect()
    }

    #[test]
    fn the_cpu_is_the_last_hope_unless_a_gpu_is_named() {
        assert_eq!(plans(EngineDevice::Cpu, |_| (), true), ["the CPU provider"]);
        assert_eq!(plans(EngineDevice::Auto, |_| (), false), ["the CPU provider"]);
        let graph = "CUDA on device 0 with a CUDA graph";
        let all = [graph, "CUDA on device 0", "the CPU provider"];
        assert_eq!(plans(EngineDevice::Auto, |_| (), true), all);
        let named = plans(EngineDevice::Cuda(0), |_| (), false);
        assert_eq!(named, all[..2], "by name it is tried all the same, and nothing else is");
        assert_eq!(plans(EngineDevice::Cuda(0), |o| o.cuda_graph = false, true), all[1..2]);
        let with_tensorrt = plans(EngineDevice::Cuda(1), |options| options.tensorrt = true, true);
        assert_eq!(with_tensorrt.len(), 4);
        assert_eq!(with_tensorrt[0], "TensorRT and CUDA on device 1 with a CUDA graph");
    }
}
