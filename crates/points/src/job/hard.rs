//! Hard voxels of a batch in files: some clouds at a time, each on the device where it fits, or on
//! the host, a part of its voxels after the other.

use plimsoll_memory::{Bytes, ChunkPlan, Error, Result, SAFETY_MARGIN};

use super::{VoxelJob, VoxelProgress};
use crate::backend::VoxelBackend;
use crate::backend::host::VoxelHost;
use crate::cloud::Cloud;
use crate::network::{HardHost, HardSpec, HardVoxels, PointBatch};

/// What waits on the host to be written, at most, where it can be less than a whole cloud.
const PART: u64 = 64 << 20;

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
    /// Who made it: the backend of the job, or the host in its stead.
    pub backend: String,
    /// Clouds that were read at a time.
    pub clouds_per_chunk: u64,
    /// Chunks that were made.
    pub chunks: u64,
    /// Times that memory was refused and a part was halved.
    pub retries: u64,
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
    /// [`Error::NeverFits`] where not even the points of one cloud fit; what reading, making or
    /// writing ended with; [`Error::Device`] where `progress` ended it.
    pub fn run(&self, sink: HardSink<'_>, progress: VoxelProgress<'_>) -> Result<HardReport> {
        let (total, columns) = (self.batch.clouds(), self.batch.features()? + 3);
        let at_once = self.clouds_at_once(columns)?;
        let mut work = HardWork {
            job: self,
            host: HardHost::new(self.spec),
            made: HardVoxels::default(),
            part: self.part(columns),
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
            for (cloud, number) in clouds.iter().zip(done..) {
                work.cloud(cloud, number as usize, sink)?;
            }
            work.report.chunks += 1;
            done = end;
            if !progress(done, total) {
                let why = "it was interrupted; nothing is left".to_string();
                return Err(Error::Device { call: "voxelize", why });
            }
        }
        Ok(work.report)
    }

    /// Clouds that are read at a time. They are made one after the other, so that what making one
    /// takes is taken once.
    fn clouds_at_once(&self, columns: usize) -> Result<u64> {
        let points = self.batch.counts().max().unwrap_or(0);
        let each = Bytes(points.saturating_mul(4 * columns as u64)).max(Bytes(1));
        let host = self.backend.name() == VoxelHost::default().name();
        let between = if host { self.backend.hard_bytes(&self.spec, columns, points) } else { 0 };
        let room = if host { self.room.min(self.available) } else { self.room };
        let least = self.spec.voxel_bytes(columns);
        let fixed = Bytes(between.saturating_add(least));
        let plan = ChunkPlan::new(self.batch.clouds(), each, room).with_fixed(fixed).config()?;
        let ample = (PART / each.get()).max(1);
        let fitting = plan.chunk_size.max(1);
        Ok(self.chunk.map_or(fitting.min(ample), |wanted| wanted.clamp(1, fitting)))
    }

    /// Voxels that are made before they are written, on the host.
    fn part(&self, columns: usize) -> usize {
        let points = self.batch.counts().max().unwrap_or(0);
        let taken = HardHost::working_bytes(points)
            .saturating_add(points.saturating_mul(4 * columns as u64));
        let left = self.room.fraction(SAFETY_MARGIN).get().saturating_sub(taken).min(PART);
        (left / self.spec.voxel_bytes(columns).max(1)).max(1) as usize
    }
}

/// The work as far as it is done.
struct HardWork<'w> {
    job: &'w HardJob<'w>,
    host: HardHost,
    made: HardVoxels,
    part: usize,
    report: HardReport,
}

impl HardWork<'_> {
    fn cloud(&mut self, cloud: &Cloud, number: usize, sink: HardSink<'_>) -> Result<()> {
        let floats = cloud.floats()?;
        let batch = PointBatch::one(&floats, cloud.stride())?.numbered_from(number);
        self.report.points += cloud.len() as u64;
        let own = self.report.backend != VoxelHost::default().name();
        if own && self.on_device(&batch)? {
            self.seen(&batch, 0);
            return sink(&self.made);
        }
        self.on_host(&batch, sink)
    }

    /// Whether the device made it. The host does where there is no memory, or nobody asked for
    /// this device and it cannot.
    fn on_device(&mut self, batch: &PointBatch<'_>) -> Result<bool> {
        let (job, name) = (self.job, self.job.backend.name());
        match job.backend.hard(batch, &job.spec, &mut self.made) {
            Ok(()) => {
                self.report.not_finite += self.made.not_finite;
                self.report.outside += self.made.outside;
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
    fn on_host(&mut self, batch: &PointBatch<'_>, sink: HardSink<'_>) -> Result<()> {
        loop {
            let HardWork { host, made, part, .. } = self;
            let (mut voxels, mut kept, mut most) = (0, 0, 0);
            let mut written = false;
            let run = host.run_in_parts(batch, 0, *part, made, &mut |made| {
                written = true;
                voxels += made.num_points.len() as u64;
                kept += made
                    .num_points
                    .iter()
                    .map(|count| u64::from(count.cast_unsigned()))
                    .sum::<u64>();
                most = most.max(made.num_points.len() as u64);
                sink(made)
            });
            match run {
                Ok(_) => {
                    self.report.not_finite += self.made.not_finite;
                    self.report.outside += self.made.outside;
                    (self.report.voxels, self.report.kept) =
                        (self.report.voxels + voxels, self.report.kept + kept);
                    self.hold(batch, most, HardHost::working_bytes(batch.points() as u64));
                    return Ok(());
                }
                // Nothing of the cloud was written, so it can begin again.
                Err(error) if error.is_out_of_memory() && !written && self.part > 1 => {
                    tracing::info!(%error, "voxels are made in smaller parts");
                    self.made = HardVoxels::default();
                    self.part = self.part.div_ceil(2);
                    self.report.retries += 1;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn seen(&mut self, batch: &PointBatch<'_>, between: u64) {
        let counts = &self.made.num_points;
        self.report.voxels += counts.len() as u64;
        self.report.kept +=
            counts.iter().map(|count| u64::from(count.cast_unsigned())).sum::<u64>();
        self.hold(batch, counts.len() as u64, between);
    }

    fn hold(&mut self, batch: &PointBatch<'_>, voxels: u64, between: u64) {
        let points = size_of_val(batch.floats()) as u64;
        let result = voxels.saturating_mul(self.job.spec.voxel_bytes(batch.columns()));
        let held = points.saturating_add(result).saturating_add(between);
        self.report.peak_bytes = self.report.peak_bytes.max(held);
    }
}
