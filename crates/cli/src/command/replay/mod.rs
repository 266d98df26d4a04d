//! `plimsoll replay TRACE`: recorded allocations through the pool.
//!
//! A recording is the only honest load for a pool. The verb runs one through a pool on a
//! GPU, on system memory or on the simulated device and reports what an event costs and how much memory is
//! reserved beyond what is live. How each figure is obtained:
//!
//! - *cold* is the first pass, on an empty pool; *warm* the fastest of the passes after
//!   it. What disturbs a run on a shared machine only ever slows it down, so the
//!   fastest pass is the one that was disturbed least.
//! - The simulated device charges what its calls were measured to cost on a real one.
//!   That time did not pass; it is added to the time that did, and shown by itself.
//! - *unmapped* is the time of the events that needed nothing from the device: the pass
//!   less the pool's slow requests, over the events less those requests.
//! - With `--kernels` every block that is handed out is touched by a kernel on its stream.
//!   Launching one takes longer than any event, so each call of the pool's is timed by
//!   itself; the clock's own cost, some tens of nanoseconds, is in the figure.
//! - *malloc* is the same events through the system's allocator, its passes taken turn
//!   by turn with the pool's, so that a noisy neighbour hits both.
//!
//! A trace that does not fit into the device is the answer no, with the event at which
//! it ended, and not an error.

mod answer;
mod cap;
mod clocked;
mod corpus;
mod course;
mod html;
mod input;
mod measure;
mod page;
mod stand;
mod threads;

use std::path::PathBuf;

use clap::ValueEnum;
use plimsoll::Bytes;
use plimsoll::backend::{BackendKind, DeviceId};

use crate::limit::size_above_zero;
use crate::outcome::{BadInput, Outcome};
use crate::output::Output;
use crate::output_conflicts;
use crate::whole_file;
use answer::ReplayReport;
use corpus::Programs;
use course::TraceCourse;
use stand::{MOST_TOTAL, Setup};

const EXAMPLES: &str = "\
Examples:
  plimsoll replay trace.csv                   ns an event, peak live, peak reserved, leaks
  plimsoll replay snapshot.pickle --device 0  what torch.cuda.memory._dump_snapshot wrote
  plimsoll replay trace.csv --html trace.html live and reserved over time, blocks at the peak
  plimsoll replay trace.csv.gz --tight --cap 8GiB --json
  plimsoll replay trace.csv --smallest-cap    the smallest device that it completes on
  plimsoll replay trace.csv --backend cuda    on a GPU; --kernels with work in flight there
  zcat trace.csv.gz | plimsoll replay -
  plimsoll replay --corpus 200                made-up programs: means and worst cases
  plimsoll replay trace.csv --variants 100    programs like a recorded one, with other sizes

A trace is csv (op,id,size,stream,t_us; op is a or f) or a PyTorch memory snapshot, gzipped or
not. Warm figures are the fastest of the passes after the first. Exits 1 when it does not fit.";

/// Replay recorded allocations through the pool: time, memory, leaks
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The recording; - is stdin, corpus:SEED a made-up program
    #[arg(conflicts_with = "corpus")]
    trace: Option<PathBuf>,
    /// Replay N made-up programs, in both packings, beside the rules of other allocators
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000),
          conflicts_with_all = ["tight", "device", "threads", "smallest_cap", "kernels"])]
    corpus: Option<u64>,
    /// Replay N variants of the recording with other sizes, likewise
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000),
          requires = "trace",
          conflicts_with_all = ["corpus", "tight", "threads", "smallest_cap", "kernels", "html"])]
    variants: Option<u64>,
    /// The seed of the first program of --corpus or --variants [0]
    #[arg(long, value_name = "SEED")]
    first_seed: Option<u64>,
    /// The device under the pool: sim (a simulated one), host (system memory), cuda:N, opencl:N …
    #[arg(long, value_name = "BACKEND", default_value = "sim")]
    backend: DeviceId,
    /// Pack tightly: reserve the least memory, at the cost of more mapping
    #[arg(long)]
    tight: bool,
    /// A device that cannot map memory by the page, as on many boards
    #[arg(long)]
    no_map: bool,
    /// The device's size, all of which may be used [sim: 141GiB, host: what it has]
    #[arg(long, value_name = "SIZE", value_parser = size_above_zero)]
    cap: Option<Bytes>,
    /// Which device of a snapshot, where several have events
    #[arg(long, value_name = "N")]
    device: Option<usize>,
    /// Also replay on 1 to N threads at once, each the whole trace on its own stream
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=64))]
    threads: u16,
    /// Passes after the first
    #[arg(long, value_name = "N", default_value = "5", value_parser = clap::value_parser!(u32).range(1..=1000))]
    passes: u32,
    /// What the simulated device's calls cost: as measured on an H200, or nothing [measured]
    #[arg(long, value_name = "COSTS")]
    latencies: Option<LatenciesWord>,
    /// Also find the smallest device on which the trace completes twice, and its time there
    #[arg(long)]
    smallest_cap: bool,
    /// Also write a page: live and reserved memory over the trace, and the blocks at the peak
    #[arg(long, value_name = "FILE", conflicts_with = "corpus")]
    html: Option<PathBuf>,
    /// Let a kernel touch every block that is handed out (cuda:N); the pool's calls are timed
    /// one by one then
    #[arg(long)]
    kernels: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LatenciesWord {
    /// As measured on a real device
    Measured,
    /// Calls cost nothing
    Off,
}

