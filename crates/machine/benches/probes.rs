//! What looking costs: `cargo bench -p plimsoll --bench probes`. Lines of tegrastats read a
//! second, one sample of the system's files, and one with all processes, in processor time.

#![expect(clippy::print_stdout, reason = "a table on the terminal is its purpose")]

use std::hint::black_box;
use std::time::Duration;

use plimsoll_machine::probe::tegrastats::parse;
use plimsoll_machine::probe::{MachineSample, ProbeKind, ProbeSettings, Ticks, open};

/// An AGX board with twelve cores: as long as lines get.
const LINE: &str = "07-31-2026 14:58:05 RAM 4714/62878MB (lfb 7x4MB) SWAP 0/2048MB (cached 0MB) \
    CPU [78%@1728,33%@1728,46%@1728,55%@1728,49%@729,48%@729,37%@729,57%@729,off,off,off,off] \
    EMC_FREQ 2%@2133 GR3D_FREQ 12%@[306,306] NVENC0 off NVDEC0 off NVJPG0 off NVJPG1 off VIC off \
    OFA off NVDLA0 off NVDLA1 off PVA0_FREQ off APE 174 cpu@50.718C/50.718C soc2@47.656C/47.656C \
    soc0@47.156C/47.156C tj@50.718C/50.718C soc1@49C/49C VDD_GPU_SOC 2265mW/2265mW/2265mW \
    VDD_CPU_CV 2643mW/2643mW/2643mW VIN_SYS_5V0 4722mW/4722mW/4722mW";

fn main() -> plimsoll_machine::Result<()> {
    let lines = 400_000u32;
    let seconds = busy(|| {
        for _ in 0..lines {
            let _ = black_box(parse(black_box(LINE)));
        }
        Ok(())
    })?;
    println!("tegrastats lines a second               {:>12.0}", f64::from(lines) / seconds);
    let system = ProbeSettings { processes: None, ..ProbeSettings::default() };
    sample("one sample of the system's files, ms", &system, 20_000)?;
    let every = ProbeSettings { processes: Some(Duration::ZERO), ..ProbeSettings::default() };
    let seen = sample("the same with all processes, ms", &every, 300)?;
    println!("processes                               {seen:>12}");
    Ok(())
}

/// Processor time of this process alone, in seconds: what others do does not count.
fn busy(work: impl FnOnce() -> plimsoll_machine::Result<()>) -> plimsoll_machine::Result<f64> {
    let ticks = || Ticks::own().unwrap_or_default() as f64 / 100.0;
    let start = ticks();
    work()?;
    Ok((ticks() - start).max(0.01))
}

fn sample(what: &str, settings: &ProbeSettings, times: u32) -> plimsoll_machine::Result<usize> {
    let mut probe = open(ProbeKind::Proc, settings)?;
    let mut seen = 0;
    let seconds = busy(|| {
        for _ in 0..times {
            let mut sample = MachineSample::default();
            probe.read(&mut sample)?;
            seen = sample.processes.len();
        }
        Ok(())
    })?;
    println!("{what:<40}{:>12.3}", seconds * 1e3 / f64::from(times));
    Ok(seen)
}
