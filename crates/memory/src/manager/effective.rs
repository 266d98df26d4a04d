//! The limit that takes effect: profiles of boards, and the part of a limit that can bind.
//!
//! Pure functions over figures: which machine this is, and whether its memory is unified,
//! is for the caller to say.

use plimsoll_machine::error::{Error, Result};
use plimsoll_machine::units::Bytes;

/// A kind of machine, and the most that a limit may be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LimitProfile {
    /// As it is written in `--profile`.
    pub name: &'static str,
    /// The memory that the machine is sold with; `None` for what this machine has.
    pub size: Option<Bytes>,
    /// What it stands for.
    pub about: &'static str,
}

const fn board(name: &'static str, gib: u64, about: &'static str) -> LimitProfile {
    LimitProfile { name, size: Some(Bytes::gib(gib)), about }
}

/// The profiles that there are; the first is the default.
pub const LIMIT_PROFILES: [LimitProfile; 5] = [
    board("orin-nano-8gb", 8, "Jetson Orin Nano 8 GB"),
    board("orin-nx-16gb", 16, "Jetson Orin NX 16 GB"),
    board("agx-orin-64gb", 64, "Jetson AGX Orin 64 GB"),
    board("thor-128gb", 128, "Jetson AGX Thor 128 GB"),
    LimitProfile { name: "host", size: None, about: "what this machine has" },
];

impl LimitProfile {
    /// The profile of this name; the error lists those that there are.
    pub fn find(name: &str) -> Result<LimitProfile> {
        LIMIT_PROFILES.into_iter().find(|profile| profile.name == name).ok_or_else(|| {
            Error::Config {
                field: "profile",
                value: format!("{name:?}"),
                range: "orin-nano-8gb, orin-nx-16gb, agx-orin-64gb, thor-128gb or host",
            }
        })
    }
}

impl Default for LimitProfile {
    fn default() -> Self {
        LIMIT_PROFILES[0]
    }
}

/// What is asked of [`apply_limits`](crate::GpuMemoryManager::apply_limits).
///
/// ```
/// use plimsoll_memory::{Bytes, LimitRequest};
/// let request = LimitRequest::new().with_profile("orin-nx-16gb")?.with_limit(Bytes::gib(12));
/// assert!(LimitRequest::new().with_profile("orin-nano").is_err());
/// # let _ = request; Ok::<(), plimsoll_memory::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct LimitRequest {
    /// The limit; without one the configuration's, or else the profile's size.
    pub limit: Option<Bytes>,
    /// The machine to keep to: a limit above its size is clamped to that. Without one a limit
    /// stands as it is, and `orin-nano-8gb` gives the default where there is none.
    pub profile: Option<LimitProfile>,
    /// Whether the GPU shares the system's memory; without it the machine is asked.
    pub is_unified: Option<bool>,
    /// What must stay free on unified memory; without it the configuration's
    /// `min_free_bytes`.
    pub keep_free: Option<Bytes>,
    /// The system's memory; without it `MemTotal` is read.
    pub system_total: Option<Bytes>,
}

impl LimitRequest {
    /// The default limit, 8 GiB, on whatever this machine is.
    #[must_use]
    pub fn new() -> Self {
        LimitRequest::default()
    }

    /// Sets the limit.
    #[must_use]
    pub fn with_limit(mut self, limit: impl Into<Bytes>) -> Self {
        self.limit = Some(limit.into());
        self
    }

    /// Sets the profile by its name.
    pub fn with_profile(mut self, name: &str) -> Result<Self> {
        self.profile = Some(LimitProfile::find(name)?);
        Ok(self)
    }

    /// Says whether the GPU shares the system's memory, instead of asking the machine.
    #[must_use]
    pub fn with_unified(mut self, is_unified: bool) -> Self {
        self.is_unified = Some(is_unified);
        self
    }

    /// Sets what must stay free on unified memory.
    #[must_use]
    pub fn with_keep_free(mut self, bytes: impl Into<Bytes>) -> Self {
        self.keep_free = Some(bytes.into());
        self
    }

    /// Says how much memory the system has, instead of reading it.
    #[must_use]
    pub fn with_system_total(mut self, bytes: impl Into<Bytes>) -> Self {
        self.system_total = Some(bytes.into());
        self
    }
}

/// The limit that can bind. On unified memory the GPU's memory is the system's, and an 8 GB
/// board has 7.43 GiB of it: a limit above what the kernel can give would never be reached
/// before the kernel kills.
///
/// ```
/// use plimsoll_memory::{Bytes, effective_limit};
/// let board = Some(Bytes::kib(7_802_096));
/// let limit = effective_limit(Bytes::gib(8), true, board, Bytes::mib(512));
/// assert_eq!(limit, Bytes::kib(7_802_096) - Bytes::mib(512));
/// assert_eq!(effective_limit(Bytes::gib(8), false, board, Bytes::mib(512)), Bytes::gib(8));
/// ```
#[must_use]
pub fn effective_limit(
    limit: Bytes,
    is_unified: bool,
    system_total: Option<Bytes>,
    keep_free: Bytes,
) -> Bytes {
    match system_total {
        Some(total) if is_unified => limit.min(total.saturating_sub(keep_free)),
        _ => limit,
    }
}

/// What a request comes to on this machine.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResolvedLimit {
    pub(super) requested: Bytes,
    pub(super) limit: Bytes,
    pub(super) effective: Bytes,
    /// The profile that it was held to or comes from.
    pub(super) profile: Option<&'static str>,
    pub(super) warnings: Vec<String>,
}

