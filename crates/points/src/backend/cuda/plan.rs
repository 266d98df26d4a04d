//! Which kernels make the occupancy of clouds on the device, by their shape alone.
//!
//! Four ways, each the quickest for some shapes:
//!
//! - `Slabs`: one launch, bits in shared memory. Every slab of a cloud's grid goes through all of
//!   its points, so it is for grids of few slabs; two blocks may share the points of a slab.
//! - `Direct`: the output is cleared and lit. For outputs that stay in the second-level cache.
//! - `Exchange`: one launch of blocks that hand points to each other and write every line once.
//!   For one large cloud in such an output, where lighting would cost more than clearing.
//! - `Bits`: bits in device memory, then spread. For the rest.
//!
//! The figures were measured on an H200 and are scaled by the number of multiprocessors; they
//! decide about speed, never about the result.

/// What a plan is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PlanFacts {
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
    /// Whether blocks can see into each other's.
    pub(super) clusters: bool,
    /// Whether blocks can be there at once, and wait for each other.
    pub(super) together: bool,
}

/// How it is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum VoxelPlan {
    /// `slabs` of `words` words each; `parts` blocks share the points of each slab.
    Slabs {
        slabs: u64,
        words: u64,
        parts: u64,
    },
    Direct,
    Exchange(Exchange),
    Bits,
}

/// A block for every slab, and about one for every multiprocessor; each sorts its points into a
/// bin for every slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Exchange {
    pub(super) slabs: u64,
    /// A slab has 2 to the power of this many voxels.
    pub(super) slab_bits: u32,
    /// A bin has 2 to the power of this many vectors of eight short numbers.
    pub(super) vector_bits: u32,
}

impl Exchange {
    fn of(facts: &PlanFacts) -> Option<Exchange> {
        let most = facts.multiprocessors;
        if !facts.together || facts.clouds != 1 || facts.points < WORTH_SORTING * most {
            return None;
        }
        let slab_bits = facts.voxels.div_ceil(most).next_power_of_two().ilog2();
        let slabs = facts.voxels.div_ceil(1 << slab_bits);
        // What an even cloud puts into a bin and 5.5 times its spread, behind their count: one launch
        // in hundreds has a bin that is full.
        let each = facts.points as f64 / (slabs * slabs) as f64;
        let numbers = each + 5.5 * each.sqrt() + 1.0;
        let vector_bits = ((numbers / 8.0).ceil() as u64).next_power_of_two().ilog2();
        let it = Exchange { slabs, slab_bits, vector_bits };
        // Places are short numbers, a slab is cleared by vectors, a bin's vectors are read by one
        // warp; and a quarter of the device without work costs more than this saves.
        let fits = (4..=16).contains(&slab_bits)
            && vector_bits <= 5
            && it.shared() + COUNTS <= facts.shared
            && slabs * 4 >= most * 3;
        fits.then_some(it)
    }

    /// Shared memory of a block: its bins, and its slab as bytes.
    pub(super) fn shared(&self) -> u64 {
        (self.slabs << (self.vector_bits + 4)) + (1 << self.slab_bits)
    }

    /// Device memory that the bins are left in.
    pub(super) fn left(&self) -> u64 {
        (self.slabs * self.slabs) << (self.vector_bits + 4)
    }
}

/// Seconds for a point that a block goes through.
const VISIT: f64 = 0.19e-9;
/// What writing takes where bits are fetched from another block as well.
const TOGETHER: f64 = 1.4;
/// Bytes a second and multiprocessor, of a plain stream.
const STREAM: f64 = 33e9;
/// Points a second and multiprocessor that are marked in device memory.
const MARK: f64 = 0.4e9;
/// Up to here an output stays in the cache until it is lit.
const CACHED: u64 = 16 << 20;
/// Shared memory that a kernel keeps for itself.
const OWN_SHARED: u64 = 1 << 10;
/// What sorting keeps for itself.
const COUNTS: u64 = 5 << 10;
/// Points for each multiprocessor from which on sorting them costs less than lighting them.
const WORTH_SORTING: u64 = 1700;

