//! Memory in the record: whose, how much, how it was obtained, and the limit.
//!
//! On unified memory the GPU's share is part of system memory and the two are never added.
//! On a discrete GPU they are two figures with a total. Without a GPU it is the memory of
//! the process, and the record says so. Without a sample `within_limit` is null, not true.

use plimsoll::{Bytes, LimitReport};
use serde::{Deserialize, Serialize};

use super::Unknown;

/// How GPU memory relates to system memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MemoryArchitecture {
    /// The GPU's memory is part of the system's.
    Unified,
    /// The GPU has its own.
    Discrete,
    /// No GPU was used.
    NoGpu,
}

impl std::fmt::Display for MemoryArchitecture {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            MemoryArchitecture::Unified => "unified memory",
            MemoryArchitecture::Discrete => "discrete GPU",
            MemoryArchitecture::NoGpu => "no GPU in use",
        })
    }
}

/// How strictly a limit is enforced, the strictest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ReportLimitType {
    /// An allocation above the limit is refused, whoever requests it.
    Hard,
    /// The engine was asked to stay within it; other allocations are not limited.
    Soft,
    /// Nothing enforces it; it is only watched.
    Unavailable,
}

impl std::fmt::Display for ReportLimitType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            ReportLimitType::Hard => "hard",
            ReportLimitType::Soft => "soft",
            ReportLimitType::Unavailable => "unavailable",
        })
    }
}

impl From<plimsoll::LimitType> for ReportLimitType {
    fn from(other: plimsoll::LimitType) -> ReportLimitType {
        match other {
            plimsoll::LimitType::Hard => ReportLimitType::Hard,
            plimsoll::LimitType::Soft => ReportLimitType::Soft,
            plimsoll::LimitType::Unavailable => ReportLimitType::Unavailable,
        }
    }
}

/// How a figure was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum HowObtained {
    /// Every change was counted, so the peak is exact.
    Counted,
    /// It was read at intervals.
    Sampled,
    /// It was calculated.
    Estimated,
    /// It was read from a recording.
    Recorded,
    /// The device is a simulated one.
    Simulated,
}

impl std::fmt::Display for HowObtained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            HowObtained::Counted => "counted",
            HowObtained::Sampled => "sampled",
            HowObtained::Estimated => "estimated",
            HowObtained::Recorded => "recorded",
            HowObtained::Simulated => "simulated",
        })
    }
}

/// What a slot's memory figure is a figure of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum MeasuredWhat {
    /// What the slot's engine allocated on the GPU.
    GpuAllocations,
    /// The memory of the whole process: no GPU was used.
    ProcessMemory,
    /// What the process gained for this slot, where two ran at once without a GPU.
    SlotMemory,
}

impl MeasuredWhat {
    /// Whether it is a GPU's memory.
    #[must_use]
    pub fn is_gpu(self) -> bool {
        self == MeasuredWhat::GpuAllocations
    }

    /// The heading of such figures: a GPU is named only where one is used.
    #[must_use]
    pub fn title(self) -> &'static str {
        if self.is_gpu() { "GPU Memory" } else { "Memory" }
    }
}

impl std::fmt::Display for MeasuredWhat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            MeasuredWhat::GpuAllocations => "GPU allocations of the slot",
            MeasuredWhat::ProcessMemory => "memory of the process (no GPU in use)",
            MeasuredWhat::SlotMemory => "memory of the slot in the process (no GPU in use)",
        })
    }
}

/// Why a slot is not compared with the limit.
const NOT_COMPARED: &str =
    "it ran on the CPU, where a limit of GPU memory is not compared with anything";

/// The memory of one slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct GpuMemory {
    /// What the figures are of.
    pub what: MeasuredWhat,
    /// The limit that was enforced or watched, in GiB; null where it is not compared with what
    /// was measured, as for a slot that fell back from a GPU to the CPU.
    pub limit_gb: Option<f64>,
    /// The most; null where nothing was measured.
    pub peak_gb: Option<f64>,
    /// The mean of the samples; null where nothing was measured.
    pub mean_gb: Option<f64>,
    /// The least; null where nothing was measured.
    pub min_gb: Option<f64>,
    /// Whether the peak is within the limit; null where nothing was measured or compared.
    pub within_limit: Option<bool>,
    /// How strictly the limit is enforced.
    pub limit_type: ReportLimitType,
    /// Who reported it, such as `rten allocator` or `/proc/self/status`; null where nobody did.
    pub source: Option<String>,
    /// How it was obtained; null where it was not.
    pub obtained: Option<HowObtained>,
    /// How many samples there were.
    pub samples: u64,
    /// The most of the system's memory in use while the slot ran, other programs included;
    /// null where it was not measured.
    pub system_peak_gb: Option<f64>,
    /// Why fields are null.
    pub unknown: Unknown,
}

impl GpuMemory {
    /// The memory of a slot that nobody measured.
    #[must_use]
    pub fn unmeasured(
        what: MeasuredWhat,
        limit: Option<Bytes>,
        limit_type: ReportLimitType,
        why: &str,
    ) -> GpuMemory {
        let fields = [
            "peak_gb",
            "mean_gb",
            "min_gb",
            "within_limit",
            "source",
            "obtained",
            "system_peak_gb",
        ];
        let mut unknown: Unknown =
            fields.map(|field| (field.to_string(), why.to_string())).into_iter().collect();
        if limit.is_none() {
            for field in ["limit_gb", "within_limit"] {
                unknown.insert(field.to_string(), NOT_COMPARED.to_string());
            }
        }
        GpuMemory {
            what,
            limit_gb: limit.map(Bytes::as_gib),
            peak_gb: None,
            mean_gb: None,
            min_gb: None,
            within_limit: None,
            limit_type,
            source: None,
            obtained: None,
            samples: 0,
            system_peak_gb: None,
            unknown,
        }
    }
}

