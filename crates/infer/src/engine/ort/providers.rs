//! Which providers a session is built with, and in which order they are tried.
//!
//! A [`ProviderPlan`] is one way to build the session. The plans for a GPU begin with
//! everything that was asked for and end with the CPU. The error of each failed plan is kept,
//! so that the report can say why the plan that worked was not the first.

use std::fmt;
use std::path::Path;

use ort::ep::{ArenaExtendStrategy, CPU, CUDA, ExecutionProvider, TensorRT};
use ort::memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType};
use ort::session::Session;
use ort::session::builder::{AutoDevicePolicy, GraphOptimizationLevel, SessionBuilder};

use plimsoll::backend::{BackendKind, count};

use super::runtime::Runtime;
use super::sys::session_memory::SessionMemory;
use crate::engine::{EngineDevice, EngineOptions};

/// Below this limit convolutions do not get all the workspace that they ask for.
const LARGE_LIMIT: u64 = 2 << 30;

/// One way to build a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProviderPlan {
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

impl fmt::Display for ProviderPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProviderPlan::Cpu => f.write_str("the CPU provider"),
            ProviderPlan::Cuda { device, tensorrt, graph } => {
                f.write_str(if *tensorrt { "TensorRT and CUDA" } else { "CUDA" })?;
                write!(f, " on device {device}")?;
                f.write_str(if *graph { " with a CUDA graph" } else { "" })
            }
        }
    }
}

impl ProviderPlan {
    /// The plans for a request, the best first. The CPU is the last, unless a GPU was named.
    pub(super) fn all(
        options: &EngineOptions,
        fixed_shapes: bool,
        has_cuda: bool,
    ) -> Vec<ProviderPlan> {
        let device = match options.device {
            EngineDevice::Cpu => return vec![ProviderPlan::Cpu],
            EngineDevice::Auto if !has_cuda => return vec![ProviderPlan::Cpu],
            EngineDevice::Auto => 0,
            EngineDevice::Cuda(device) => device,
        };
        let mut plans = Vec::new();
        for tensorrt in [true, false] {
            for graph in [true, false] {
                if (options.tensorrt || !tensorrt) && (options.cuda_graph && fixed_shapes || !graph)
                {
                    plans.push(ProviderPlan::Cuda { device, tensorrt, graph });
                }
            }
        }
        plans.extend((options.device == EngineDevice::Auto).then_some(ProviderPlan::Cpu));
        plans
    }

    /// The device that it runs on.
    pub(super) fn device(self) -> EngineDevice {
        match self {
            ProviderPlan::Cpu => EngineDevice::Cpu,
            ProviderPlan::Cuda { device, .. } => EngineDevice::Cuda(device),
        }
    }

    /// The memory that its tensors live in.
    pub(super) fn memory(self) -> ort::Result<MemoryInfo<'static>> {
        let (place, number) = match self {
            ProviderPlan::Cpu => (AllocationDevice::CPU, 0),
            ProviderPlan::Cuda { device, .. } => (AllocationDevice::CUDA, number(device)),
        };
        MemoryInfo::new(place, number, AllocatorType::Device, MemoryType::Default)
    }

    /// Builds a session. Its first run is profiled into a file whose name begins with
    /// `profile`; on a GPU it computes on the stream of `memory`.
    pub(super) fn build(
        self,
        runtime: &Runtime,
        model: &[u8],
        options: &EngineOptions,
        profile: &Path,
        memory: &SessionMemory,
    ) -> ort::Result<Session> {
        let mut builder = Session::builder(&runtime.environment)?
            .with_optimization_level(GraphOptimizationLevel::Level3)?
            // `ort` would choose the most efficient device; only a device that was asked for
            // may be used.
            .with_auto_device(AutoDevicePolicy::PreferCPU)?
            .with_profiling(profile)?;
        if let Some(threads) = options.threads {
            builder = builder.with_intra_threads(threads.max(1))?;
        }
        self.register(&mut builder, options, memory)?;
        builder.commit_from_memory(model)
    }

    fn register(
        self,
        builder: &mut SessionBuilder,
        options: &EngineOptions,
        memory: &SessionMemory,
    ) -> ort::Result<()> {
        let limit = options.memory_limit.map(|limit| limit.0);
        if let ProviderPlan::Cuda { device, tensorrt, graph } = self {
            if tensorrt {
                let mut provider =
                    TensorRT::default().with_device_id(number(device)).with_cuda_graph(graph);
                if let Some(limit) = limit {
                    // Half of the limit: the engine's own buffers need the rest.
                    provider = provider.with_max_workspace_size(size(limit / 2));
                }
                provider.build().register(builder)?;
            }
            // Only one of them may capture the graph; TensorRT does where it runs.
            let mut provider =
                CUDA::default().with_device_id(number(device)).with_cuda_graph(graph && !tensorrt);
            if graph {
                // The layout of tensor cores: fewer kernels that only transpose tensors.
                provider = provider.with_prefer_nhwc(true);
            }
            if let Some(limit) = limit {
                provider = provider
                    .with_memory_limit(size(limit))
                    // Doubling would reach the limit with half of it unused.
                    .with_arena_extend_strategy(ArenaExtendStrategy::SameAsRequested)
                    .with_conv_max_workspace(limit >= LARGE_LIMIT);
            }
            memory.on_our_stream(provider)?.build().register(builder)?;
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

/// Whether the library was built with CUDA and there is a GPU: without one, running on the CPU
/// is not a fallback.
pub(super) fn has_cuda() -> bool {
    CUDA::is_available().unwrap_or(false) && count(BackendKind::Cuda).is_ok_and(|gpus| gpus > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plans(device: EngineDevice, change: impl Fn(&mut EngineOptions), cuda: bool) -> Vec<String> {
        let mut options = EngineOptions { device, ..EngineOptions::default() };
        change(&mut options);
        ProviderPlan::all(&options, true, cuda).iter().map(ProviderPlan::to_string).collect()
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