impl VoxelPlan {
    pub(super) fn of(facts: &PlanFacts) -> VoxelPlan {
        let output = facts.clouds.saturating_mul(facts.voxels).saturating_mul(facts.cell);
        if output <= CACHED && output.is_multiple_of(16) {
            return Exchange::of(facts).map_or(VoxelPlan::Direct, VoxelPlan::Exchange);
        }
        let least =
            slab_bytes(facts.voxels).div_ceil(facts.shared.saturating_sub(OWN_SHARED).max(1));
        let choices = (least.max(1)..=least.saturating_mul(4)).flat_map(|slabs| {
            let words = (facts.voxels.div_ceil(32)).div_ceil(slabs).next_multiple_of(32);
            let most = if facts.clusters { 2 } else { 1 };
            (1..=most).map(move |parts| {
                (VoxelPlan::Slabs { slabs, words, parts }, slabs_take(facts, slabs, parts))
            })
        });
        let bits = (VoxelPlan::Bits, bits_take(facts));
        let best = choices.chain([bits]).min_by(|(_, a), (_, b)| a.total_cmp(b));
        best.map_or(VoxelPlan::Bits, |(plan, _)| plan)
    }
}

fn slab_bytes(voxels: u64) -> u64 {
    voxels.div_ceil(8)
}

fn output_takes(facts: &PlanFacts) -> f64 {
    let bytes = facts.clouds as f64 * facts.voxels as f64 * facts.cell as f64;
    bytes / (STREAM * facts.multiprocessors as f64)
}

fn slabs_take(facts: &PlanFacts, slabs: u64, parts: u64) -> f64 {
    let processors = facts.multiprocessors.max(1);
    let blocks = facts.clouds.saturating_mul(slabs).saturating_mul(parts).max(1);
    let rounds = blocks.div_ceil(processors);
    let points = facts.points.div_ceil(parts) as f64;
    // A round writes at full speed, or as fast as the blocks that it has can.
    let slab = output_takes(facts) / blocks as f64;
    let last = blocks - (rounds - 1) * processors;
    let round = |blocks: u64| slab * (blocks as f64).max(processors as f64 / 2.0);
    let writing = (rounds - 1) as f64 * round(processors) + round(last);
    let writing = if parts > 1 { writing * TOGETHER } else { writing };
    // Idle multiprocessors are worth a little: more blocks share what they read.
    let idle = 1.0 + 0.02 * (1.0 - (last as f64 / processors as f64).min(1.0));
    (rounds as f64 * points * VISIT + writing) * idle
}

fn bits_take(facts: &PlanFacts) -> f64 {
    let points = facts.clouds as f64 * facts.points as f64;
    let marking = points / (MARK * facts.multiprocessors as f64);
    // The bits are fetched back while the output is written, and that costs.
    marking + 1.6 * output_takes(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(clouds: u64, points: u64, side: u64) -> VoxelPlan {
        VoxelPlan::of(&PlanFacts {
            clouds,
            points,
            voxels: side * side * side,
            cell: 4,
            multiprocessors: 132,
            shared: 227 << 10,
            clusters: true,
            together: true,
        })
    }

    #[test]
    fn shapes_get_the_plan_that_is_quickest_for_them() {
        let slabs = |slabs, words, parts| VoxelPlan::Slabs { slabs, words, parts };
        assert_eq!(plan(64, 100_000, 128), slabs(2, 32_768, 1));
        assert_eq!(plan(32, 1_000_000, 128), slabs(2, 32_768, 2));
        assert_eq!(plan(16, 200_000, 256), slabs(16, 32_768, 1));
        assert_eq!(plan(1, 200_000, 128), VoxelPlan::Direct);
        assert_eq!(plan(2, 500_000, 64), VoxelPlan::Direct);
        let exchange = Exchange { slabs: 128, slab_bits: 14, vector_bits: 3 };
        assert_eq!(plan(1, 500_000, 128), VoxelPlan::Exchange(exchange));
        assert_eq!(plan(1, 5_000_000, 1024), VoxelPlan::Bits);
    }

    #[test]
    fn bins_have_room_and_slabs_an_owner() {
        for (points, side) in [(300_000, 60), (1_000_000, 128), (2_500_000, 100), (900_000, 125)] {
            let VoxelPlan::Exchange(it) = plan(1, points, side) else {
                assert_eq!(side, 125, "{points}");
                continue;
            };
            assert!(it.slabs <= 132 && it.slabs << it.slab_bits >= side * side * side);
            let room = (8 << it.vector_bits) - 1;
            assert!(points / (it.slabs * it.slabs) < room, "{points} {side}");
            assert!(it.shared() + COUNTS <= 227 << 10);
        }
    }

    #[test]
    fn slabs_cover_every_voxel_and_fit() {
        for side in [65, 128, 200, 256] {
            if let VoxelPlan::Slabs { slabs, words, .. } = plan(40, 10_000, side) {
                assert!(slabs * words * 32 >= side * side * side);
                assert!(words * 4 <= 227 << 10);
            }
        }
    }
}
