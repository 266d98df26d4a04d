//! Who a process is: its command line, its user and its container, from `/proc`.
//!
//! Three small files for each process, so this is asked of the few that are shown, not of all.

use super::container::container;
use crate::machine::{Machine, name};

/// Longer command lines are cut: a page shows less than this, and some are megabytes.
const LONGEST_COMMAND: usize = 4096;

/// Who a process is; each part is `None` where the kernel does not say, as of a process that has
/// ended.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProcessIdentity {
    /// Its command line, with blanks between the words; kernel threads have none.
    pub command: Option<String>,
    /// The number of the user that it runs as.
    pub uid: Option<u32>,
    /// That user's name.
    pub user: Option<String>,
    /// The container that it runs in, as `docker 3f2a91b0c7d4`.
    pub container: Option<String>,
}

impl ProcessIdentity {
    /// Reads the identity of a process of this machine, or of a recorded one.
    #[must_use]
    pub fn of(machine: &Machine, pid: u32) -> ProcessIdentity {
        let file = |name: &str| machine.read(&format!("/proc/{pid}/{name}"));
        let uid = file("status").as_deref().and_then(uid);
        let passwd = uid.and_then(|_| machine.read("/etc/passwd"));
        ProcessIdentity {
            command: file("cmdline").as_deref().and_then(command),
            uid,
            user: uid.zip(passwd).and_then(|(uid, passwd)| user(&passwd, uid)),
            container: file("cgroup").as_deref().and_then(container),
        }
    }
}

/// The words of a command line, which NULs separate.
fn command(cmdline: &str) -> Option<String> {
    let end = cmdline.len().min(LONGEST_COMMAND);
    let end = (0..=end).rev().find(|at| cmdline.is_char_boundary(*at)).unwrap_or(0);
    let words: Vec<&str> = cmdline[..end].split('\0').filter(|word| !word.is_empty()).collect();
    (!words.is_empty()).then(|| words.join(" "))
}

/// The effective user in `/proc/PID/status`: the second number.
fn uid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

fn user(passwd: &str, uid: u32) -> Option<String> {
    let line = passwd.lines().find(|line| {
        let mut fields = line.split(':').skip(2);
        fields.next().and_then(|field| field.parse().ok()) == Some(uid)
    })?;
    name(line.split(':').next()?).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_is_its_words_and_is_cut() {
        assert_eq!(command("python3\0train.py\0\0").as_deref(), Some("python3 train.py"));
        assert_eq!(command(""), None);
        let long = command(&"é".repeat(LONGEST_COMMAND));
        assert_eq!(long.map(|text| text.len()), Some(LONGEST_COMMAND));
        assert_eq!(uid("Name:\tx\nUid:\t1000\t1001\t0\t0\n"), Some(1001));
        assert_eq!(uid("Uid:\tx"), None);
        let passwd = "root:x:0:0::/root:/bin/sh\nanna:x:1001:1001::/home/anna:/bin/sh\n";
        assert_eq!(user(passwd, 1001).as_deref(), Some("anna"));
        assert_eq!(user(passwd, 7), None);
    }
}
