//! What NVIDIA's `tegrastats` prints, understood word by word.
//!
//! The program prints one line a sample, and its form changed with every board and every
//! release: there is no grammar but that of the lines themselves. So a line is cut into
//! words, and each known key takes the words that belong to it; what is not understood is
//! ignored, as the next release will print something new. Two rules keep that honest:
//! a key is matched whole (`NOT_GR3D_FREQ` is not ours), and a value that is not in one of
//! the forms of its key is unknown, never guessed at. What is unknown takes nothing with it:
//! a load stands without its clock, and one clock of a list without the others.
//!
//! A [`TegraLine`] borrows its names from the text, so that reading a log costs no allocation a
//! field; what is kept of each kind is bounded, and so is a line. [`TegraReader`] runs the
//! program itself.

mod parse;
mod reader;
mod sample;
#[cfg(test)]
mod tests;
mod words;

pub use parse::{NotARecord, parse};
pub use reader::TegraReader;

/// One line. The names and units are those of the program.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TegraLine<'a> {
    /// `05-17-2026 10:00:33`, where the line starts with it.
    pub timestamp: Option<&'a str>,
    /// Seconds since 1970 by the clock that wrote the line, whatever its time zone: the
    /// timestamp, or a date in the prefix that a logger put before it.
    pub clock_s: Option<f64>,
    /// Memory in use.
    pub ram_used_mb: Option<u64>,
    /// All memory.
    pub ram_total_mb: Option<u64>,
    /// How many of the largest free blocks there are.
    pub lfb_blocks: Option<u64>,
    /// How large they are.
    pub lfb_block_kb: Option<u64>,
    /// Swap in use.
    pub swap_used_mb: Option<u64>,
    /// All swap.
    pub swap_total_mb: Option<u64>,
    /// Swap that is cached.
    pub swap_cached_mb: Option<u64>,
    /// The small memory of old boards.
    pub iram: Option<Iram>,
    /// The processors; `None` where the line has no list of them.
    pub cpu: Option<Vec<TegraCpu>>,
    /// The GPU.
    pub gpu: Option<EngineLoad>,
    /// A second graphics cluster (`GR3D2_FREQ`).
    pub gpu2: Option<EngineLoad>,
    /// A second GPU, with memory of its own (`GR3D_PCI`, on a Drive PX2).
    pub gpu_pci: Option<EngineLoad>,
    /// The memory controller.
    pub emc: Option<EngineLoad>,
    /// Everything else that has a clock, by its key as printed.
    pub engines: Vec<(&'a str, EngineLoad)>,
    /// Background and foreground work of the processor's own translation.
    pub mts: Option<Mts>,
    /// Temperatures; `None` for a sensor that is off.
    pub temps_c: Vec<(&'a str, Option<f64>)>,
    /// Their peaks, where the line has them.
    pub temps_peak_c: Vec<(&'a str, Option<f64>)>,
    /// Power by rail.
    pub power_mw: Vec<(&'a str, RailPower)>,
}

/// The small memory of old boards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Iram {
    /// In use.
    pub used_kb: u64,
    /// All of it.
    pub total_kb: u64,
    /// The largest free block.
    pub lfb_kb: Option<u64>,
}

/// A processor.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct TegraCpu {
    /// Whether it is on.
    pub online: bool,
    /// Load in percent.
    pub util: Option<f64>,
    /// Clock.
    pub mhz: Option<f64>,
}

/// Load and clock of an engine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EngineLoad {
    /// Whether it is switched off.
    pub off: bool,
    /// Load in percent.
    pub util: Option<f64>,
    /// Clock.
    pub mhz: ClockRate,
}

/// A clock, or one for each cluster.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ClockRate {
    /// Not reported.
    #[default]
    Unknown,
    /// One.
    One(f64),
    /// Several in the order printed; `None` for one that is not reported.
    Many(Vec<Option<f64>>),
}

/// Work of the processor's own translation.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Mts {
    /// In the foreground, in percent.
    pub fg: f64,
    /// In the background, in percent.
    pub bg: f64,
}

/// Power of a rail.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct RailPower {
    /// Now.
    pub cur: f64,
    /// On average since the program started.
    pub avg: Option<f64>,
    /// At most since then.
    pub peak: Option<f64>,
}

impl TegraLine<'_> {
    /// The mean load of the processors that are on.
    #[must_use]
    pub fn cpu_mean_online(&self) -> Option<f64> {
        let loads = self.cpu.as_ref()?.iter().filter(|cpu| cpu.online).filter_map(|cpu| cpu.util);
        let (sum, n) = loads.fold((0.0, 0.0), |(sum, n), load| (sum + load, n + 1.0));
        (n > 0.0).then(|| sum / n)
    }

    /// Power of the whole board, where its rails tell.
    #[must_use]
    pub fn total_power_mw(&self) -> Option<f64> {
        let cur = |name: &str| {
            self.power_mw.iter().find(|(rail, _)| *rail == name).map(|(_, power)| power.cur)
        };
        super::rails::whole_board(cur)
    }
}
