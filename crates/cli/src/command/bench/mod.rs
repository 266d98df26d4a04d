//! `plimsoll bench`: detectors, one honest report.
//!
//! The work is the library's ([`plimsoll_bench::workload`]); the verb turns flags into a
//! plan, shows how far it is, and ends with what the record says: 0 fine, 1 a violation
//! where `--fail-on-violation` asks for it, 2 all slots skipped, 3 one failed and none
//! completed, or a file that was asked for could not be written (with `--strict`, any file), 130
//! stopped by the user.
//!
//! The first Ctrl-C stops the run, and what was measured is kept; the second one ends the
//! process at once.

mod flags;
#[cfg(target_os = "linux")]
mod guard;
mod show;
pub(super) mod trial;
mod words;

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use plimsoll_bench::record::BenchRecord;
use plimsoll_bench::report::console;
use plimsoll_bench::report::files::FilesError;
use plimsoll_bench::workload::{self, BenchError, BenchPlan, Finished, Level};
use plimsoll_infer::source::{self, Spec, synthetic::SceneKind};
use plimsoll_infer::{EngineDevice, ModelSource};
use serde::Serialize;

pub(crate) use flags::Args;
use show::Show;

use crate::logging;
use crate::outcome::{BadInput, Outcome};
use crate::output::{self, Answer, Output};
use crate::output_conflicts;
use crate::page::TextPage;
use crate::stop::{STOPPED, listen};

/// The record for programs, a table for people.
#[derive(Serialize)]
#[serde(transparent)]
struct BenchAnswer<'a> {
    record: &'a BenchRecord,
    /// The report for people, where there is one.
    #[serde(skip)]
    path: Option<String>,
    /// Whether it is of the end of the run, and not of an earlier moment.
    #[serde(skip)]
    written: bool,
}

impl Answer for BenchAnswer<'_> {
    fn page(&self, page: &mut TextPage) {
        page.raw(&console::end(self.record, page.width()));
        page.raw("\n");
        self.place(page);
    }

    fn bare(&self, page: &mut TextPage) {
        page.raw(&console::table(self.record, page.width()));
        self.place(page);
    }
}

impl BenchAnswer<'_> {
    /// Where the report is; nothing where there is none.
    fn place(&self, page: &mut TextPage) {
        if let Some(path) = &self.path {
            let which = if self.written { "Report" } else { "Report, of an earlier moment" };
            page.line(&format!("{which}: {path}"));
        }
    }
}

/// Runs the detectors.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    // Before there are threads: equal models are to show equal figures.
    plimsoll::platform::share_one_heap();
    let mut plan = args.plan()?;
    check_apart(&plan)?;
    plan.trial = Some(Arc::new(trial::Apart));
    plan.log_level = if out.is_verbose() { Level::Debug } else { Level::Info };
    plan.logged = Some(logging::collect());
    let _folders = guarded(args, &mut plan);
    let stop = Arc::new(AtomicBool::new(false));
    listen(&stop)?;
    let on_gpu = matches!(plan.device, EngineDevice::Cuda(_));
    let mut show = Show::new(!out.is_quiet() && !out.is_json(), on_gpu);
    let finished = workload::run(&plan, &mut show, &stop).map_err(with_fault)?;
    show.end();
    let Finished { record, folder, written, complete } = finished;
    let path = Some(folder.join("report.html")).filter(|path| path.is_file());
    let path = path.map(|path| path.display().to_string());
    if !written {
        let left = match path {
            Some(_) => "an earlier one stands",
            None => "there is none",
        };
        output::note_line(&format!(
            "error: the report could not be written; {left} in {}",
            folder.display(),
        ));
        output::note(&console::end(&record, None));
    } else if !complete {
        output::note_line(
            "error: not every file that was asked for could be written; the doubts say why",
        );
    } else if plan.strict && record.is_incomplete() {
        output::note_line(
            "error: not everything could be written or judged (--strict); the doubts say what",
        );
    }
    let report = BenchAnswer { record: &record, path, written };
    out.answer(&report)?;
    Ok(match record.exit_code(args.fail_on_violation) {
        0 if !written || !complete => Outcome::Code(3),
        0 if record.interrupted => Outcome::Code(STOPPED),
        0 => Outcome::Yes,
        code => Outcome::Code(code),
    })
}

fn check_apart(plan: &BenchPlan) -> anyhow::Result<()> {
    let detections = plan.detections.iter().map(|path| ("--detections", path.clone()));
    let predictions = plan.predictions.iter().map(|path| ("--predictions", path.clone()));
    let output = detections.chain(predictions);
    output_conflicts::check(&output.collect::<Vec<_>>(), || {
        let models = ["--model0", "--model1"].into_iter().zip(&plan.models);
        let models = models.flat_map(|(flag, model)| {
            let files = model.as_ref().map(|path| ModelSource::path(path).files());
            files.into_iter().flatten().map(move |file| (flag, file))
        });
        let rows = plan.rows.iter().flat_map(|row| row.weights.files());
        let models = models.chain(rows.map(|file| ("a model", file)));
        let sources = plan.source.iter().chain(plan.sources.iter().flatten());
        let sources = sources.chain(&plan.row_sources);
        let sources = sources.filter_map(|spec| Spec::parse(spec, SceneKind::Rgb).ok());
        let frames = sources.flat_map(|spec| source::files(&spec));
        let library = plan.library.iter().map(|path| ("--library", path.clone()));
        let labels = plan.labels.iter().chain(&plan.thermal_labels);
        let labels = labels.map(|path| ("labels", path.clone()));
        let frames = frames.map(|file| ("a source", file));
        models.chain(frames).chain(library).chain(labels).collect::<Vec<_>>()
    })
}

/// Puts the run under the guard where it may use a GPU of CUDA; see [`guard`].
#[cfg(target_os = "linux")]
fn guarded(args: &Args, plan: &mut BenchPlan) -> guard::Folders {
    let (guarded, folders) = guard::restart_under_guard(args.wants_guard());
    plan.guard = guarded;
    folders
}

#[cfg(not(target_os = "linux"))]
fn guarded(_: &Args, _: &mut BenchPlan) {}

/// A folder that cannot be written to is the caller's mistake; a full disk is not.
fn is_full(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Marks an error that the user can correct as bad input.
fn with_fault(error: BenchError) -> anyhow::Error {
    match error {
        BenchError::Plan(text) => BadInput::new(text).into(),
        BenchError::Files(error @ FilesError::Name { .. }) => BadInput::new(error).into(),
        BenchError::Files(FilesError::Io { ref source, .. }) if !is_full(source) => {
            BadInput::new(error).into()
        }
        BenchError::Memory(error) => error.into(),
        other => other.into(),
    }
}