/// Replays.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let setup = setup(args)?;
    if let Some(programs) = programs(args)? {
        out.answer(&corpus::run(&setup, programs, args.passes, &mut out.progress())?)?;
        return Ok(Outcome::from(true));
    }
    let Some(path) = &args.trace else {
        return Err(BadInput::new("name a recording (plimsoll replay TRACE), or --corpus N").into());
    };
    args.html.as_deref().map_or(Ok(()), |page| whole_file::check_place("--html", page))?;
    let page = args.html.clone().map(|page| ("--html", page));
    output_conflicts::check(page.as_slice(), || [("the recording", path.clone())])?;
    let (name, trace) = input::read(path, args.device)?;
    tracing::info!("{name}: {} events", trace.events().len());
    let stand = setup.open()?;
    let mut line = out.progress();
    let measured = measure::run(&stand, &trace, args.passes, &mut |done, all| {
        line.show_part(&format!("replay: pass {} of {all}", done + 1), done.into(), all.into());
    })?;
    drop(line);
    let mut report = ReplayReport::new(name, &trace, &setup, &stand, &measured);
    drop(stand);
    if args.threads > 1 && report.completed {
        let scaling = threads::run(&setup, &trace, args.threads, args.passes, measured.peak)?;
        report = report.with_threads(args.threads, scaling);
    }
    if args.smallest_cap {
        let found = cap::smallest(&setup, &trace, &mut out.progress())?;
        let there = found.map(|cap| setup.with_cap(cap).open()).transpose()?;
        let there = there
            .map(|stand| measure::run(&stand, &trace, args.passes, &mut |_, _| {}))
            .transpose()?;
        report = report.with_smallest_cap(found, there.as_ref(), &trace);
    }
    out.answer(&report)?;
    if let Some(page) = &args.html {
        let course = TraceCourse::of(&trace, &setup)?;
        whole_file::write(page, html::render(&report, &course).as_bytes())?;
    }
    Ok(Outcome::from(report.is_yes()))
}

/// The many programs that were asked for, if they were.
fn programs(args: &Args) -> anyhow::Result<Option<Programs>> {
    let first_seed = args.first_seed.unwrap_or(0);
    match (args.corpus, args.variants, &args.trace) {
        (Some(count), ..) => Ok(Some(Programs { first_seed, count, like: None })),
        (_, Some(count), Some(path)) => {
            let (name, trace) = input::read(path, args.device)?;
            if trace.peak_live() == Bytes::ZERO {
                let why = format!("{name} has no allocation: it has no variants");
                return Err(BadInput::new(why).into());
            }
            Ok(Some(Programs { first_seed, count, like: Some((name, trace)) }))
        }
        _ if args.first_seed.is_some() => {
            Err(BadInput::new("--first-seed goes with --corpus or --variants; leave it out").into())
        }
        _ => Ok(None),
    }
}

fn setup(args: &Args) -> anyhow::Result<Setup> {
    if let Some(cap) = args.cap.filter(|cap| *cap > MOST_TOTAL) {
        return Err(
            BadInput::new(format!("--cap is {cap}; it must be {MOST_TOTAL} or less")).into()
        );
    }
    // A flag that would change nothing is a misunderstanding.
    let (sim, cuda) =
        [BackendKind::Sim, BackendKind::Cuda].map(|kind| args.backend.kind == kind).into();
    if args.latencies.is_some() && !sim {
        return Err(idle("--latencies", args.backend, "real calls take the time that they take"));
    }
    if args.no_map && !sim && !cuda {
        return Err(idle("--no-map", args.backend, "nothing is mapped there"));
    }
    Ok(Setup {
        backend: args.backend,
        tight: args.tight,
        can_map: !args.no_map,
        charges: args.latencies != Some(LatenciesWord::Off),
        kernels: args.kernels,
        cap: args.cap,
    })
}

fn idle(flag: &str, backend: DeviceId, why: &str) -> anyhow::Error {
    BadInput::new(format!("{flag} does nothing on {backend}: {why}; leave it out")).into()
}
