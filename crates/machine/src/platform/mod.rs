//! What this machine says about its own memory.
//!
//! The reading is split from the understanding: [`parse_meminfo`] is pure text in,
//! figures out, so recorded boards are tested on any machine, and [`system_memory`]
//! only opens the file, under a root that a test may choose.
//!
//! A line that is missing or unreadable is `None`, never 0: "the kernel did not say"
//! and "there is none" are different answers, and a swap of 0 is a real one.

mod confined;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Error, Result};
use crate::units::Bytes;

pub use confined::memory_left;

/// The kernel's file is a few KiB; a root of strangers' files may hold anything.
const MOST_READ: u64 = 64 << 10;

/// The figures of `/proc/meminfo` that decide what fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct MemInfo {
    /// `MemTotal`: what the kernel manages, less than what the board is sold as.
    pub total: Option<Bytes>,
    /// `MemAvailable`: what can be had without swapping; the measure of safety.
    pub available: Option<Bytes>,
    /// `MemFree`: unused now, page cache not counted; on unified memory it bounds the
    /// largest single GPU allocation.
    pub free: Option<Bytes>,
    /// `SwapTotal`.
    pub swap_total: Option<Bytes>,
    /// `SwapFree`.
    pub swap_free: Option<Bytes>,
    /// `Cached` and `Buffers` less `Shmem`: files that the kernel keeps in memory and gives up
    /// when programs need it.
    pub page_cache: Option<Bytes>,
    /// `NvMapMemUsed`: the GPU's share on a Jetson (Nano to Orin), with what codecs and
    /// cameras hold counted in. Absent everywhere else.
    pub nvmap_used: Option<Bytes>,
}

impl MemInfo {
    /// What cannot be had without swapping: total less available. Figures that contradict
    /// each other tell nothing.
    #[must_use]
    pub fn used(&self) -> Option<Bytes> {
        self.total?.checked_sub(self.available?)
    }

    /// Each figure of this, or the other's where this has none.
    #[must_use]
    pub fn or(self, other: MemInfo) -> MemInfo {
        MemInfo {
            total: self.total.or(other.total),
            available: self.available.or(other.available),
            free: self.free.or(other.free),
            swap_total: self.swap_total.or(other.swap_total),
            swap_free: self.swap_free.or(other.swap_free),
            page_cache: self.page_cache.or(other.page_cache),
            nvmap_used: self.nvmap_used.or(other.nvmap_used),
        }
    }

    /// Swap that holds something.
    #[must_use]
    pub fn swap_used(&self) -> Option<Bytes> {
        self.swap_total?.checked_sub(self.swap_free?)
    }
}

/// Gives memory that was freed back to the system, so that what a process holds is what it
/// uses: freed memory is else kept for later, and shows as if it were in use. Does nothing
/// where the system's allocator has no way to.
pub fn give_back_heap() {
    crate::sys::malloc::give_back();
}

/// Lets all threads of this process share one heap of the system's `malloc`, for a program that
/// measures what it holds: with a heap for each thread, what is held depends on which thread
/// happened to ask. To be called before there are threads; it cannot be undone. Does nothing
/// where the allocator has no such switch.
pub fn share_one_heap() {
    crate::sys::malloc::one_heap();
}

/// Has a child killed when the thread that spawns it ends, also where this process is killed and
/// can clean up nothing itself. Spawn the child from a thread that lives as long as the child is
/// wanted. Linux only; elsewhere it does nothing.
pub fn die_with_spawner(command: &mut std::process::Command) {
    crate::sys::process::die_with_spawner(command);
}

/// Reads the text of `/proc/meminfo`. Unknown lines are ignored, so that an older
/// or a newer kernel gives the figures that it has.
///
/// ```
/// use plimsoll_machine::{Bytes, platform::parse_meminfo};
/// let memory = parse_meminfo("MemTotal:  7802096 kB\nMemFree:  1024 kB\n");
/// assert_eq!(memory.free, Some(Bytes::mib(1)));
/// assert_eq!(memory.available, None);
/// ```
#[must_use]
pub fn parse_meminfo(text: &str) -> MemInfo {
    let mut memory = MemInfo::default();
    let (mut cached, mut buffers, mut shared) = (None, None, None);
    for line in text.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let field = match name.trim() {
            "MemTotal" => &mut memory.total,
            "MemAvailable" => &mut memory.available,
            "MemFree" => &mut memory.free,
            "SwapTotal" => &mut memory.swap_total,
            "SwapFree" => &mut memory.swap_free,
            "NvMapMemUsed" => &mut memory.nvmap_used,
            "Cached" => &mut cached,
            "Buffers" => &mut buffers,
            "Shmem" => &mut shared,
            _ => continue,
        };
        *field = kibibytes(value);
    }
    // Kernels that do not list one of the two have it in `Cached`.
    let files = |cached: Bytes| cached.saturating_add(buffers.unwrap_or_default());
    memory.page_cache = cached.map(files).map(|f| f.saturating_sub(shared.unwrap_or_default()));
    // No machine runs without memory.
    memory.total = memory.total.filter(|total| *total > Bytes::ZERO);
    memory
}

