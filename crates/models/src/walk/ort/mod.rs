//! What ONNX Runtime takes for a graph, worked out as the runtime does it.
//!
//! ```text
//! lower ─→ fuse ─→ nchwc ─→ plan ─→ arena
//! ```
//!
//! The runtime does not run the graph of the file: it folds constants, fuses operators,
//! lays images out in blocks of channels, decides which tensors share a buffer, runs once
//! with a buffer for each, and from then on with one buffer for all; and all of it comes from
//! an arena that grows by doubling. Each of these steps is a file here. They follow the
//! runtime's sources of August 2026 and were checked against its own statistics
//! (docs/results); what they do not know stays as it is in the file.

mod arena;
mod fuse;
mod lower;
mod nchwc;
mod plan;

pub use arena::Extend;
pub use plan::Arenas;

pub(super) use self::lower::{Lowered, Step, cudnn_copies};
use self::plan::{DeviceContents, OrtPlan};
use super::shapes::Shaped;

/// How the runtime is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct OrtSettings {
    /// How the arena grows.
    pub extend: Extend,
    /// Channels in a block of the runtime's own layout for images; 1 for none.
    pub block: u64,
    /// Runs: the first one plans, the second one uses the plan.
    pub runs: usize,
    /// Whether weights and inputs are in the arena as well, as on a GPU.
    pub on_device: bool,
}

impl OrtSettings {
    /// The CPU provider on this machine.
    #[must_use]
    pub fn cpu() -> OrtSettings {
        let extend = Extend::NextPowerOfTwo;
        OrtSettings { extend, block: block_of_this_machine(), runs: 2, on_device: false }
    }

    /// The CUDA provider, which keeps the layout of the file.
    #[must_use]
    pub fn cuda() -> OrtSettings {
        OrtSettings { extend: Extend::NextPowerOfTwo, block: 1, runs: 2, on_device: true }
    }
}

fn block_of_this_machine() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return 16;
        }
        if std::arch::is_x86_feature_detected!("avx") {
            return 8;
        }
        1
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        1
    }
}

/// What the arena would say of a graph, and the name of the operator at the worst moment.
#[must_use]
pub fn arena(shaped: &Shaped, settings: OrtSettings) -> (Arenas, String) {
    let mut lowered = Lowered::new(shaped);
    if settings.on_device {
        lowered.on_cudnn(shaped);
    }
    fuse::fuse(&mut lowered, shaped);
    if settings.block > 1 {
        nchwc::apply(&mut lowered, shaped, settings.block);
    }
    lowered.settle();
    let arenas = if settings.on_device {
        lowered.in_place_on_cuda();
        in_any_order(&OrtPlan::new(&lowered), settings, &lowered.inside(shaped))
    } else {
        let packed = lowered.packed(shaped);
        OrtPlan::new(&lowered).simulate(settings, &packed, &DeviceContents::default())
    };
    let label = lowered.steps.get(arenas.step).map_or_else(String::new, |step| step.label.clone());
    (arenas, label)
}

/// What the arena says for several orders of the weights: as much as it holds in three of four.
///
/// The runtime takes a device's memory for one weight at a time, in the order of a hash table, which
/// differs from process to process; what the arena holds differs with it.
fn in_any_order(plan: &OrtPlan<'_>, settings: OrtSettings, inside: &DeviceContents) -> Arenas {
    const ORDERS: u64 = 15;
    /// 2^64 over the golden ratio: its odd multiples scatter numbers well.
    const SCATTER: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut found: Vec<Arenas> = (0..ORDERS)
        .map(|order| {
            let scatter = SCATTER.wrapping_mul(2 * order + 1);
            let mut weights: Vec<(u64, u64)> = (1..).zip(inside.weights.iter().copied()).collect();
            weights.sort_by_key(|(n, _): &(u64, u64)| n.wrapping_mul(scatter));
            let weights = weights.into_iter().map(|(_, bytes)| bytes).collect();
            plan.simulate(settings, &[], &DeviceContents { weights, ..inside.clone() })
        })
        .collect();
    found.sort_by_key(|arenas| arenas.reserved);
    let ends = (found[0].reserved, found[found.len() - 1].reserved);
    Arenas { reserved_between: ends, ..found[found.len() * 3 / 4] }
}

/// The steps of a graph that is run as it was written.
pub(super) fn eager_steps(shaped: &Shaped) -> Lowered {
    let mut lowered = Lowered::new(shaped);
    fuse::whole_operators(&mut lowered, shaped);
    lowered
}

#[cfg(test)]
mod tests;
