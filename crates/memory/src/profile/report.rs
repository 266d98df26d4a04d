//! The device report: what there is, who has it, and what to do about it.
//!
//! The report is data first and text second, so that it can be shown as either. What the
//! device does not tell is unknown, and every figure says how it was obtained.

use std::fmt;

use super::{or_dash, percent, share};
use crate::memory::{Device, Memory};
use crate::pressure::MemoryPressure;
use plimsoll_machine::machine::{Machine, MemoryInfo};
use plimsoll_machine::units::Bytes;

/// How a figure was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Obtained {
    /// Every event was counted.
    Counted,
    /// The machine was asked at a moment.
    Sampled,
    /// Computed by a simulated device.
    Simulated,
}

impl Obtained {
    /// What is counted on a device: on a simulated one nothing is real.
    pub(super) fn by_counting(device: &dyn Device) -> Obtained {
        Obtained::unless_simulated(device, Obtained::Counted)
    }

    fn by_asking(device: &dyn Device) -> Obtained {
        Obtained::unless_simulated(device, Obtained::Sampled)
    }

    fn unless_simulated(device: &dyn Device, real: Obtained) -> Obtained {
        if device.info().backend == "sim" { Obtained::Simulated } else { real }
    }
}

impl fmt::Display for Obtained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Obtained::Counted => "counted",
            Obtained::Sampled => "sampled",
            Obtained::Simulated => "simulated",
        })
    }
}

/// A device and one memory on it, in figures. Its text form is the report for people.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct MemoryReport {
    /// The device, as it is called by itself.
    pub device: String,
    /// The kind of device, as it is written in `--device`.
    pub backend: &'static str,
    /// NVIDIA's generation of the device: (9, 0).
    pub compute_capability: Option<(u32, u32)>,
    /// Whether the device's memory is the system's; `None` where nothing tells.
    pub is_unified: Option<bool>,
    /// The system's memory, where the device's is a part of it.
    pub system: Option<MemoryInfo>,
    /// All of the device's memory.
    pub total: Bytes,
    /// What nobody holds there; `None` if the device did not say.
    pub free: Option<Bytes>,
    /// How the device's figures were obtained.
    pub device_obtained: Obtained,
    /// The memory that the figures below are about.
    pub memory: String,
    /// Handed to callers and not yet returned.
    pub allocated: Bytes,
    /// Held from the device.
    pub reserved: Bytes,
    /// Held, and free to be handed out again.
    pub pooled: Bytes,
    /// The most that was ever held.
    pub peak: Bytes,
    /// The most that this memory can ever hand out.
    pub capacity: Bytes,
    /// How the memory's figures were obtained.
    pub memory_obtained: Obtained,
    /// The worse of two: of this memory's capacity, and of the device.
    pub pressure: MemoryPressure,
    /// What to do, most urgent first.
    pub recommendations: Vec<String>,
}

/// A report on a memory and the device below it.
///
/// ```
/// use std::sync::Arc;
/// use plimsoll_memory::{Bytes, MemoryConfig, Pool, generate_memory_report};
/// use plimsoll_memory::backend::sim::{Sim, SimConfig};
/// let pool = Pool::new(Arc::new(Sim::new(SimConfig::default())), MemoryConfig::new())?;
/// let report = generate_memory_report(&pool);
/// assert_eq!(report.free, Some(Bytes::gib(8)));
/// assert!(report.to_string().contains("Total memory:   8.00 GiB   (simulated)"));
/// # Ok::<(), plimsoll_memory::Error>(())
/// ```
#[must_use]
pub fn generate_memory_report(memory: &dyn Memory) -> MemoryReport {
    let (device, stats) = (memory.device(), memory.stats());
    let (total, free) = (device.info().total, device.free_memory().ok());
    let on_device = free.map(|free| MemoryPressure::of(total.saturating_sub(free), total));
    let here = memory.pressure();
    let mut report = MemoryReport {
        device: device.info().name.clone(),
        backend: device.info().backend,
        compute_capability: device.info().compute_capability,
        is_unified: device.info().is_unified,
        system: (device.info().is_unified == Some(true)).then(|| {
            let info = Machine::here().memory_info();
            info.with_allocator(stats.in_use_bytes, stats.total_allocated_bytes)
        }),
        total,
        free,
        device_obtained: Obtained::by_asking(device),
        memory: memory.name().to_string(),
        allocated: stats.in_use_bytes,
        reserved: stats.total_allocated_bytes,
        pooled: stats.pooled_bytes,
        peak: stats.peak_bytes,
        capacity: memory.capacity(),
        memory_obtained: Obtained::by_counting(device),
        pressure: on_device.map_or(here, |device| device.max(here)),
        recommendations: Vec::new(),
    };
    report.recommend(here);
    report
}

