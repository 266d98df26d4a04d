//! How work is cut: from what one cloud takes, and what there is.

use plimsoll_memory::{Bytes, ChunkPlan, Error, Result, SAFETY_MARGIN};

use super::VoxelJob;
use crate::backend::VoxelBackend as _;
use crate::backend::host::{VoxelHost, one_cloud_bytes, passing_bytes};
use crate::spec::VoxelSpec;

/// The most that is made before it is written: more gains nothing, and keeps the caches busy.
pub(super) const MOST_AT_ONCE: u64 = 256 << 20;
/// Voxels of the smallest slab, and what every slab but the last is a multiple of.
const SMALLEST_SLAB: u64 = 1 << 14;

/// How the work was cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cut {
    /// Clouds of a chunk.
    pub clouds: u64,
    /// Pieces that the grid of one cloud is cut into.
    pub slabs: u64,
    /// Voxels of all slabs but the last.
    pub slab_voxels: u64,
}

impl VoxelJob<'_> {
    /// How the work will be cut.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for chunks of no clouds; [`Error::NeverFits`] where the host makes them, and
    /// has no room even for one cloud and the smallest part of its grid.
    pub fn cut(&self) -> Result<Cut> {
        if self.chunk == Some(0) {
            return Err(Error::Config {
                field: "chunk",
                value: "0".to_string(),
                range: "auto or a number of clouds above 0",
            });
        }
        let voxels = self.spec.grid().voxels();
        let points = self.batch.counts().max().unwrap_or(0);
        let needs = self.needs(points);
        let result = self.spec.cloud_bytes(voxels);
        // Every slab goes through all points, so it makes no fewer bytes than they have.
        let ample = MOST_AT_ONCE.max(points.saturating_mul(12));
        let one = needs.one(voxels, 1);
        if one > needs.usable() || result / 4 > ample {
            return self.slabs(&needs, ample);
        }
        // The result of a chunk waits on the host until it is written.
        let waiting = result.saturating_add(needs.each);
        let most = Bytes((MOST_AT_ONCE.max(one.get()) as f64 / SAFETY_MARGIN).ceil() as u64);
        let room = self.room.saturating_sub(Bytes(needs.fixed));
        let most = if self.chunk.is_some() { room } else { most.min(room) };
        let fitting = |among| {
            let one = needs.one(voxels, among).max(Bytes(waiting));
            let plan = ChunkPlan::new(self.batch.clouds(), one, most).config();
            plan.map_or(1, |plan| plan.chunk_size.clamp(1, self.batch.most_at_once()))
        };
        // Where there are clouds enough for everybody, none is shared, which takes less.
        let among = fitting(u64::MAX);
        let fitting = if needs.one(voxels, among) < one { among } else { fitting(1) };
        let clouds = self.chunk.map_or(fitting, |wanted| wanted.min(fitting));
        Ok(Cut { clouds, slabs: 1, slab_voxels: voxels })
    }

    /// What the work takes where it is made, the longest cloud having so many points.
    fn needs(&self, points: u64) -> WorkNeeds<'_> {
        // Points that must be loaded are the host's, whoever makes voxels of them.
        let of_features = self.spec.mode().of_features();
        let loaded = self.batch.loaded(of_features);
        // Features are gone through by voxel, all over a cloud.
        let each = if of_features { loaded.each.saturating_add(loaded.whole) } else { loaded.each };
        let left = self.backend.left_to_host(&self.spec, self.spec.grid().voxels()).is_some();
        let on_host = left || self.backend.name() == VoxelHost::default().name();
        let available = if left { self.room } else { self.available };
        let stride = (loaded.point / 4) as usize;
        let read = points.saturating_mul(self.batch.clouds());
        let passing = if loaded.point > 0 { passing_bytes(read, stride) } else { 0 };
        let fixed = loaded.fixed().saturating_add(if on_host { passing } else { 0 });
        WorkNeeds { job: self, on_host, available, points, each, fixed }
    }

    /// One cloud is too large, or so large that nobody would hear of it for long: slabs of its
    /// grid, of which one fits beside what no cut makes smaller. Where not even that fits on a device,
    /// slabs that are little beside it; the host takes what a device refuses.
    fn slabs(&self, needs: &WorkNeeds<'_>, ample: u64) -> Result<Cut> {
        let voxels = self.spec.grid().voxels();
        let mut usable = needs.usable();
        if !needs.on_host {
            let fixed = needs.one(0, 1);
            usable = usable.max(Bytes(fixed.get().saturating_add(fixed.get() / 16)));
        }
        let mut slab_voxels = voxels;
        while slab_voxels > SMALLEST_SLAB {
            // Bits of a slab begin with a word.
            slab_voxels =
                slab_voxels.div_ceil(2).next_multiple_of(SMALLEST_SLAB).min(slab_voxels - 1);
            if needs.one(slab_voxels, 1) <= usable && self.spec.cloud_bytes(slab_voxels) <= ample {
                break;
            }
        }
        slab_voxels = slab_voxels.next_multiple_of(SMALLEST_SLAB).min(voxels);
        needs.check(slab_voxels)?;
        Ok(Cut { clouds: 1, slabs: voxels.div_ceil(slab_voxels), slab_voxels })
    }
}