/// The memory of the machine whose files lie under `root`: `/` for this one.
///
/// # Errors
///
/// [`Error::Unavailable`] when there is no readable `proc/meminfo` there, as on every
/// system but Linux.
pub fn system_memory(root: &Path) -> Result<MemInfo> {
    let path = root.join("proc/meminfo");
    let text = read(&path).map_err(|error| Error::Unavailable {
        what: "system memory".to_string(),
        why: format!("{}: {error}", path.display()),
    })?;
    Ok(parse_meminfo(&text))
}

fn read(path: &Path) -> std::io::Result<String> {
    read_at_most(path, MOST_READ)
}

/// The beginning of a plain file, as text. Anything else in its place is refused: a pipe
/// would never end, or never begin.
pub(crate) fn read_at_most(path: &Path, most: u64) -> std::io::Result<String> {
    let is_plain = std::fs::metadata(path)?.is_file();
    if !is_plain {
        return Err(std::io::Error::other("it is not a plain file"));
    }
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// `  7802096 kB`. The kernel writes kB and means KiB; any other unit is not guessed at.
fn kibibytes(value: &str) -> Option<Bytes> {
    let number = value.trim().strip_suffix("kB")?.trim_end();
    number.parse::<u64>().ok()?.checked_mul(1 << 10).map(Bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORIN_NANO: &str = "\
MemTotal:        7802096 kB
MemFree:         1203456 kB
MemAvailable:    4915200 kB
Buffers:          112640 kB
SwapTotal:       3901040 kB
SwapFree:        3901040 kB
HugePages_Total:       0
NvMapMemFree:          0 kB
NvMapMemUsed:     655360 kB
";

    #[test]
    fn a_board_gives_every_figure() {
        let memory = parse_meminfo(ORIN_NANO);
        assert_eq!(memory.total, Some(Bytes::kib(7_802_096)));
        assert_eq!(memory.free, Some(Bytes::kib(1_203_456)));
        assert_eq!(memory.available, Some(Bytes::kib(4_915_200)));
        assert_eq!(memory.nvmap_used, Some(Bytes::mib(640)));
        assert_eq!(memory.used(), Some(Bytes::kib(7_802_096 - 4_915_200)));
        assert_eq!(memory.swap_used(), Some(Bytes::ZERO));
    }

    #[test]
    fn the_page_cache_is_files_and_not_shared_memory() {
        let text = "Buffers: 100 kB\nCached: 2000 kB\nShmem: 500 kB\n";
        assert_eq!(parse_meminfo(text).page_cache, Some(Bytes::kib(1600)));
        assert_eq!(parse_meminfo("Cached: 2000 kB\n").page_cache, Some(Bytes::kib(2000)));
        assert_eq!(parse_meminfo(ORIN_NANO).page_cache, None, "Buffers alone say too little");
    }

    #[test]
    fn what_is_missing_is_unknown_and_not_zero() {
        let old_kernel = parse_meminfo("MemTotal: 1024 kB\nMemFree: 0 kB\n");
        assert_eq!(old_kernel.free, Some(Bytes::ZERO));
        assert_eq!(old_kernel.available, None);
        assert_eq!(old_kernel.used(), None);
        assert_eq!(parse_meminfo(""), MemInfo::default());
    }

    #[test]
    fn figures_that_contradict_each_other_tell_nothing() {
        let more =
            parse_meminfo("MemTotal: 8 kB\nMemAvailable: 9 kB\nSwapTotal: 1 kB\nSwapFree: 2 kB");
        assert_eq!((more.used(), more.swap_used()), (None, None));
        assert_eq!(more.available, Some(Bytes::kib(9)), "shown as it is written");
        assert_eq!(parse_meminfo("MemTotal: 0 kB").total, None, "no machine has none");
    }

    #[test]
    fn lines_may_end_as_on_windows() {
        let memory = parse_meminfo("MemTotal: 8 kB\r\nMemAvailable: 5 kB\r\n");
        assert_eq!(memory.used(), Some(Bytes::kib(3)));
    }

    #[test]
    fn nonsense_is_unknown() {
        for line in [
            "MemTotal",
            "MemTotal:",
            "MemTotal: kB",
            "MemTotal: -1 kB",
            "MemTotal: 12 MB",
            "MemTotal: 1024",
            "MemTotal: 18446744073709551615 kB",
            "MemTotal: 99999999999999999999 kB",
        ] {
            assert_eq!(parse_meminfo(line).total, None, "{line}");
        }
    }

    #[test]
    fn a_root_without_the_file_says_which_file() {
        let error = system_memory(Path::new("/no/such/root")).unwrap_err().to_string();
        assert!(error.contains("/no/such/root/proc/meminfo"), "{error}");
    }
}
