//! Who a process is: its command line, its user and its container, from `/proc`.
//!
//! Three small files for each process, so this is asked of the few that are shown, not of all.

use std::fmt;

use crate::machine::{Machine, name};

/// Longer command lines are cut: a page shows less than this, and some are megabytes.
const LONGEST_COMMAND: usize = 4096;
/// The length of a container's full identifier, in hexadecimal digits.
const CONTAINER_DIGITS: usize = 64;
/// As many of them as `docker ps` shows.
const SHOWN_DIGITS: usize = 12;

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
    /// The container that it runs in.
    pub container: Option<ProcessContainer>,
}

/// A container, as a control group names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProcessContainer {
    /// Who runs it: `docker`, `podman`, `containerd`, `cri-o`, `lxc`, or `container` where the
    /// group does not say.
    pub runtime: &'static str,
    /// Its identifier, as long as `docker ps` shows it, or its name.
    pub id: String,
}

impl fmt::Display for ProcessContainer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.runtime, self.id)
    }
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

/// The container in the text of `/proc/PID/cgroup`, from the last part of a path that names one.
fn container(cgroup: &str) -> Option<ProcessContainer> {
    let paths = cgroup.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.filter_map(container_of_path).next()
}

fn container_of_path(path: &str) -> Option<ProcessContainer> {
    let parts: Vec<&str> = path.split('/').collect();
    let is_id = |text: &str| {
        text.len() == CONTAINER_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    for (at, part) in parts.iter().enumerate().rev() {
        let part = part.strip_suffix(".scope").unwrap_or(part);
        let (runtime, id) = part.rsplit_once('-').unwrap_or(("", part));
        if is_id(id) {
            let before = at.checked_sub(1).and_then(|at| parts.get(at)).copied().unwrap_or("");
            let runtime = if runtime.is_empty() { before } else { runtime };
            let id = id[..SHOWN_DIGITS].to_string();
            return Some(ProcessContainer { runtime: runtime_name(runtime), id });
        }
        let lxc = part.strip_prefix("lxc.payload.").or_else(|| {
            (at.checked_sub(1).and_then(|at| parts.get(at)) == Some(&"lxc")).then_some(part)
        });
        if let Some(id) = lxc.and_then(name) {
            return Some(ProcessContainer { runtime: "lxc", id: id.to_string() });
        }
    }
    None
}

fn runtime_name(word: &str) -> &'static str {
    match word {
        "docker" => "docker",
        "libpod" => "podman",
        "cri-containerd" | "containerd" => "containerd",
        "crio" => "cri-o",
        _ => "container",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "3f2a91b0c7d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e";

    #[test]
    fn containers_are_named_by_their_control_group() {
        for (text, shown) in [
            ("0::/system.slice/docker-ID.scope", "docker 3f2a91b0c7d4"),
            ("12:memory:/docker/ID\n0::/", "docker 3f2a91b0c7d4"),
            ("0::/machine.slice/libpod-ID.scope/container", "podman 3f2a91b0c7d4"),
            (
                "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-ID.scope",
                "containerd 3f2a91b0c7d4",
            ),
            ("4:memory:/kubepods/burstable/pod12-34/ID", "container 3f2a91b0c7d4"),
            ("0::/../ID", "container 3f2a91b0c7d4"),
            ("0::/lxc.payload.build/init.scope", "lxc build"),
            ("5:cpu:/lxc/build", "lxc build"),
        ] {
            let found = container(&text.replace("ID", ID)).map(|found| found.to_string());
            assert_eq!(found.as_deref(), Some(shown), "{text}");
        }
        for text in ["", "0::/", "0::/user.slice/user-1000.slice/session-2.scope", "nonsense"] {
            assert_eq!(container(text), None, "{text}");
        }
    }

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