/// What the work takes, where it is made.
struct WorkNeeds<'n> {
    job: &'n VoxelJob<'n>,
    on_host: bool,
    available: Bytes,
    /// Of the longest cloud.
    points: u64,
    /// Of every cloud that is loaded, on the host.
    each: u64,
    /// Whatever is made at a time, on the host.
    fixed: u64,
}

impl WorkNeeds<'_> {
    /// What a cloud and so many of its voxels take, made among so many clouds.
    fn one(&self, span: u64, clouds: u64) -> Bytes {
        let spec = &self.job.spec;
        if self.on_host {
            let own = one_cloud_bytes(spec, self.points, span, clouds);
            return Bytes(own.saturating_add(self.each));
        }
        Bytes(self.job.backend.working_bytes(spec, self.points, span))
    }

    /// What there is for clouds that are made at a time.
    fn usable(&self) -> Bytes {
        let usable = self.available.fraction(SAFETY_MARGIN);
        if self.on_host { usable.saturating_sub(Bytes(self.fixed)) } else { usable }
    }

    /// An error where the host can never make so many voxels of a cloud.
    fn check(&self, span: u64) -> Result<()> {
        let plan = ChunkPlan::new(1, self.one(span, 1), self.available);
        match plan.with_fixed(Bytes(self.fixed)).config() {
            Err(Error::NeverFits { memory, requested, capacity }) if self.on_host => {
                let points = self.points;
                let memory = format!(
                    "{memory}, to make grids of {points} points in parts (of occupancy and counts, \
                     those of a .bin or a .npy of little-endian f32 stay in the file)"
                );
                Err(Error::NeverFits { memory, requested, capacity })
            }
            _ => Ok(()),
        }
    }
}

impl Cut {
    /// Items of a chunk: clouds, or one slab.
    pub(super) fn at_once(&self) -> u64 {
        if self.slabs > 1 { 1 } else { self.clouds }
    }

    /// Slabs of half the size, and what the item `done` is among them; none where there are no
    /// smaller ones.
    pub(super) fn halved(&self, spec: &VoxelSpec, done: u64) -> Option<(Cut, u64)> {
        let voxels = spec.grid().voxels();
        let half = match self.slabs {
            1 => self.slab_voxels.div_ceil(2).next_multiple_of(SMALLEST_SLAB),
            // So every slab is two of the new ones, and these begin with a word all the same.
            _ => self.slab_voxels / 2,
        };
        if half >= self.slab_voxels || half % 64 != 0 {
            return None;
        }
        let cut = Cut { clouds: 1, slabs: voxels.div_ceil(half), slab_voxels: half };
        Some((cut, done / self.slabs * cut.slabs + done % self.slabs * 2))
    }
}