impl MemoryReport {
    /// What anyone holds on the device.
    #[must_use]
    pub fn used(&self) -> Option<Bytes> {
        Some(self.total.saturating_sub(self.free?))
    }

    /// The share of the device that anyone holds.
    #[must_use]
    pub fn utilisation(&self) -> Option<f64> {
        share(self.used()?, self.total)
    }

    /// Advice by pressure: what relieves it soonest comes first.
    fn recommend(&mut self, here: MemoryPressure) {
        let mut advice = Vec::new();
        let on_device = self.pressure > here;
        if (self.pressure >= MemoryPressure::High || on_device) && self.pooled > Bytes::ZERO {
            let pooled = self.pooled;
            advice.push(format!(
                "{pooled} is reserved and not in use: trim() gives back what it can"
            ));
        }
        match here {
            MemoryPressure::Critical => advice.push(format!(
                "{} of {} is in use: the next request may be refused; work in smaller chunks, \
                 use a smaller batch or precision, or raise the limit",
                self.allocated, self.capacity
            )),
            MemoryPressure::High => advice.push(format!(
                "{} of {} is in use: return what is not needed before the next large request",
                self.allocated, self.capacity
            )),
            MemoryPressure::Medium | MemoryPressure::Low => {}
        }
        let others = self.used().map(|used| used.saturating_sub(self.reserved));
        if let Some(others) = others.filter(|others| on_device && *others > Bytes::ZERO) {
            advice.push(format!("others hold {others} of the device: look there first"));
        }
        if advice.is_empty() {
            advice.push("nothing to do: memory use is healthy".to_string());
        }
        self.recommendations = advice;
    }
}

impl fmt::Display for MemoryReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "Memory report ({})\n", self.backend)?;
        writeln!(f, "Device: {}", self.device)?;
        if let Some((major, minor)) = self.compute_capability {
            writeln!(f, "Compute capability: {major}.{minor}")?;
        }
        writeln!(f)?;
        match &self.system {
            Some(system) => self.write_system(system, f)?,
            None => self.write_device(f)?,
        }
        let how = self.memory_obtained;
        writeln!(f, "Allocator ({}):", self.memory)?;
        writeln!(f, "  Allocated:    {:<10} ({how})", self.allocated)?;
        writeln!(f, "  Reserved:     {:<10} ({how})", self.reserved)?;
        writeln!(f, "  Peak:         {:<10} ({how})", self.peak)?;
        writeln!(f, "  May hold:     {}", self.capacity)?;
        writeln!(f, "  Pressure:     {}\n", self.pressure)?;
        writeln!(f, "Recommendations:")?;
        self.recommendations.iter().try_for_each(|advice| writeln!(f, "  - {advice}"))
    }
}

impl MemoryReport {
    fn write_device(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = self.device_obtained;
        writeln!(f, "Total memory:   {:<10} ({how})", self.total)?;
        writeln!(f, "Used memory:    {:<10} ({how})", or_dash(self.used()))?;
        writeln!(f, "Free memory:    {:<10} ({how})", or_dash(self.free))?;
        writeln!(f, "Utilisation:    {:<10} ({how})\n", percent(self.utilisation()))
    }

    /// On unified memory the system's figures are the ones that count, and all others are
    /// parts of them.
    fn write_system(&self, system: &MemoryInfo, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = self.device_obtained;
        let share = || share(system.system_used?, system.system_total?);
        writeln!(f, "System memory:  {:<10} ({how})", or_dash(system.system_total))?;
        writeln!(f, "Used memory:    {:<10} ({how})", or_dash(system.system_used))?;
        writeln!(f, "Available:      {:<10} ({how})", or_dash(system.system_available))?;
        writeln!(f, "Largest single: {:<10} ({how})", or_dash(system.largest_single))?;
        writeln!(f, "Utilisation:    {:<10} ({how})", percent(share()))?;
        if let Some(part) = system.gpu_codecs_cameras {
            writeln!(f, "  of it GPU, codecs, cameras: {part} ({how})")?;
        }
        writeln!(f, "What the allocator holds is part of what is used.\n")
    }
}
