//! What became of a limit: how hard it is, by what means, and whether that was tried.

use std::fmt;
use std::time::SystemTime;

use plimsoll_machine::machine::MPS_LIMIT_VARIABLE;
use plimsoll_machine::units::Bytes;

/// How far a limit is held. The order is from weakest to strongest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LimitType {
    /// Nothing can hold the limit; it is watched.
    Unavailable,
    /// What goes through the manager is held; others in the process are not.
    Soft,
    /// An allocation past the limit is refused, whoever asks for it in the process.
    Hard,
}

impl fmt::Display for LimitType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            LimitType::Unavailable => "unavailable",
            LimitType::Soft => "soft",
            LimitType::Hard => "hard",
        })
    }
}

/// An environment variable that asks an engine to keep to the limit. An engine reads it when it
/// starts, so it belongs in the environment of its process: [`LimitReport::tell`] puts it
/// there.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineVariable {
    /// Who reads it.
    pub engine: &'static str,
    /// Its name.
    pub name: &'static str,
    /// What it would have to be for this limit.
    pub value: String,
}

impl EngineVariable {
    /// `total` is that of the GPU, for engines that want a share of it.
    pub(super) fn for_limit(limit: Bytes, total: Option<Bytes>) -> Vec<EngineVariable> {
        let mib = limit.get() >> 20;
        let all = [
            ("CuPy", "CUPY_GPU_MEMORY_LIMIT", limit.get().to_string()),
            ("NVIDIA MPS clients", MPS_LIMIT_VARIABLE, format!("0={mib}M")),
        ];
        // Rounded down: a share that is a little too large would pass the limit.
        let share = total.filter(|total| *total > Bytes::ZERO).map(|total| {
            let share = (limit.get() as f64 / total.get() as f64).min(1.0);
            ("JAX", "XLA_PYTHON_CLIENT_MEM_FRACTION", format!("{:.4}", (share * 1e4).floor() / 1e4))
        });
        all.into_iter()
            .chain(share)
            .map(|(engine, name, value)| EngineVariable { engine, name, value })
            .collect()
    }
}

impl LimitReport {
    /// Tells the engines of a child: puts every variable into its environment. With an MPS
    /// daemon running, the child is then held by the driver.
    pub fn tell(&self, child: &mut std::process::Command) {
        child.envs(self.for_engines.iter().map(|variable| (variable.name, &variable.value)));
    }
}

/// What became of the limit on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceLimit {
    /// The device.
    pub device: String,
    /// How far the limit is held there.
    pub limit_type: LimitType,
    /// Why it is not harder than that.
    pub why: &'static str,
    /// Whether it was tried: a request past the limit was refused, our refusal counter
    /// rose, and the device was not asked.
    pub verified: bool,
    /// What the device's pool may hold: the budget of the configuration below the limit.
    pub budget: Bytes,
    /// What was held when the limit was applied.
    pub held: Bytes,
}

/// What became of a limit. Its text form is what a program shows when it starts.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitReport {
    /// The weakest of all devices; unavailable without one.
    pub limit_type: LimitType,
    /// By what means: `gate` (the manager's door to a device refuses), `pool` (the pool's
    /// own budget does), `mps` (the driver does) and `watch` (on unified memory the
    /// system's is looked at, and what is past the limit is a violation).
    pub methods_applied: Vec<String>,
    /// Whether it was tried on every device.
    pub verified: bool,
    /// What was asked for.
    pub requested: Bytes,
    /// The limit: what was asked for, clamped to the profile.
    pub limit: Bytes,
    /// What is enforced: on unified memory never more than the system can give.
    pub effective_limit: Bytes,
    /// The profile that the limit was held to or comes from; `None` where a limit was given
    /// and no profile named.
    pub profile: Option<&'static str>,
    /// Whether memory was said to be unified.
    pub is_unified: bool,
    /// Device by device.
    pub devices: Vec<DeviceLimit>,
    /// What the user should know: a clamped limit, a pool that was made before.
    pub warnings: Vec<String>,
    /// What engines are told by [`LimitReport::tell`].
    pub for_engines: Vec<EngineVariable>,
}

impl fmt::Display for LimitReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods = match self.methods_applied.is_empty() {
            true => "none".to_string(),
            false => self.methods_applied.join(", "),
        };
        writeln!(f, "GPU memory limit")?;
        let profile = self.profile.map_or(String::new(), |name| format!(" (profile {name})"));
        writeln!(f, "  Limit:           {}{profile}", self.limit)?;
        writeln!(f, "  Effective limit: {}", self.effective_limit)?;
        writeln!(f, "  Limit type:      {}", self.limit_type)?;
        writeln!(f, "  Methods applied: {methods}")?;
        writeln!(f, "  Verified:        {}", if self.verified { "yes" } else { "no" })?;
        for device in &self.devices {
            let DeviceLimit { device, limit_type, why, budget, .. } = device;
            writeln!(f, "  {device}: {limit_type}, {budget} may be reserved; {why}")?;
        }
        self.warnings.iter().try_for_each(|warning| writeln!(f, "  Warning: {warning}"))
    }
}

/// More was reserved than the limit allows. Recorded and logged; nothing is stopped for it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitViolation {
    /// When it was seen.
    pub time: SystemTime,
    /// On which device.
    pub device: String,
    /// What was held.
    pub held: Bytes,
    /// What may be.
    pub limit: Bytes,
}

/// The answer to whether memory is within the limit.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LimitCheck {
    /// Whether it is; `None` without a limit or without a device to count on.
    pub within_limit: Option<bool>,
    /// What is enforced; `None` before a limit was applied.
    pub limit: Option<Bytes>,
    /// What was found past it, just now.
    pub violations: Vec<LimitViolation>,
}

/// What is held on one device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceUsage {
    /// The device.
    pub device: String,
    /// Held through the manager; counted.
    pub held: Bytes,
    /// The most that was held through the manager at once; counted.
    pub peak: Bytes,
    /// Live: handed to callers and not yet returned; counted.
    pub in_use: Bytes,
    /// What anyone holds on the device, other processes included; sampled, and `None` if
    /// the device does not say.
    pub device_used: Option<Bytes>,
    /// All of the device's memory.
    pub total: Bytes,
    /// How often the device was asked for memory.
    pub asked: u64,
    /// How often the limit was the reason for a refusal.
    pub refused: u64,
}
