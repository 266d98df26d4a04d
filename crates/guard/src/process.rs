//! What the kernel reports about processes: PIDs, start times, whether a thread is exiting.

use core::ffi::CStr;

use crate::sys;

/// The PID of this process.
#[must_use]
pub fn own_pid() -> u32 {
    sys::getpid()
}

/// When a process started; 0 where the kernel does not say.
#[must_use]
pub fn start_time(pid: u32) -> u64 {
    let mut path = PathBuffer::new();
    path.add(b"/proc/").number(pid.into()).add(b"/stat");
    path.get().and_then(stat).map_or(0, |stat| stat.start)
}

/// The PID namespace of this process (a container has its own), by the kernel's number; 0 where the
/// kernel does not say.
#[must_use]
pub fn own_pid_namespace() -> u64 {
    let mut text = [0; 64];
    let count = sys::read_link(c"/proc/self/ns/pid", &mut text);
    digits(text.get(..count).unwrap_or_default())
}

fn digits(text: &[u8]) -> u64 {
    let digits = text.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0u64, |sum, &digit| sum.wrapping_mul(10).wrapping_add((digit - b'0').into()))
}

/// Whether a thread of a process is exiting and has not exited: the driver may still be freeing its
/// memory. The process has this PID in this process's own namespace, and started at `start`.
#[must_use]
pub(crate) fn is_ending(pid: u32, start: u64) -> bool {
    let mut folder = PathBuffer::new();
    folder.add(b"/proc/").number(pid.into()).add(b"/task");
    let Some(path) = folder.get() else { return false };
    let Ok(tasks) = sys::SysFile::open(path, sys::O_RDONLY | sys::O_DIRECTORY, 0) else {
        return false;
    };
    if start_time(pid) != start {
        return false;
    }
    let mut names = [0u64; 512];
    loop {
        let count = tasks.list(&mut names);
        if count == 0 {
            return false;
        }
        let ending = |name: &[u8]| {
            let mut path = PathBuffer::new();
            path.add(b"/proc/").number(pid.into()).add(b"/task/").add(name).add(b"/stat");
            path.get().and_then(stat).is_some_and(|stat| stat.is_ending())
        };
        let mut found = false;
        each_name(&names, count, |name| found |= name != b"." && name != b".." && ending(name));
        if found {
            return true;
        }
    }
}

/// Whether this process has device files of a GPU's driver open; `None` where that is unknown.
pub(crate) fn has_device_files() -> Option<bool> {
    let files = sys::SysFile::open(c"/proc/self/fd", sys::O_RDONLY | sys::O_DIRECTORY, 0).ok()?;
    let mut names = [0u64; 512];
    let mut found = false;
    loop {
        let count = files.list(&mut names);
        if count == 0 || found {
            return Some(found);
        }
        each_name(&names, count, |name| {
            let mut path = PathBuffer::new();
            path.add(b"/proc/self/fd/").add(name);
            let mut target = [0; 256];
            let count = path.get().map_or(0, |path| sys::read_link(path, &mut target));
            found |= is_device_file(target.get(..count).unwrap_or_default());
        });
    }
}

/// NVIDIA's device files, on a desktop and on a Jetson.
fn is_device_file(path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    let in_folder = path.windows(7).any(|part| part == b"/nvgpu/");
    let known: [&[u8]; 4] = [b"nvidia", b"nvhost", b"nvmap", b"nvgpu"];
    in_folder || known.iter().any(|known| name.starts_with(known))
}

/// Goes through names as the kernel lists them (`getdents64`): 8 bytes for the inode, 8 for the
/// offset, 2 for the length of the record, 1 for the type, then the name with a final zero.
pub(crate) fn each_name(list: &[u64], bytes: usize, mut each: impl FnMut(&[u8])) {
    let byte = |at: usize| list.get(at / 8).map_or(0, |word| word.to_ne_bytes()[at % 8]);
    let mut at = 0;
    while at + 19 < bytes {
        let size = usize::from(u16::from_ne_bytes([byte(at + 16), byte(at + 17)]));
        let mut name = [0; 256];
        let mut length = 0;
        while let Some(place) = name.get_mut(length) {
            *place = byte(at + 19 + length);
            if *place == 0 {
                break;
            }
            length += 1;
        }
        each(&name[..length.min(255)]);
        if size == 0 {
            return;
        }
        at += size;
    }
}

/// A path that is assembled from pieces, without an allocator.
pub(crate) struct PathBuffer {
    text: [u8; 640],
    end: usize,
}

