//! Hard voxels of a batch in files: some clouds at a time, each on the device where it fits, or on
//! the host, a part of its voxels after the other. Where its points do not fit there, they are read
//! again for each part.

use plimsoll_memory::{Bytes, ChunkPlan, Error, Result, SAFETY_MARGIN};

use super::plan::MOST_AT_ONCE;
use super::{VoxelJob, VoxelProgress, go_on};
use crate::backend::VoxelBackend;
use crate::backend::host::VoxelHost;
use crate::cloud::Cloud;
use crate::network::{HardPasses, HardSpec, HardVoxels, MOST_POINTS, PassRoom, PointBatch};

/// Hard voxels to make, and within what.
pub type HardJob<'a> = VoxelJob<'a, HardSpec>;

/// What the work came to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct HardReport {
    /// Points that came in.
    pub points: u64,
    /// Points dropped because a coordinate is NaN or infinite.
    pub not_finite: u64,
    /// Points dropped because they lie outside the range.
    pub outside: u64,
    /// Voxels made.
    pub voxels: u64,
    /// Points in them.
    pub kept: u64,
    /// Who made it: the backend of the job, or the host where that made all in its stead.
    pub backend: String,
    /// Clouds that were read at a time.
    pub clouds_per_chunk: u64,
    /// Chunks that were made.
    pub chunks: u64,
    /// Times that memory was refused and a part was halved.
    pub retries: u64,
    /// Times that the points of a cloud were read, at most.
    pub reads: u64,
    /// Why some of it was made on the host after all.
    pub fallback: Option<String>,
    /// The most that was held at once on the host for points, voxels and, at most, what lies
    /// between.
    pub peak_bytes: u64,
}

/// Takes voxels as they are made.
pub type HardSink<'s> = &'s mut dyn FnMut(&HardVoxels) -> Result<()>;

impl HardJob<'_> {
    /// Does all of it.
    ///
    /// # Errors
    ///
    /// [`Error::NeverFits`] where the room is too small even to read one cloud in parts; what reading,
    /// making or writing ended with; [`Error::Device`] where `progress` ended it.
    pub fn run(&self, sink: HardSink<'_>, progress: VoxelProgress<'_>) -> Result<HardReport> {
        let (total, columns) = (self.batch.clouds(), self.batch.features()? + 3);
        let at_once = self.clouds_at_once(columns)?;
        let loaded = self.batch.loaded(true);
        let taken = Bytes(loaded.each.saturating_mul(at_once).saturating_add(loaded.fixed()));
        let mut work = HardWork {
            job: self,
            passes: HardPasses::new(self.spec),
            made: HardVoxels::default(),
            room: self.room_on_host().fraction(SAFETY_MARGIN).saturating_sub(taken),
            loaded: 0,
            on_device: 0,
            report: HardReport {
                backend: self.backend.name(),
                clouds_per_chunk: at_once,
                ..HardReport::default()
            },
        };
        let mut done = 0;
        while done < total {
            let end = (done + at_once).min(total);
            let clouds = self.batch.load(done..end, true)?;
            work.loaded = loaded.held_by(&clouds);
            work.report.peak_bytes = work.report.peak_bytes.max(work.loaded + loaded.beside);
            for (cloud, number) in clouds.iter().zip(done..) {
                let mut look = || go_on(progress(number, total));
                work.cloud(cloud, number as usize, sink, &mut look)?;
            }
            work.report.chunks += 1;
            done = end;
            go_on(progress(done, total))?;
        }
        if work.on_device == 0 && work.report.fallback.is_some() {
            work.report.backend = VoxelHost::default().name();
        }
        Ok(work.report)
    }

    /// Clouds that are read at a time. They are made one after the other, so that what making one
    /// takes is taken once.
    fn clouds_at_once(&self, columns: usize) -> Result<u64> {
        let points = self.batch.counts().max().unwrap_or(0);
        let loaded = self.batch.loaded(true);
        let least = PassRoom::least(&self.spec, points).bytes(&self.spec, points, columns);
        let fixed = Bytes(least.saturating_add(loaded.fixed()));
        let each = Bytes(loaded.each.max(1));
        let room = self.room_on_host();
        let plan = ChunkPlan::new(self.batch.clouds(), each, room).with_fixed(fixed).config();
        let plan = plan.map_err(|error| match error {
            Error::NeverFits { memory, requested, capacity } => {
                let memory = format!("{memory}, to make voxels of {points} points in parts");
                Error::NeverFits { memory, requested, capacity }
            }
            other => other,
        })?;
        let ample = (MOST_AT_ONCE / points.saturating_mul(4 * columns as u64).max(1)).max(1);
        let fitting = plan.chunk_size.clamp(1, self.batch.most_at_once());
        Ok(self.chunk.map_or(fitting.min(ample), |wanted| wanted.clamp(1, fitting)))
    }

    /// What may be used of the host's memory.
    fn room_on_host(&self) -> Bytes {
        let host = self.backend.name() == VoxelHost::default().name();
        if host { self.room.min(self.available) } else { self.room }
    }
}

