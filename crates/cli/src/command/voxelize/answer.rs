//! What `plimsoll voxelize` says when it is done.

use std::path::{Path, PathBuf};

use plimsoll_points::Cells;
use plimsoll_points::job::{VoxelJob, VoxelReport};
use serde::Serialize;

use super::extent::{CloudExtent, LostPoints};
use super::flags::Args;
use crate::output::Answer;
use crate::page::{SizeUnit, TextCell, TextPage, TextTone};
use plimsoll_points::open::VoxelizeBackend;

#[derive(Debug, Serialize)]
pub(super) struct VoxelizeAnswer {
    out: String,
    preview: Option<String>,
    clouds: u64,
    /// Depth, height, width.
    grid: [u32; 3],
    voxel_size: [f32; 3],
    origin: [f32; 3],
    mode: String,
    dtype: String,
    points_in: u64,
    dropped: Dropped,
    occupied_voxels: u64,
    /// Of all clouds.
    voxels: u64,
    backend: String,
    chunks: u64,
    clouds_per_chunk: u64,
    /// Pieces that the grid of one cloud was cut into.
    slabs: u64,
    /// Times that memory was refused and a chunk was halved.
    retries: u64,
    /// Why some of it was made elsewhere, where it was.
    fallback: Option<String>,
    available_bytes: u64,
    available_source: String,
    peak_bytes: u64,
    peak_source: &'static str,
    /// Null for sparse results, whose size is that of the file.
    output_bytes: Option<u64>,
    /// The length of the file.
    written_bytes: Option<u64>,
    /// From the first cloud read to the last voxel written.
    seconds: f64,
    points_per_second: f64,
    clouds_per_second: f64,
    output_bytes_per_second: Option<f64>,
    /// Where the points lie and what would hold them, where most were dropped.
    pub(super) extent: Option<CloudExtent>,
}

/// What was written to a file; nothing where that cannot be read.
pub(super) fn length_of(path: &Path) -> Option<u64> {
    path.metadata().ok().map(|file| file.len())
}

#[derive(Debug, Serialize)]
struct Dropped {
    not_finite: u64,
    out_of_range: u64,
}

impl VoxelizeAnswer {
    pub(super) fn new(
        args: &Args,
        job: &VoxelJob<'_>,
        opened: &VoxelizeBackend,
        report: &VoxelReport,
        seconds: f64,
    ) -> VoxelizeAnswer {
        let (batch, spec) = (job.batch, &job.spec);
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let (clouds, voxels) = (batch.clouds(), spec.grid().voxels());
        let dense = spec.cloud_bytes(voxels).saturating_mul(clouds);
        let output_bytes = (spec.cells() != Cells::Sparse).then_some(dense);
        // A device counts its own memory; where the host did the work, that figure says nothing.
        let device = opened.backend.peak_bytes().filter(|_| report.fallback.is_none());
        // A clock that stood still says nothing; so short a time is one of its ticks.
        let per_second = |amount: u64| amount as f64 / seconds.max(1e-9);
        VoxelizeAnswer {
            out: path(&args.out).unwrap_or_default(),
            preview: path(&args.preview),
            clouds,
            grid: spec.grid().dims(),
            voxel_size: spec.grid().size(),
            origin: spec.grid().origin(),
            mode: spec.mode().to_string(),
            dtype: spec.cells().to_string(),
            points_in: report.tally.points,
            dropped: Dropped {
                not_finite: report.tally.not_finite,
                out_of_range: report.tally.outside,
            },
            occupied_voxels: report.tally.occupied,
            voxels: voxels.saturating_mul(clouds),
            backend: report.backend.clone(),
            chunks: opened.backend.turns().unwrap_or(0).max(report.chunks),
            clouds_per_chunk: report.cut.clouds.min(clouds),
            slabs: report.cut.slabs,
            retries: report.retries,
            fallback: report.fallback.clone(),
            available_bytes: opened.available.get(),
            available_source: opened.source.clone(),
            peak_bytes: device.unwrap_or(report.peak_bytes),
            // What lies between points and voxels is bounded, not counted.
            peak_source: if device.is_some() { "counted" } else { "estimated" },
            output_bytes,
            written_bytes: args.out.as_deref().and_then(length_of),
            seconds,
            points_per_second: per_second(report.tally.points),
            clouds_per_second: per_second(clouds),
            output_bytes_per_second: output_bytes.map(per_second),
            extent: None,
        }
    }

