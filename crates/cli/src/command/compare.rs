//! `plimsoll compare A B`: is the second run slower?
//!
//! The verdicts are the library's ([`plimsoll_bench::compare`]): faster, slower or cannot
//! say. A regression beyond the tolerance is the answer no. Runs of different things are
//! not compared unless forced.

use std::path::{Path, PathBuf};

use plimsoll_bench::compare::{
    self, CompareOptions, CompareTone, Comparison, RecordedRun, SlotComparison,
};
use serde::Serialize;

use crate::outcome::{BadInput, OrBadInput, Outcome};
use crate::output::{Answer, Output};
use crate::output_conflicts;
use crate::page::{TextCell, TextPage, TextTone};
use crate::whole_file;

const EXAMPLES: &str = "\
Examples:
  plimsoll compare outputs/before outputs/after
  plimsoll compare outputs/before outputs/latest --html compare.html
  plimsoll compare outputs/before outputs/after --tolerance 2% --json

Exit codes:
  0 no regression, 1 slower beyond the tolerance, or the second run failed, 2 not a run, or not
  comparable";

/// Compare two runs of bench: faster, slower or cannot say
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The first run: its folder, or its report.json
    a: PathBuf,
    /// The second run
    b: PathBuf,
    /// By how much the second may be slower
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = share)]
    tolerance: f64,
    /// Compare runs of different things too
    #[arg(long)]
    force: bool,
    /// Write the comparison as a page, too
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn share(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%');
    let number = percent.unwrap_or(text).trim().parse::<f64>().ok().filter(|value| *value >= 0.0);
    match (number, percent) {
        (Some(value), Some(_)) if value <= 1000.0 => Ok(value / 100.0),
        (Some(value), None) if value < 1.0 => Ok(value),
        // A bare 5 is a likely mistake for 5 %: five times the latency is no useful tolerance.
        (Some(value), None) => {
            let percent = value * 100.0;
            Err(format!("that is {percent} %; say {value}%, or {percent}% if you mean it"))
        }
        _ => Err("it must be a share, such as 5% or 0.05".to_string()),
    }
}

#[derive(Serialize)]
struct Verdicts {
    regression: bool,
    /// Whether the second run failed where it is compared.
    broken: bool,
    #[serde(flatten)]
    comparison: Comparison,
}

impl Answer for Verdicts {
    fn page(&self, page: &mut TextPage) {
        for difference in &self.comparison.differences {
            page.line(&format!("different {difference}"));
        }
        for slot in &self.comparison.slots {
            page.heading(&slot.label);
            page.toned(&slot.verdict(), tone(slot.tone()));
            slot.advice.iter().for_each(|advice| page.advice(advice));
            page.table(&figures(slot));
        }
    }

    fn bare(&self, page: &mut TextPage) {
        page.raw(&self.comparison.verdicts());
    }
}

/// The figures of both runs, and how they changed.
fn figures(slot: &SlotComparison) -> Vec<Vec<TextCell>> {
    let right = |text: String| TextCell::figure(Some(text));
    let head =
        ["first", "second", "change"].map(|name| right(name.to_string()).toned(TextTone::Faint));
    let mut rows = vec![[vec![TextCell::from("")], head.to_vec()].concat()];
    for figure in &slot.figures {
        rows.push(vec![
            TextCell::from(figure.title()),
            right(figure.text(figure.a)),
            right(figure.text(figure.b)),
            right(figure.change_text()).toned(tone(figure.tone)),
        ]);
    }
    rows
}

fn tone(tone: CompareTone) -> TextTone {
    match tone {
        CompareTone::Better => TextTone::Good,
        CompareTone::Worse => TextTone::Bad,
        CompareTone::Same => TextTone::Plain,
        CompareTone::Unsure => TextTone::Doubt,
    }
}

/// Compares.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let read = |path: &PathBuf| {
        RecordedRun::read(path).or_bad_input(|| format!("{} is not a run", path.display()))
    };
    args.html.as_deref().map_or(Ok(()), |page| whole_file::check_place("--html", page))?;
    let (a, b) = (read(&args.a)?, read(&args.b)?);
    let options = CompareOptions {
        tolerance: args.tolerance,
        force: args.force,
        ..CompareOptions::default()
    };
    let comparison = compare::compare(&a, &b, &options);
    if !comparison.comparable {
        let differences = comparison.differences.join("; ");
        let text = format!("the runs are of different things ({differences}); see --force");
        return Err(BadInput::new(text).into());
    }
    if let Some(path) = &args.html {
        check_apart(path, [&a, &b])?;
        let page = comparison.html(&a, &b);
        whole_file::write(path, page.as_bytes())?;
    }
    let (regression, broken) = (comparison.regression(), comparison.broken());
    out.answer(&Verdicts { regression, broken, comparison })?;
    Ok(Outcome::from(!regression && !broken))
}

/// The page must not replace a report that it is made from.
fn check_apart(path: &Path, runs: [&RecordedRun; 2]) -> anyhow::Result<()> {
    let outputs = [("--html", path.to_path_buf())];
    output_conflicts::check(&outputs, || {
        let files = runs.into_iter().flat_map(|run| {
            let folder = run.path.parent().map(Path::to_path_buf).unwrap_or_default();
            ["report.json", "report.html", "metrics.jsonl"].map(|name| ("a run", folder.join(name)))
        });
        files.collect::<Vec<_>>()
    })
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn a_tolerance_is_a_share_in_either_form() {
        assert_eq!(share("5%"), Ok(0.05));
        assert_eq!(share("0.05"), Ok(0.05));
        assert_eq!(share("0"), Ok(0.0));
        assert_eq!(share("1000%"), Ok(10.0));
        for bad in ["", "%", "-1%", "nan", "five", "1001%", "5", "1"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        assert_eq!(share("5").unwrap_err(), "that is 500 %; say 5%, or 500% if you mean it");
    }
}
