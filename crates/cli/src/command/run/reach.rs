//! Whether the guard can reach a program at all: it is loaded by the dynamic loader, which a
//! static program does not use and a set-uid program does not let be told.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What was found out before the program was started.
#[derive(Debug, Default)]
pub(super) struct Reach {
    pub(super) why_not: Option<String>,
}

/// Programs that start others where the guard's file is not.
const CONTAINERS: [&str; 8] =
    ["docker", "podman", "nerdctl", "apptainer", "singularity", "enroot", "ctr", "kubectl"];

/// Looks at the program that is to be run.
pub(super) fn of(program: &[OsString]) -> Reach {
    let Some(path) = program.first().and_then(|name| find(Path::new(name))) else {
        return Reach::default();
    };
    Reach { why_not: why_not(&path).or_else(|| cleared(program)) }
}

/// `env -i` forgets where the guard is.
fn cleared(program: &[OsString]) -> Option<String> {
    let name = Path::new(program.first()?).file_name()?;
    let clears = |word: &OsString| word == "-i" || word == "-" || word == "--ignore-environment";
    (name == "env"
        && program.iter().skip(1).take_while(|w| w.to_string_lossy().starts_with('-')).any(clears))
    .then(|| "env -i clears LD_PRELOAD, by which the guard is loaded".to_string())
}

fn find(name: &Path) -> Option<PathBuf> {
    if name.as_os_str().as_bytes().contains(&b'/') {
        return Some(name.to_path_buf());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Why the guard does not get into a program.
pub(in crate::command) fn why_not(path: &Path) -> Option<String> {
    let shown = path.display();
    let name = path.file_name()?.to_str()?;
    if CONTAINERS.contains(&name) {
        return Some(format!(
            "{shown} runs programs in a container, where the guard is not; run plimsoll inside it"
        ));
    }
    let facts = fs::metadata(path).ok()?;
    let elevated = facts.permissions().mode() & 0o6000 != 0;
    if elevated && (facts.uid() != user() || facts.permissions().mode() & 0o2000 != 0) {
        return Some(format!(
            "{shown} is set-uid or set-gid: the loader does not let the guard in"
        ));
    }
    let mut head = [0; 4096];
    let count = File::open(path).ok()?.read(&mut head).ok()?;
    let head = head.get(..count)?;
    if let Some(interpreter) = script(head) {
        return (interpreter != path).then(|| why_not(&interpreter)).flatten();
    }
    (is_static(head) == Some(true))
        .then(|| format!("{shown} is statically linked: no loader, so no guard"))
}

/// Why a program could not be started, as far as the system's own words do not say it.
pub(super) fn hint(name: &Path) -> Option<String> {
    if name.as_os_str().is_empty() {
        return Some("its name is empty".to_string());
    }
    let Some(path) = find(name) else {
        return Some("no folder of PATH has a program of that name".to_string());
    };
    let facts = fs::metadata(&path).ok()?;
    if facts.is_dir() {
        return Some("it is a folder".to_string());
    }
    if facts.permissions().mode() & 0o111 == 0 {
        return Some("it is not marked as a program (see chmod +x)".to_string());
    }
    let mut head = [0; 256];
    let count = File::open(&path).ok()?.read(&mut head).ok()?;
    let missing = script(head.get(..count)?).filter(|interpreter| !interpreter.exists())?;
    Some(format!("{}, which its first line names, is not there", missing.display()))
}

fn user() -> u32 {
    acts_as("self").map_or(0, |(user, _)| user)
}

/// The user and the group with whose rights a process acts.
fn acts_as(process: &str) -> Option<(u32, u32)> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    Some((number("Uid:")?, number("Gid:")?))
}

/// Whether a process acts as somebody else than this one.
pub(super) fn is_anothers(pid: u32) -> bool {
    acts_as(&pid.to_string()).is_some_and(|other| Some(other) != acts_as("self"))
}

/// The program that runs a script.
fn script(head: &[u8]) -> Option<PathBuf> {
    let line = head.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let line = std::str::from_utf8(line).ok()?;
    let mut words = line.split_ascii_whitespace();
    let first = PathBuf::from(words.next()?);
    match (first.file_name()?.to_str()?, words.next()) {
        ("env", Some(name)) if !name.starts_with('-') => find(Path::new(name)),
        _ => Some(first),
    }
}

/// Whether a 64-bit ELF program names no loader; nothing for what is none.
fn is_static(head: &[u8]) -> Option<bool> {
    const PROGRAM: u16 = 2;
    const SHARED: u16 = 3;
    const INTERPRETER: u32 = 3;
    let number = |at: usize, size: usize| {
        let bytes = head.get(at..at + size)?;
        Some(bytes.iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte)))
    };
    if head.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let kind = number(16, 2)? as u16;
    let (table, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)?);
    if kind != PROGRAM && kind != SHARED {
        return None;
    }
    for index in 0..count as usize {
        let at = table.checked_add(index.checked_mul(size)?)?;
        if number(at, 4)? as u32 == INTERPRETER {
            return Some(false);
        }
    }
    Some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_is_told_from_a_static_one() {
        assert_eq!(why_not(&std::env::current_exe().unwrap()), None);
        let mut head = vec![0; 64];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[16] = 2;
        head[32] = 64;
        head[54] = 56;
        assert_eq!(is_static(&head), Some(true));
        head[56] = 1;
        assert_eq!(is_static(&head), None, "its table is not there");
        head.extend([3, 0, 0, 0]);
        assert_eq!(is_static(&head), Some(false));
        assert_eq!(is_static(b"#!/bin/sh"), None);
    }

    #[test]
    fn what_clears_the_environment_is_seen() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert!(of(&words("env -i ls")).why_not.is_some());
        assert!(of(&words("env A=b ls -i")).why_not.is_none());
        assert!(why_not(Path::new("/usr/bin/docker")).is_some());
    }

    #[test]
    fn what_does_not_start_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "#!/no/such/shell -e\n").unwrap();
        let said = |name: &Path| hint(name).unwrap_or_default();
        assert!(said(&script).contains("chmod +x"));
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(said(&script).contains("/no/such/shell"), "{}", said(&script));
        assert!(said(folder.path()).contains("folder"));
        assert_eq!(said(Path::new("/")), "it is a folder");
        assert!(said(Path::new("no-such-program")).contains("PATH"));
        assert!(said(Path::new("")).contains("empty"));
    }
}
