//! `plimsoll voxelize --hard`: voxels as detection networks take them.

use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use plimsoll::Bytes;
use plimsoll_points::Batch;
use plimsoll_points::job::{HardJob, HardReport};
use plimsoll_points::network::{HardSpec, HardVoxels};
use plimsoll_points::write::HardFile;
use serde::Serialize;

use super::answer::length_of;
use super::extent::{CloudExtent, LostPoints};
use super::flags::Args;
use super::{check_apart, extent_of};
use crate::outcome::{OrBadInput, Outcome};
use crate::output::{Answer, Output, ProgressLine};
use crate::page::{TextCell, TextPage, TextTone};
use crate::stop::{STOPPED, listen};
use plimsoll_points::open::{self, VoxelizeBackend};

/// Makes hard voxels; nothing where these were not asked for.
pub(super) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Option<Outcome>> {
    // The numbers are looked at before the files are.
    let (Some(_), Some(path)) = (args.hard(false)?, &args.out) else { return Ok(None) };
    let stop = Arc::new(AtomicBool::new(false));
    let batch = Batch::open_all(&args.input).or_bad_input(|| "the clouds cannot be read")?;
    let batch = batch.stopped_by(&stop);
    let Some(spec) = args.hard(batch.is_stacked())? else { return Ok(None) };
    let columns = batch.features().or_bad_input(|| "the clouds differ in their features")? + 3;
    check_apart(args, path, &batch)?;
    let opened = open::open(args.backend.0, args.limit.limit())?;
    let job = super::job(args, &batch, spec, &opened);
    let most =
        batch.counts().fold(0u64, |sum, points| sum.saturating_add(spec.most_voxels(points)));
    let mut file = HardFile::create(path, &spec, columns, most)?;
    listen(&stop)?;
    let start = Instant::now();
    let line = out.progress();
    let report = open::with_threads(|| work(&job, &mut file, line, &stop));
    if stop.load(Ordering::Relaxed) && report.is_err() {
        crate::output::note("stopped; nothing was written");
        return Ok(Some(Outcome::Code(STOPPED)));
    }
    let report = report?;
    file.finish()?;
    let seconds = start.elapsed().as_secs_f64();
    let out_path = path.display().to_string();
    let mut answer = HardAnswer::new(out_path, &job, columns, &opened, &report, seconds);
    if answer.lost().are_most() {
        answer.extent = extent_of(&batch, spec.grid(), &stop)?;
    }
    out.answer(&answer)?;
    Ok(Some(Outcome::Yes))
}

fn work(
    job: &HardJob<'_>,
    file: &mut HardFile,
    mut line: ProgressLine,
    stop: &AtomicBool,
) -> plimsoll::Result<HardReport> {
    let rows = Cell::new(0);
    let mut write = |made: &HardVoxels| {
        file.write(made)?;
        rows.set(file.rows());
        Ok(())
    };
    job.run(&mut write, &mut |done, total| {
        let text = format!("voxelize: {done} of {total} clouds, {} voxels", rows.get());
        line.show_part(&text, done, total);
        !stop.load(Ordering::Relaxed)
    })
}

/// Why points are read more than once.
const READ_AGAIN: &str = "the voxels of a cloud do not fit in memory at once";

#[derive(Debug, Serialize)]
struct HardAnswer {
    out: String,
    clouds: u64,
    /// Cells along depth, height, width.
    grid: [u32; 3],
    voxel_size: [f32; 3],
    origin: [f32; 3],
    max_points: u32,
    max_voxels: u32,
    order: String,
    /// Of a point.
    columns: usize,
    /// Of all clouds.
    voxels: u64,
    points_in: u64,
    points_kept: u64,
    dropped: HardDropped,
    /// Where the points lie, where most were dropped.
    extent: Option<CloudExtent>,
    backend: String,
    chunks: u64,
    clouds_per_chunk: u64,
    /// Times that memory was refused and a part was halved.
    retries: u64,
    /// Times that the points of a cloud were read, at most: more than once where its voxels do not fit
    /// in memory at once.
    reads: u64,
    /// Why some of it was made elsewhere, where it was.
    fallback: Option<String>,
    available_bytes: u64,
    available_source: String,
    peak_bytes: u64,
    peak_source: &'static str,
    output_bytes: u64,
    /// The length of the file.
    written_bytes: Option<u64>,
    /// From the first cloud read to the last voxel written.
    seconds: f64,
    points_per_second: f64,
    clouds_per_second: f64,
}