/// The memory of the whole run, all slots together, against the limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MemoryUsage {
    /// What the figures are of.
    pub what: MeasuredWhat,
    /// The limit that was enforced or watched, in GiB; null where it is not compared with what
    /// was measured.
    pub limit_gb: Option<f64>,
    /// The least; null where nothing was measured.
    pub min_gb: Option<f64>,
    /// The mean of the samples; null where nothing was measured.
    pub mean_gb: Option<f64>,
    /// The most; null where nothing was measured.
    pub peak_gb: Option<f64>,
    /// Who reported it; null where nobody did.
    pub source: Option<String>,
    /// How it was obtained; null where it was not.
    pub obtained: Option<HowObtained>,
    /// How many samples there were.
    pub samples: u64,
    /// How often memory rose above the limit.
    pub violations: u64,
    /// On unified memory, the peak as a share of the most that the system used, in percent;
    /// null elsewhere.
    pub percent_of_system_used: Option<f64>,
    /// Why fields are null.
    pub unknown: Unknown,
}

impl MemoryUsage {
    /// Nobody measured it.
    #[must_use]
    pub fn unmeasured(what: MeasuredWhat, limit: Option<Bytes>, why: &str) -> MemoryUsage {
        let fields = ["min_gb", "mean_gb", "peak_gb", "source", "obtained"];
        let mut unknown: Unknown =
            fields.map(|field| (field.to_string(), why.to_string())).into_iter().collect();
        if limit.is_none() {
            unknown.insert("limit_gb".to_string(), NOT_COMPARED.to_string());
        }
        MemoryUsage {
            what,
            limit_gb: limit.map(Bytes::as_gib),
            min_gb: None,
            mean_gb: None,
            peak_gb: None,
            source: None,
            obtained: None,
            samples: 0,
            violations: 0,
            percent_of_system_used: None,
            unknown,
        }
    }
}

/// Memory that belongs to no slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct SharedMemory {
    /// What it is: context, libraries.
    pub what: String,
    /// The most; null where nothing was measured.
    pub peak_gb: Option<f64>,
    /// Who reported it; null where nobody did.
    pub source: Option<String>,
    /// How it was obtained; null where it was not.
    pub obtained: Option<HowObtained>,
    /// Why fields are null.
    pub unknown: Unknown,
}

impl SharedMemory {
    /// Nobody measured it.
    #[must_use]
    pub fn unmeasured(why: &str) -> SharedMemory {
        let fields = ["peak_gb", "source", "obtained"];
        SharedMemory {
            what: "context and libraries".to_string(),
            peak_gb: None,
            source: None,
            obtained: None,
            unknown: fields.map(|field| (field.to_string(), why.to_string())).into_iter().collect(),
        }
    }
}

/// One time that memory rose above the limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Violation {
    /// When, UTC, RFC 3339.
    pub time: String,
    /// Which slot or row; null where it is not known.
    pub slot: Option<usize>,
    /// How much was in use.
    pub bytes: u64,
}

/// A slot, and how close it came to the limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Closest {
    /// Its place in `models`.
    pub slot: usize,
    /// The model in it.
    pub name: Option<String>,
    /// Its peak.
    pub peak_gb: f64,
    /// Its peak as a share of the effective limit, in percent.
    pub percent_of_limit: f64,
}

/// The limit, and whether memory stayed within it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct MemorySafety {
    /// Whether every slot that ran stayed within the limit; null where one was not
    /// measured and none is known to have exceeded it.
    pub all_within_limit: Option<bool>,
    /// Why that is null; null where it is not.
    pub reason: Option<String>,
    /// The limit, clamped to the profile, in GiB.
    pub limit_gb: f64,
    /// The limit that is enforced: on unified memory never more than the system can give.
    pub effective_limit_gb: f64,
    /// The profile that the limit comes from or was clamped to; null where a limit was given
    /// without a profile.
    pub profile: Option<String>,
    /// How strictly it is enforced.
    pub limit_type: ReportLimitType,
    /// Whether that was verified by a request above the limit.
    pub verified: bool,
    /// What enforces it.
    pub methods_applied: Vec<String>,
    /// How often memory rose above the limit.
    pub total_violations: u64,
    /// The first thousand of those.
    #[cfg_attr(test, schemars(length(max = MemorySafety::DETAILS)))]
    pub violation_details: Vec<Violation>,
    /// The slots, closest to the limit first.
    pub closest_to_limit: Vec<Closest>,
    /// What the user should know: a clamped limit, a pool that was made before.
    pub warnings: Vec<String>,
}

impl From<&LimitReport> for MemorySafety {
    fn from(report: &LimitReport) -> MemorySafety {
        MemorySafety {
            all_within_limit: None,
            reason: Some("nothing was measured yet".to_string()),
            limit_gb: report.limit.as_gib(),
            effective_limit_gb: report.effective_limit.as_gib(),
            profile: report.profile.map(str::to_string),
            limit_type: report.limit_type.into(),
            verified: report.verified,
            methods_applied: report.methods_applied.clone(),
            total_violations: 0,
            violation_details: Vec::new(),
            closest_to_limit: Vec::new(),
            warnings: report.warnings.clone(),
        }
    }
}

impl MemorySafety {
    /// How many violations are kept one by one; all are counted.
    pub const DETAILS: usize = 1000;

    /// Counts a violation.
    pub fn violated(&mut self, violation: Violation) {
        self.total_violations += 1;
        if self.violation_details.len() < Self::DETAILS {
            self.violation_details.push(violation);
        }
    }
}