/// The work as far as it is done.
struct HardWork<'w> {
    job: &'w HardJob<'w>,
    passes: HardPasses,
    made: HardVoxels,
    /// What may be held on the host beside the clouds of a chunk.
    room: Bytes,
    /// What the clouds of the chunk take.
    loaded: u64,
    /// Clouds that the device made.
    on_device: u64,
    report: HardReport,
}

impl HardWork<'_> {
    fn cloud(
        &mut self,
        cloud: &Cloud,
        number: usize,
        sink: HardSink<'_>,
        look: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let (points, columns) = (cloud.len() as u64, cloud.stride());
        self.report.points += points;
        if self.report.backend == VoxelHost::default().name() {
            return self.on_host(cloud, number, sink, look);
        }
        // Points that are in memory are counted already.
        let own = points.saturating_mul(4 * columns as u64) - cloud.bytes_in_memory();
        let least = Bytes(own.saturating_add(self.job.spec.voxel_bytes(columns)));
        let on_device = Bytes(self.job.backend.hard_bytes(&self.job.spec, columns, points));
        let name = self.job.backend.name();
        let why = if points > MOST_POINTS as u64 {
            Some(format!("{name} makes clouds of at most {MOST_POINTS} points"))
        } else if least > self.room {
            Some(format!("{name} takes points from memory, where these do not fit"))
        } else if on_device > self.job.available {
            let left = self.job.available;
            Some(format!("it would take {on_device} on {name}, where {left} may be used"))
        } else {
            None
        };
        if let Some(why) = why {
            self.report.fallback = Some(format!("cloud {number} was made on the host: {why}"));
            return self.on_host(cloud, number, sink, look);
        }
        let floats = cloud.floats()?;
        let batch = PointBatch::one(&floats, columns)?.numbered_from(number);
        if self.on_device(&batch)? {
            let mut made = HardCounts::default();
            made.add(&self.made);
            self.count(made);
            let result = made.voxels.saturating_mul(self.job.spec.voxel_bytes(columns));
            self.hold(own + result, 1);
            return sink(&self.made);
        }
        drop(floats);
        self.on_host(cloud, number, sink, look)
    }

    /// Whether the device made it. The host does where there is no memory, or nobody asked for
    /// this device and it cannot.
    fn on_device(&mut self, batch: &PointBatch<'_>) -> Result<bool> {
        let (job, name) = (self.job, self.job.backend.name());
        match job.backend.hard(batch, &job.spec, &mut self.made) {
            Ok(()) => {
                self.on_device += 1;
                Ok(true)
            }
            Err(error) if error.is_out_of_memory() => {
                self.report.fallback = Some(format!("{name} refused a cloud: {error}"));
                Ok(false)
            }
            Err(error) if job.or_host && matches!(error, Error::Unavailable { .. }) => {
                self.report.fallback = Some(format!("the host took over from {name}: {error}"));
                self.report.backend = VoxelHost::default().name();
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// A part after the other; smaller ones where memory is refused.
    fn on_host(
        &mut self,
        cloud: &Cloud,
        number: usize,
        sink: HardSink<'_>,
        look: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let spec = self.job.spec;
        let mut room = PassRoom::of(self.room, MOST_AT_ONCE, &spec, cloud);
        loop {
            let HardWork { passes, made, .. } = self;
            let mut written = HardCounts::default();
            let mut take = |made: &HardVoxels| {
                written.add(made);
                sink(made)
            };
            match passes.run((cloud, number), room, made, &mut take, look) {
                Ok(reads) => {
                    self.count(written);
                    self.hold(room.bytes(&spec, cloud.len() as u64, cloud.stride()), reads);
                    return Ok(());
                }
                Err(error) if error.is_out_of_memory() && written.parts == 0 => {
                    let Some(half) = room.halved() else { return Err(error) };
                    tracing::info!(%error, "voxels are made in smaller parts");
                    (self.passes, self.made) = (HardPasses::new(spec), HardVoxels::default());
                    self.report.retries += 1;
                    room = half;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Counts the voxels of a cloud whose parts are written, and the points that were dropped, which
    /// are told with each part.
    fn count(&mut self, written: HardCounts) {
        self.report.voxels += written.voxels;
        self.report.kept += written.kept;
        self.report.not_finite += self.made.not_finite;
        self.report.outside += self.made.outside;
    }

    /// What was held at once beside the clouds of the chunk, and how many times points were read.
    fn hold(&mut self, bytes: u64, reads: u64) {
        self.report.peak_bytes = self.report.peak_bytes.max(bytes.saturating_add(self.loaded));
        self.report.reads = self.report.reads.max(reads);
    }
}

/// What was made of a cloud.
#[derive(Debug, Clone, Copy, Default)]
struct HardCounts {
    parts: u64,
    voxels: u64,
    /// Points in voxels.
    kept: u64,
}

impl HardCounts {
    fn add(&mut self, made: &HardVoxels) {
        self.parts += 1;
        self.voxels += made.num_points.len() as u64;
        self.kept +=
            made.num_points.iter().map(|count| u64::from(count.cast_unsigned())).sum::<u64>();
    }
}
