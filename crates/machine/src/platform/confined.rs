//! What a confined process may still take.
//!
//! `MemAvailable` is the machine's. A process in a control group with a limit is killed when it
//! passes that, and one under `ulimit -v` is refused, however much the machine has.

use std::path::{Path, PathBuf};

use super::{kibibytes, read};
use crate::units::Bytes;

/// What the control groups of this process and its limit of address space leave to it: the
/// least of them, or nothing where it is not confined. Page cache that a group would give back
/// does not count as taken.
///
/// `root` is where `proc` and `sys` are: `/`, or a folder of recorded files.
#[must_use]
pub fn memory_left(root: &Path) -> Option<Bytes> {
    [group_left(root), address_space_left(root)].into_iter().flatten().min()
}

/// Version 2 has one hierarchy, version 1 one for memory alone; each group above ours counts
/// too. In a container the path may be the host's, and the group's own files are at the top.
fn group_left(root: &Path) -> Option<Bytes> {
    let groups = read(&root.join("proc/self/cgroup")).ok()?;
    let mut least = None;
    for line in groups.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next())
        else {
            continue;
        };
        let (top, files) = match controllers {
            "" => (root.join("sys/fs/cgroup"), &VERSION_2),
            one if one.split(',').any(|name| name == "memory") => {
                (root.join("sys/fs/cgroup/memory"), &VERSION_1)
            }
            _ => continue,
        };
        let own: PathBuf = Path::new(path).components().skip(1).collect();
        for group in own.ancestors() {
            let left = files.left(&top.join(group));
            least = least.into_iter().chain(left).min();
        }
    }
    least
}

/// The files of a group.
struct Files {
    limit: &'static str,
    used: &'static str,
    /// The line of `memory.stat` with what the kernel takes back first.
    cache: &'static str,
}

const VERSION_2: Files =
    Files { limit: "memory.max", used: "memory.current", cache: "inactive_file" };
const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: "total_inactive_file",
};

impl Files {
    fn left(&self, group: &Path) -> Option<Bytes> {
        let number = |name: &str| read(&group.join(name)).ok()?.trim().parse::<u64>().ok();
        // "max" is no number; version 1 writes one that no machine has.
        let limit = number(self.limit).filter(|limit| *limit < 1 << 60)?;
        let used = number(self.used)?;
        let stat = read(&group.join("memory.stat")).unwrap_or_default();
        let cache = stat.lines().find_map(|line| {
            let (name, value) = line.split_once(' ')?;
            (name == self.cache).then(|| value.trim().parse::<u64>().ok())?
        });
        let taken = used.saturating_sub(cache.unwrap_or(0));
        Some(Bytes(limit.saturating_sub(taken)))
    }
}

fn address_space_left(root: &Path) -> Option<Bytes> {
    let limits = read(&root.join("proc/self/limits")).ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max address space"))?;
    let limit: u64 = line.split_whitespace().next()?.parse().ok()?;
    let status = read(&root.join("proc/self/status")).ok()?;
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:")).and_then(kibibytes)?;
    Some(Bytes(limit).saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        root
    }

    #[test]
    fn the_tightest_group_counts_and_its_cache_does_not() {
        let root = files(&[
            ("proc/self/cgroup", "0::/user/job\n"),
            ("sys/fs/cgroup/user/memory.max", "1000000\n"),
            ("sys/fs/cgroup/user/memory.current", "900000\n"),
            ("sys/fs/cgroup/user/memory.stat", "anon 5\ninactive_file 300000\n"),
            ("sys/fs/cgroup/user/job/memory.max", "max\n"),
            ("sys/fs/cgroup/user/job/memory.current", "5\n"),
        ]);
        assert_eq!(memory_left(root.path()), Some(Bytes(400_000)));
    }

    #[test]
    fn the_first_version_is_read_where_the_container_has_it() {
        let root = files(&[
            ("proc/self/cgroup", "5:devices:/\n4:memory,cpu:/docker/abc\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "500\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "600\n"),
        ]);
        assert_eq!(memory_left(root.path()), Some(Bytes(0)));
        let free = files(&[
            ("proc/self/cgroup", "4:memory:/\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "600\n"),
        ]);
        assert_eq!(memory_left(free.path()), None);
    }

    #[test]
    fn an_address_space_ends_too() {
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax address space         4096000              unlimited            bytes     \n";
        let status = "Name:\tx\nVmSize:\t    1000 kB\n";
        let root = files(&[("proc/self/limits", limits), ("proc/self/status", status)]);
        assert_eq!(memory_left(root.path()), Some(Bytes(4_096_000 - 1_024_000)));
        let free = files(&[
            ("proc/self/limits", &limits.replace("4096000", "unlimited")),
            ("proc/self/status", status),
        ]);
        assert_eq!(memory_left(free.path()), None);
        assert_eq!(memory_left(Path::new("/nowhere")), None);
    }
}
