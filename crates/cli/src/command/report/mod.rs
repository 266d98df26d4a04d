//! `plimsoll report`: what memory there is, who has it, and what to do about it.
//!
//! The first lines name the process that holds the most, and how to end it. On unified memory the
//! system's figures are the ones that count, and everything that a GPU uses is a part of them:
//! nothing is added. On discrete memory each device has its own figures beside the system's, and
//! there is a sum.
//!
//! ```text
//! probes ─→ holders ─→ answer ─→ page, html
//! drivers ─→ devices ──────┘
//! ```

mod advice;
mod answer;
mod devices;
mod holders;
mod html;
mod page;
mod probes;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use plimsoll::backend::DeviceId;
use plimsoll::machine::Machine;

use crate::duration::interval;
use crate::outcome::Outcome;
use crate::output::{self, Output};
use crate::recording;
use crate::stop;
use crate::whole_file;
use answer::MachineReport;
use devices::FoundDevices;
use probes::ReportProbes;

const EXAMPLES: &str = "\
Examples:
  plimsoll report                    who holds the memory of every GPU, and of the system
  plimsoll report --watch            the same again every two seconds, until Ctrl-C
  plimsoll report --html memory.html the same as a page
  plimsoll report --device opencl:0  one device
  plimsoll report --json             the same for programs";

/// Say who holds the memory of this machine, and what to do about it
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Report on this device alone: cpu, cuda:N, rocm:N, metal:N, opencl:N
    #[arg(long, value_name = "DEVICE", conflicts_with = "root")]
    device: Option<DeviceId>,
    /// Report again and again, every two seconds or at the interval that you give, until Ctrl-C;
    /// with --json a line each time. What devices have in use their drivers tell the first time
    /// only, as that takes GPU memory
    #[arg(long, value_name = "TIME", num_args = 0..=1, default_missing_value = "2s", value_parser = interval)]
    watch: Option<Duration>,
    /// Also write the report as a page, one file that needs no network
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Report on the recorded file tree of another machine
    #[arg(long, value_name = "DIR", default_value = "/", hide_default_value = true)]
    root: PathBuf,
}

/// Reports once, or until it is stopped.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    args.html.as_deref().map_or(Ok(()), |page| whole_file::check_place("--html", page))?;
    let machine = Machine::recorded(&args.root);
    recording::check_root(&args.root)?;
    // Asked first and once: a driver that hangs takes its time here, not from each device.
    tracing::debug!("unified: {:?}", machine.unified());
    let mut probes = ReportProbes::default();
    let Some(interval) = args.watch else {
        let report = examine(args, &machine, &mut probes, None)?;
        out.answer(&report)?;
        write_page(args, &report, out)?;
        return Ok(Outcome::Yes);
    };
    let stopped = Arc::new(AtomicBool::new(false));
    stop::listen(&stopped)?;
    let mut found = None;
    while !stopped.load(Ordering::Relaxed) {
        let report = examine(args, &machine, &mut probes, found.take())?;
        if !out.redraw(&report)? {
            break;
        }
        write_page(args, &report, out)?;
        found = Some(report.into_devices());
        wait(interval, &stopped);
    }
    Ok(Outcome::Yes)
}

/// Looks at the machine. Drivers are asked after the probes, as a context of ours takes GPU memory
/// itself, and not again where `before` has their answer.
fn examine(
    args: &Args,
    machine: &Machine,
    probes: &mut ReportProbes,
    before: Option<FoundDevices>,
) -> anyhow::Result<MachineReport> {
    let sample = probes.look(machine);
    let mut found = match (before, args.device) {
        (Some(before), _) => before,
        (None, Some(device)) => {
            FoundDevices { devices: vec![devices::of_one(device)?], absent: Vec::new() }
        }
        (None, None) if machine.is_here() => devices::of_all(),
        (None, None) => FoundDevices::default(),
    };
    found.absent.extend(probes.absent(&sample, &found.devices));
    Ok(MachineReport::new(machine, &sample, found))
}

fn write_page(args: &Args, report: &MachineReport, out: &mut Output) -> anyhow::Result<()> {
    let Some(path) = &args.html else { return Ok(()) };
    whole_file::write(path, html::render(report, args.watch).as_bytes())?;
    if args.watch.is_none() && !out.is_quiet() && !out.is_json() {
        // The report first, then where its page is.
        out.finish()?;
        output::note_line(&format!("page: {}", path.display()));
    }
    Ok(())
}

/// Waits in small steps, so that Ctrl-C is heard at once.
fn wait(interval: Duration, stopped: &AtomicBool) {
    let until = Instant::now() + interval;
    while !stopped.load(Ordering::Relaxed) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        std::thread::sleep(left.min(Duration::from_millis(50)));
    }
}