    /// The points that are in no voxel.
    pub(super) fn lost(&self) -> LostPoints {
        let Dropped { not_finite, out_of_range: outside } = self.dropped;
        LostPoints { points: self.points_in, outside, not_finite }
    }
}

impl Answer for VoxelizeAnswer {
    fn bare(&self, page: &mut TextPage) {
        page.raw(&format!("{}\n", self.out));
    }

    fn page(&self, page: &mut TextPage) {
        let [depth, height, width] = self.grid;
        page.line(&format!(
            "{} {} of {depth} x {height} x {width} voxels, {} as {}: {}",
            self.clouds,
            if self.clouds == 1 { "grid" } else { "grids" },
            self.mode,
            self.dtype,
            self.out
        ));
        let row = |name: &str, value: String, note: String| {
            vec![name.into(), TextCell::figure(Some(value)), TextCell::new(note, TextTone::Faint)]
        };
        let dropped = &self.dropped;
        let unit = SizeUnit::of([Some(self.peak_bytes), self.written_bytes]);
        let share = self.occupied_voxels as f64 / self.voxels.max(1) as f64 * 100.0;
        let mut rows = vec![
            row("points", self.points_in.to_string(), String::new()),
            row("not finite", dropped.not_finite.to_string(), "dropped".to_string()),
            row("out of range", dropped.out_of_range.to_string(), "dropped".to_string()),
            row(
                "occupied",
                self.occupied_voxels.to_string(),
                format!("{share:.2} % of all voxels"),
            ),
            row("chunks", self.chunks.to_string(), self.cut()),
            row("retries", self.retries.to_string(), String::new()),
            row("peak", unit.text(self.peak_bytes), self.peak_note()),
        ];
        if let Some(bytes) = self.written_bytes {
            rows.push(row("written", unit.text(bytes), String::new()));
        }
        let speed = format!("{:.1} million points a second", self.points_per_second / 1e6);
        rows.push(row("time", format!("{:.3} s", self.seconds), speed));
        page.table(&rows);
        if let Some(why) = &self.fallback {
            page.advice(why);
        }
        let held = self.extent.as_ref();
        self.lost().warn(page, held.map(|extent| (extent, extent.flags())));
    }
}

impl VoxelizeAnswer {
    /// Where that memory was: on the device if the device counted it, otherwise on the host.
    fn peak_note(&self) -> String {
        match self.peak_source {
            "counted" => format!("counted, on {}", self.backend),
            source => format!("{source}, on host"),
        }
    }

    fn cut(&self) -> String {
        match self.slabs {
            1 if self.clouds_per_chunk == 1 => "1 cloud at a time".to_string(),
            1 => format!("{} clouds at a time", self.clouds_per_chunk),
            slabs => format!("each cloud in {slabs} slabs"),
        }
    }
}

/// What `--compile-kernels` made.
#[derive(Debug, Serialize)]
pub(super) struct CompiledKernels {
    pub(super) folder: String,
    pub(super) target: String,
    pub(super) files: Vec<String>,
}

impl Answer for CompiledKernels {
    fn bare(&self, page: &mut TextPage) {
        page.raw(&format!("{}\n", self.folder));
    }

    fn page(&self, page: &mut TextPage) {
        let CompiledKernels { folder, target, files } = self;
        page.line(&format!("{} programs for {target} in {folder}", files.len()));
        page.advice("On the board, name the folder in PLIMSOLL_KERNELS.");
    }
}
