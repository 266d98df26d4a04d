//! Which kernels make the occupancy of clouds on the device, by their shape alone.
//!
//! Three ways, each the quickest for some shapes:
//!
//! - `Slabs`: one launch, bits in shared memory. Every block of a cloud goes through all of its
//!   points, so it is for grids that few blocks share.
//! - `Direct`: the output is cleared and lit. For outputs that stay in the second-level cache.
//! - `Bits`: bits in device memory, then spread. For the rest.
//!
//! The figures were measured on an H200 and are scaled by the number of multiprocessors; they
//! decide about speed, never about the result.

/// What a plan is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) clouds: u64,
    /// Of each cloud.
    pub(super) points: u64,
    /// Of each grid.
    pub(super) voxels: u64,
    /// Of a voxel in the output.
    pub(super) cell: u64,
    pub(super) multiprocessors: u64,
    /// The most shared memory that a block can have.
    pub(super) shared: u64,
}

/// How it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Plan {
    /// `placed`: points are placed once before, as many blocks go through them.
    Slabs {
        slabs: u64,
        words: u64,
        placed: bool,
    },
    Direct,
    Bits,
}

/// Seconds for a point that a block goes through.
const VISIT: f64 = 0.26e-9;
/// The same where points were placed before.
const PLACED_VISIT: f64 = 0.2e-9;
/// Seconds and multiprocessors for a point that is placed before.
const PLACE: f64 = 0.8e-9;
/// Seconds that one more kernel takes.
const KERNEL: f64 = 3e-6;
/// Bytes a second and multiprocessor, of a plain stream.
const STREAM: f64 = 33e9;
/// Points a second and multiprocessor that are marked in device memory.
const MARK: f64 = 0.4e9;
/// Up to here an output stays in the cache until it is lit.
const CACHED: u64 = 16 << 20;
/// Shared memory that a kernel keeps for itself.
const OWN_SHARED: u64 = 1 << 10;

impl Plan {
    pub(super) fn of(facts: &Facts) -> Plan {
        let output = facts.clouds.saturating_mul(facts.voxels).saturating_mul(facts.cell);
        if output <= CACHED && output.is_multiple_of(16) {
            return Plan::Direct;
        }
        let least =
            slab_bytes(facts.voxels).div_ceil(facts.shared.saturating_sub(OWN_SHARED).max(1));
        let choices = (least.max(1)..=least.saturating_mul(4)).flat_map(|slabs| {
            let words = (facts.voxels.div_ceil(32)).div_ceil(slabs).next_multiple_of(32);
            [false, true].map(|placed| {
                (Plan::Slabs { slabs, words, placed }, slabs_take(facts, slabs, placed))
            })
        });
        // NOWHERE must be past every voxel.
        let choices = choices.filter(|(plan, _)| {
            facts.voxels <= 1 << 31 || !matches!(plan, Plan::Slabs { placed: true, .. })
        });
        let bits = (Plan::Bits, bits_take(facts));
        let best = choices.chain([bits]).min_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map_or(Plan::Bits, |(plan, _)| plan)
    }
}

fn slab_bytes(voxels: u64) -> u64 {
    voxels.div_ceil(8)
}

fn output_takes(facts: &Facts) -> f64 {
    let bytes = facts.clouds as f64 * facts.voxels as f64 * facts.cell as f64;
    bytes / (STREAM * facts.multiprocessors as f64)
}

fn slabs_take(facts: &Facts, slabs: u64, placed: bool) -> f64 {
    let processors = facts.multiprocessors.max(1);
    let blocks = facts.clouds.saturating_mul(slabs);
    let rounds = blocks.div_ceil(processors);
    let points = facts.clouds as f64 * facts.points as f64;
    let (visit, before) = if placed {
        (PLACED_VISIT, KERNEL + points * PLACE / processors as f64)
    } else {
        (VISIT, 0.0)
    };
    // A round writes at full speed, or as fast as the blocks that it has can.
    let slab = output_takes(facts) / blocks as f64;
    let last = blocks - (rounds - 1) * processors;
    let round = |blocks: u64| slab * (blocks as f64).max(processors as f64 / 2.0);
    let writing = (rounds - 1) as f64 * round(processors) + round(last);
    // Idle multiprocessors are worth a little: more blocks share what they read.
    let idle = 1.0 + 0.02 * (1.0 - (last as f64 / processors as f64).min(1.0));
    before + (rounds as f64 * facts.points as f64 * visit + writing) * idle
}

fn bits_take(facts: &Facts) -> f64 {
    let points = facts.clouds as f64 * facts.points as f64;
    let marking = points / (MARK * facts.multiprocessors as f64);
    // The bits are fetched back while the output is written, and that costs.
    marking + 1.6 * output_takes(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(clouds: u64, points: u64, side: u64) -> Plan {
        Plan::of(&Facts {
            clouds,
            points,
            voxels: side * side * side,
            cell: 4,
            multiprocessors: 132,
            shared: 227 << 10,
        })
    }

    #[test]
    fn shapes_get_the_plan_that_is_quickest_for_them() {
        let slabs = |slabs, words, placed| Plan::Slabs { slabs, words, placed };
        assert_eq!(plan(64, 100_000, 128), slabs(2, 32_768, false));
        assert_eq!(plan(32, 1_000_000, 128), slabs(4, 16_384, false));
        assert_eq!(plan(16, 200_000, 256), slabs(16, 32_768, true));
        assert_eq!(plan(1, 500_000, 128), Plan::Direct);
        assert_eq!(plan(1, 5_000_000, 1024), Plan::Bits);
    }

    #[test]
    fn slabs_cover_every_voxel_and_fit() {
        for side in [65, 128, 200, 256] {
            if let Plan::Slabs { slabs, words, .. } = plan(40, 10_000, side) {
                assert!(slabs * words * 32 >= side * side * side);
                assert!(words * 4 <= 227 << 10);
            }
        }
    }
}