/// Works the limit out for a request of which every gap has been filled that could be.
pub(super) fn resolve(request: &LimitRequest) -> Result<ResolvedLimit> {
    let total = request.system_total;
    // What the user said counts; the default profile only speaks where nobody did.
    let profile = match (request.profile, request.limit) {
        (None, Some(_)) => None,
        (named, _) => Some(named.unwrap_or_default()),
    };
    let size = profile.and_then(|profile| profile.size.or(total));
    let requested = request.limit.or(size).ok_or_else(|| Error::Config {
        field: "limit",
        value: "not set".to_string(),
        range: "a number of bytes where the system does not tell its size",
    })?;
    let mut warnings = Vec::new();
    let limit = match (profile, size) {
        (Some(profile), Some(size)) if requested > size => {
            let name = profile.name;
            warnings.push(format!("{requested} is more than {name} has: clamped to {size}"));
            size
        }
        (Some(_), None) => {
            warnings.push("the system does not tell its size: nothing was clamped".to_string());
            requested
        }
        _ => requested,
    };
    let is_unified = request.is_unified == Some(true);
    if is_unified && total.is_none() {
        warnings
            .push("memory is unified, but MemTotal is unknown: the limit may never bind".into());
    }
    let keep_free = request.keep_free.unwrap_or(Bytes::ZERO);
    let effective = effective_limit(limit, is_unified, total, keep_free);
    check(limit, effective, keep_free)?;
    let profile = profile.map(|profile| profile.name);
    Ok(ResolvedLimit { requested, limit, effective, profile, warnings })
}

fn check(limit: Bytes, effective: Bytes, keep_free: Bytes) -> Result<()> {
    if limit == Bytes::ZERO || limit == Bytes::MAX {
        return Err(Error::Config {
            field: "limit",
            value: limit.to_string(),
            range: "at least one byte, and less than can be counted",
        });
    }
    if effective == Bytes::ZERO {
        return Err(Error::Config {
            field: "keep_free",
            value: keep_free.to_string(),
            range: "less than the system's memory",
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOARD: Bytes = Bytes::kib(7_802_096);

    fn on_board() -> LimitRequest {
        LimitRequest::new().with_unified(true).with_system_total(BOARD)
    }

    #[test]
    fn the_default_line_is_eight_gib() {
        let limit = resolve(&LimitRequest::new()).unwrap();
        assert_eq!((limit.requested, limit.limit), (Bytes::gib(8), Bytes::gib(8)));
        assert_eq!((limit.effective, limit.warnings.len()), (Bytes::gib(8), 0));
    }

    #[test]
    fn a_limit_wins_over_the_default_profile_and_not_over_a_named_one() {
        let limit = resolve(&LimitRequest::new().with_limit(Bytes::gib(20))).unwrap();
        assert_eq!((limit.limit, limit.effective), (Bytes::gib(20), Bytes::gib(20)));
        assert_eq!((limit.profile, limit.warnings.len()), (None, 0));
        let named = LimitRequest::new().with_profile("orin-nano-8gb").unwrap();
        let limit = resolve(&named.with_limit(Bytes::gib(12))).unwrap();
        assert_eq!((limit.requested, limit.limit), (Bytes::gib(12), Bytes::gib(8)));
        assert_eq!((limit.profile, limit.warnings.len()), (Some("orin-nano-8gb"), 1));
        assert!(limit.warnings[0].contains("12.00 GiB") && limit.warnings[0].contains("8.00 GiB"));
        let larger = LimitRequest::new().with_profile("orin-nx-16gb").unwrap();
        let limit = resolve(&larger.with_limit(Bytes::gib(12))).unwrap();
        assert_eq!((limit.limit, limit.warnings.len()), (Bytes::gib(12), 0));
    }

    #[test]
    fn on_unified_memory_the_line_is_below_what_the_kernel_has() {
        let limit = resolve(&on_board().with_keep_free(Bytes::mib(512))).unwrap();
        assert_eq!((limit.limit, limit.effective), (Bytes::gib(8), BOARD - Bytes::mib(512)));
        let low = resolve(&on_board().with_limit(Bytes::gib(4))).unwrap();
        assert_eq!(low.effective, Bytes::gib(4));
        let all_kept = resolve(&on_board().with_keep_free(Bytes::gib(8))).unwrap_err();
        assert!(all_kept.to_string().starts_with("keep_free is 8.00 GiB"), "{all_kept}");
        let blind = resolve(&LimitRequest::new().with_unified(true)).unwrap();
        assert!(blind.warnings[0].contains("MemTotal is unknown"));
    }

    #[test]
    fn the_host_profile_is_as_large_as_the_machine() {
        let host = LimitRequest::new().with_profile("host").unwrap();
        let limit = resolve(&host.with_system_total(BOARD).with_limit(Bytes::gib(64))).unwrap();
        assert_eq!((limit.limit, limit.warnings.len()), (BOARD, 1));
        assert!(resolve(&host).unwrap_err().to_string().starts_with("limit is not set"));
        assert_eq!(resolve(&host.with_limit(Bytes::gib(64))).unwrap().warnings.len(), 1);
    }

    #[test]
    fn a_limit_of_nothing_or_of_everything_is_none() {
        assert!(resolve(&LimitRequest::new().with_limit(0u64)).is_err());
        let host = LimitRequest::new().with_profile("host").unwrap();
        assert!(resolve(&host.with_limit(Bytes::MAX)).is_err());
    }
}
