//! `plimsoll doctor --selftest DIR`: every promise that this machine can check, tried.
//!
//! The bundle can be sent to others: what the doctor saw (`doctor.json`,
//! `doctor.txt`), what was tried and how it ended (`selftest.json`, `selftest.txt`), the
//! report of a short `bench` of the embedded detectors, and under `root/` the small files
//! that the machine was known by, so that `doctor --root DIR/root` sees it again.

mod bundle;
mod device;
mod whole;

use std::path::Path;
use std::time::Instant;

use plimsoll::backend::{BackendKind, DeviceId, count, open};
use serde::Serialize;
use tracing::subscriber::{self, NoSubscriber};

use super::DoctorReport;
use super::backends::BackendName;
use super::page::{bare_lacks, lacks_page};
use crate::outcome::Outcome;
use crate::output::{Answer, Output};
use crate::page::{TextCell, TextPage, TextTone};

/// A promise that was tried.
#[derive(Debug, Serialize)]
struct Check {
    /// `machine`, or the device as it is written in `--device`.
    on: String,
    promise: &'static str,
    outcome: CheckEnd,
    /// What was seen, or what went wrong.
    detail: String,
    seconds: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckEnd {
    Kept,
    Broken,
    Skipped,
}

#[derive(Debug, Serialize)]
struct Selftest<'a> {
    version: &'static str,
    kept: usize,
    broken: usize,
    skipped: usize,
    checks: Vec<Check>,
    /// What was required (`--require`) and cannot be had.
    lacks: &'a [BackendName],
    /// Where the bundle lies.
    bundle: &'a Path,
}

impl Check {
    /// Tries a promise and takes the time.
    fn of(
        on: &str,
        promise: &'static str,
        tried: impl FnOnce() -> anyhow::Result<String>,
    ) -> Check {
        let begun = Instant::now();
        let (outcome, detail) = match tried() {
            Ok(detail) => (CheckEnd::Kept, detail),
            Err(error) => (CheckEnd::Broken, format!("{error:#}")),
        };
        let seconds = begun.elapsed().as_secs_f64();
        Check { on: on.to_string(), promise, outcome, detail, seconds }
    }

    fn skipped(on: &str, promise: &'static str, why: String) -> Check {
        let outcome = CheckEnd::Skipped;
        Check { on: on.to_string(), promise, outcome, detail: why, seconds: 0.0 }
    }
}

/// Tries everything and leaves the bundle.
pub(super) fn run(
    folder: &Path,
    report: &DoctorReport,
    out: &mut Output,
) -> anyhow::Result<Outcome> {
    bundle::prepare(folder)?;
    let mut progress = out.progress();
    let mut checks = whole::checks(folder, &mut |what| progress.show(what));
    for kind in [BackendKind::Sim].into_iter().chain(BackendKind::REAL) {
        progress.show(&format!("trying {kind}"));
        match report.backends.iter().find(|b| b.name.kind() == kind && !b.available) {
            Some(absent) => checks.push(nothing_to_try(kind.name(), absent.why.clone())),
            None => checks.extend(of_kind(kind)),
        }
    }
    drop(progress);
    let ended = |outcome| checks.iter().filter(|check| check.outcome == outcome).count();
    let selftest = Selftest {
        version: env!("CARGO_PKG_VERSION"),
        kept: ended(CheckEnd::Kept),
        broken: ended(CheckEnd::Broken),
        skipped: ended(CheckEnd::Skipped),
        checks,
        lacks: &report.lacks,
        bundle: folder,
    };
    bundle::write(folder, report, &selftest)?;
    out.answer(&selftest)?;
    Ok(Outcome::from(selftest.broken == 0 && report.lacks.is_empty()))
}

fn nothing_to_try(on: &str, why: String) -> Check {
    Check::skipped(on, "everything that is promised of a device", why)
}

fn of_kind(kind: BackendKind) -> Vec<Check> {
    let absent = |on: &str, error: plimsoll::Error| vec![nothing_to_try(on, error.to_string())];
    let count = match count(kind) {
        Ok(count) => count,
        Err(error) => return absent(kind.name(), error),
    };
    let of = |number| {
        let device = DeviceId { kind, number };
        let name = device.to_string();
        match open(device) {
            // What is provoked here is no news: no warning of it goes to the log.
            Ok(_) => subscriber::with_default(NoSubscriber::default(), || {
                device::checks(&name, &|| open(device))
            }),
            Err(error) => absent(&name, error),
        }
    };
    (0..count).flat_map(of).collect()
}

impl Answer for Selftest<'_> {
    fn bare(&self, page: &mut TextPage) {
        let broken = self.checks.iter().filter(|check| check.outcome == CheckEnd::Broken);
        page.table(&broken.map(row).collect::<Vec<_>>());
        let Selftest { kept, broken, skipped, .. } = self;
        page.raw(&format!("{kept} kept, {broken} broken, {skipped} skipped\n"));
        bare_lacks(self.lacks, page);
    }

    fn page(&self, page: &mut TextPage) {
        page.heading("Promises");
        page.table(&self.checks.iter().map(row).collect::<Vec<_>>());
        page.heading(&format!(
            "{} kept, {} broken, {} skipped",
            self.kept, self.broken, self.skipped
        ));
        lacks_page(self.lacks, page);
        page.line(&format!("Bundle: {}", self.bundle.display()));
    }
}

fn row(check: &Check) -> Vec<TextCell> {
    let outcome = match check.outcome {
        CheckEnd::Kept => TextCell::new("kept", TextTone::Good),
        CheckEnd::Broken => TextCell::new("BROKEN", TextTone::Doubt),
        CheckEnd::Skipped => TextCell::new("skipped", TextTone::Faint),
    };
    let detail = TextCell::new(&check.detail, TextTone::Faint);
    vec![check.on.clone().into(), outcome, check.promise.into(), detail]
}