impl PathBuffer {
    pub(crate) const fn new() -> PathBuffer {
        PathBuffer { text: [0; 640], end: 0 }
    }

    pub(crate) fn add(&mut self, piece: &[u8]) -> &mut PathBuffer {
        for &byte in piece {
            if let Some(place) = self.text.get_mut(self.end) {
                *place = byte;
            }
            self.end += 1;
        }
        self
    }

    pub(crate) fn number(&mut self, number: u64) -> &mut PathBuffer {
        let mut digits = [0; 20];
        self.add(decimal(number, &mut digits))
    }

    /// The path with a final zero; `None` if it is too long.
    pub(crate) fn get(&self) -> Option<&CStr> {
        (self.end < self.text.len()).then(|| CStr::from_bytes_until_nul(&self.text).ok())?
    }
}

/// A number in decimal digits.
pub(crate) fn decimal(mut number: u64, to: &mut [u8; 20]) -> &[u8] {
    let mut at = to.len();
    loop {
        at -= 1;
        to[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &to[at..];
        }
    }
}

/// The fields of `/proc/…/stat` that are needed here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcStat {
    state: u8,
    flags: u64,
    start: u64,
}

impl ProcStat {
    /// Whether the thread is exiting and has not exited.
    #[must_use]
    pub fn is_ending(self) -> bool {
        const EXITING: u64 = 4;
        self.flags & EXITING != 0 && !matches!(self.state, b'Z' | b'X')
    }
}

fn stat(path: &CStr) -> Option<ProcStat> {
    let mut text = [0; 1024];
    let count = sys::read_file(path, &mut text)?;
    parse_stat(&text[..count])
}

/// Parses such a line. The name in it may contain anything, including brackets, so fields are
/// counted from the last bracket.
#[must_use]
pub fn parse_stat(text: &[u8]) -> Option<ProcStat> {
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let mut fields = text[end + 1..].split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    // The state is field 3, flags are field 9, the start time is field 22.
    let state = *fields.next()?.first()?;
    let flags = digits(fields.nth(5)?);
    let start = digits(fields.nth(12)?);
    Some(ProcStat { state, flags, start })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_whatever_the_name_is() {
        let line = b"42 (a) b (c)) S 1 42 42 0 -1 4194564 1 2 3 4 5 6 7 8 20 0 1 0 98765 1 2\n";
        let stat = parse_stat(line).unwrap();
        assert_eq!((stat.state, stat.flags, stat.start), (b'S', 4_194_564, 98765));
        assert!(stat.is_ending() && !ProcStat { state: b'Z', ..stat }.is_ending());
        assert_eq!(parse_stat(b"42 (x"), None);
        assert_eq!(parse_stat(b"42 (x) R 1 2"), None);
    }

    #[test]
    fn this_process_started_once_and_is_not_about_to_end() {
        let me = own_pid();
        let start = start_time(me);
        assert_eq!(me, std::process::id());
        assert!(start > 0 && !is_ending(me, start) && own_pid_namespace() > 0);
        assert_eq!((start_time(u32::MAX), is_ending(u32::MAX, 0)), (0, false));
    }

    #[test]
    fn device_files_are_known_by_their_names() {
        for path in ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvmap", "/dev/nvgpu/igpu0/ctrl"] {
            assert!(is_device_file(path.as_bytes()), "{path}");
        }
        for path in ["", "/dev/null", "/usr/lib/nvidia/x", "socket:[1]"] {
            assert!(!is_device_file(path.as_bytes()), "{path}");
        }
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(has_device_files(), Some(false));
        let _file = std::fs::File::create(folder.path().join("nvidia0")).unwrap();
        assert_eq!(has_device_files(), Some(true));
    }

    #[test]
    fn names_of_a_folder_are_listed() {
        let folder = tempfile::tempdir().unwrap();
        let longest = "x".repeat(255);
        for name in ["a", "bc", &longest] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let path = std::ffi::CString::new(folder.path().to_str().unwrap()).unwrap();
        let opened = sys::SysFile::open(&path, sys::O_RDONLY | sys::O_DIRECTORY, 0).unwrap();
        let mut list = [0u64; 512];
        let mut names = Vec::new();
        let count = opened.list(&mut list);
        each_name(&list, count, |name| names.push(String::from_utf8_lossy(name).into_owned()));
        names.sort();
        assert_eq!(names, [".", "..", "a", "bc", &longest]);
    }
}