#[derive(Debug, Serialize)]
struct HardDropped {
    not_finite: u64,
    out_of_range: u64,
    /// In a voxel that was full, or one voxel too many.
    past_maximum: u64,
}

impl HardAnswer {
    fn new(
        out: String,
        job: &HardJob<'_>,
        columns: usize,
        opened: &VoxelizeBackend,
        report: &HardReport,
        seconds: f64,
    ) -> HardAnswer {
        let spec: &HardSpec = &job.spec;
        let inside = report.points.saturating_sub(report.not_finite + report.outside);
        // A device counts its own memory; where the host did the work, that figure says nothing.
        let device = opened.backend.peak_bytes().filter(|_| report.fallback.is_none());
        let per_second = |amount: u64| amount as f64 / seconds.max(1e-9);
        HardAnswer {
            written_bytes: length_of(Path::new(&out)),
            out,
            clouds: job.batch.clouds(),
            grid: spec.grid().dims(),
            voxel_size: spec.grid().size(),
            origin: spec.grid().origin(),
            max_points: spec.max_points(),
            max_voxels: spec.max_voxels(),
            order: spec.form().order.to_string(),
            columns,
            voxels: report.voxels,
            points_in: report.points,
            points_kept: report.kept,
            dropped: HardDropped {
                not_finite: report.not_finite,
                out_of_range: report.outside,
                past_maximum: inside.saturating_sub(report.kept),
            },
            extent: None,
            backend: report.backend.clone(),
            chunks: report.chunks,
            clouds_per_chunk: report.clouds_per_chunk.min(job.batch.clouds()),
            retries: report.retries,
            reads: report.reads,
            fallback: report.fallback.clone(),
            available_bytes: opened.available.get(),
            available_source: opened.source.clone(),
            peak_bytes: device.unwrap_or(report.peak_bytes),
            peak_source: if device.is_some() { "counted" } else { "estimated" },
            output_bytes: report.voxels.saturating_mul(spec.voxel_bytes(columns)),
            seconds,
            points_per_second: per_second(report.points),
            clouds_per_second: per_second(job.batch.clouds()),
        }
    }
}

impl HardAnswer {
    /// The points outside of the range, and those that are no points.
    fn lost(&self) -> LostPoints {
        let HardDropped { not_finite, out_of_range: outside, .. } = self.dropped;
        LostPoints { points: self.points_in, outside, not_finite }
    }
}

impl Answer for HardAnswer {
    fn bare(&self, page: &mut TextPage) {
        page.raw(&format!("{}\n", self.out));
    }

    fn page(&self, page: &mut TextPage) {
        page.line(&format!(
            "{} voxels of at most {} points with {} columns, of {} {}: {}",
            self.voxels,
            self.max_points,
            self.columns,
            self.clouds,
            if self.clouds == 1 { "cloud" } else { "clouds" },
            self.out
        ));
        let row = |name: &str, value: String, note: &str| {
            vec![name.into(), TextCell::figure(Some(value)), TextCell::new(note, TextTone::Faint)]
        };
        let (dropped, written) = (&self.dropped, self.written_bytes.map(Bytes));
        let on = if self.peak_source == "counted" { &self.backend } else { "host" };
        let speed = format!("{:.1} million points a second", self.points_per_second / 1e6);
        page.table(&[
            row("points", self.points_in.to_string(), ""),
            row("kept", self.points_kept.to_string(), ""),
            row("not finite", dropped.not_finite.to_string(), "dropped"),
            row("out of range", dropped.out_of_range.to_string(), "dropped"),
            row("past a maximum", dropped.past_maximum.to_string(), "dropped"),
            row("chunks", self.chunks.to_string(), &format!("made on {}", self.backend)),
            row("retries", self.retries.to_string(), ""),
            row("reads", self.reads.to_string(), if self.reads > 1 { READ_AGAIN } else { "" }),
            row(
                "peak",
                Bytes(self.peak_bytes).to_string(),
                &format!("{}, on {on}", self.peak_source),
            ),
            row("written", written.map_or_else(|| "–".to_string(), |bytes| bytes.to_string()), ""),
            row("time", format!("{:.3} s", self.seconds), &speed),
        ]);
        if let Some(why) = &self.fallback {
            page.advice(why);
        }
        let held = self.extent.as_ref();
        self.lost().warn(page, held.map(|extent| (extent, extent.range_flag(self.voxel_size))));
    }
}
