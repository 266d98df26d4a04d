//! Whether the guard can be loaded into a program, and why a program could not be started.
//!
//! The guard is a 64-bit library that the dynamic loader loads because of `LD_PRELOAD`. A static
//! program has no loader, and for a set-uid program the loader ignores that variable.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::system;
use crate::sys;

/// Programs that start others in a container, where the guard's file is not.
const CONTAINERS: [&str; 8] =
    ["docker", "podman", "nerdctl", "apptainer", "singularity", "enroot", "ctr", "kubectl"];

/// Why the guard cannot be loaded into a program that is started with these arguments.
pub(super) fn why_not_guarded_as(name: &OsStr, arguments: &[OsString]) -> Option<String> {
    let path = find(Path::new(name))?;
    why_not_guarded(&path).or_else(|| cleared_environment(Path::new(name), arguments))
}

/// `env -i` clears the variables by which the guard is loaded.
fn cleared_environment(name: &Path, arguments: &[OsString]) -> Option<String> {
    let clears = |word: &OsString| word == "-i" || word == "-" || word == "--ignore-environment";
    let mut flags = arguments.iter().take_while(|w| w.to_string_lossy().starts_with('-'));
    (name.file_name()? == "env" && flags.any(clears))
        .then(|| "env -i clears LD_PRELOAD, by which the guard is loaded".to_string())
}

fn find(name: &Path) -> Option<PathBuf> {
    if name.as_os_str().as_bytes().contains(&b'/') {
        return Some(name.to_path_buf());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Why the guard cannot be loaded into the program at this path, if it cannot.
#[must_use]
pub fn why_not_guarded(path: &Path) -> Option<String> {
    let shown = path.display();
    let name = path.file_name()?.to_str()?;
    if CONTAINERS.contains(&name) {
        return Some(format!(
            "{shown} runs programs in a container, where the guard is not; run plimsoll inside it"
        ));
    }
    let facts = fs::metadata(path).ok()?;
    let elevated = facts.permissions().mode() & 0o6000 != 0;
    if elevated
        && (facts.uid() != sys::effective_user() || facts.permissions().mode() & 0o2000 != 0)
    {
        return Some(format!(
            "{shown} is set-uid or set-gid: the loader does not load the guard into it"
        ));
    }
    if system::has_capabilities(path) && sys::effective_user() != 0 {
        return Some(format!(
            "{shown} has capabilities of its own (setcap): the loader does not load the guard into it"
        ));
    }
    // It may be a pipe without a writer.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).ok()?;
    let mut head = [0; 4096];
    let count = file.read_at(&mut head, 0).ok()?;
    if let Some(interpreter) = script(head.get(..count)?) {
        return (interpreter != path).then(|| why_not_guarded(&interpreter)).flatten();
    }
    why_not_elf(&file, name).map(|why| format!("{shown}: {why}"))
}

/// Why a program could not be started, if the system's own error does not say it.
pub(super) fn why_not_started(name: &Path) -> Option<String> {
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

/// The user and the group with whose rights a process acts.
fn acts_as(process: &str) -> Option<(u32, u32)> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_ascii_whitespace().nth(1)?.parse().ok()
    };
    Some((number("Uid:")?, number("Gid:")?))
}

/// Whether a process acts with the rights of another user or group than this one.
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

/// Why the guard cannot be loaded into an ELF program, by its headers; nothing for other files.
fn why_not_elf(file: &File, name: &str) -> Option<String> {
    const PROGRAM: u16 = 2;
    const SHARED: u16 = 3;
    const INTERPRETER: u32 = 3;
    const HERE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
    let mut head = [0; 64];
    let count = file.read_at(&mut head, 0).ok()?;
    let head = head.get(..count)?;
    let [class, order] = [*head.strip_prefix(b"\x7fELF")?.first()?, *head.get(5)?];
    if class == 1 {
        return Some("a 32-bit program; the guard is 64-bit: not limited".to_string());
    }
    let (kind, machine) = (number(head, 16, 2)? as u16, number(head, 18, 2)? as u16);
    if order != 1 || machine != HERE {
        let what =
            "a program for another kind of processor; the guard is for this one: not limited";
        return Some(what.to_string());
    }
    let (table, size, count) = (number(head, 32, 8)?, number(head, 54, 2)?, number(head, 56, 2)?);
    // A loader may be started by itself, with the program as its argument.
    if kind != PROGRAM && kind != SHARED || is_loader(name) {
        return None;
    }
    for index in 0..count {
        let mut entry = [0; 56];
        file.read_exact_at(&mut entry, table.checked_add(index * size)?).ok()?;
        if number(&entry, 0, 4)? as u32 == INTERPRETER {
            let mut path = vec![0; number(&entry, 32, 8)?.min(4096) as usize];
            file.read_exact_at(&mut path, number(&entry, 8, 8)?).ok()?;
            let path = String::from_utf8_lossy(&path).trim_end_matches('\0').to_string();
            let known = is_loader(path.rsplit('/').next().unwrap_or_default());
            let text =
                || format!("its loader, {path}, is not one that the guard knows: not limited");
            return (!known).then(text);
        }
    }
    Some("statically linked: no loader, so no guard".to_string())
}

/// Whether this is the name of a loader that loads the guard: glibc's, or musl's.
fn is_loader(name: &str) -> bool {
    ["ld-linux", "ld64.", "ld-2.", "ld.so", "ld-musl-"].iter().any(|known| name.starts_with(known))
}

/// A little-endian number of this many bytes.
fn number(bytes: &[u8], at: usize, size: usize) -> Option<u64> {
    let bytes = bytes.get(at..at.checked_add(size)?)?;
    Some(bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte)))
}

#[cfg(not(loom))]
#[cfg(test)]
mod tests {
    use super::*;

    /// A program of this class and machine with a loader, or none.
    fn elf(class: u8, machine: u16, loader: Option<&str>) -> Vec<u8> {
        let mut file = vec![0; 64];
        file[..6].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1]);
        (file[16], file[32], file[54]) = (3, 64, 56);
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        if let Some(loader) = loader {
            file[56] = 1;
            file.extend([0; 56]);
            (file[64], file[64 + 8], file[64 + 32]) = (3, 120, loader.len() as u8 + 1);
            file.extend(loader.bytes().chain([0]));
        }
        file
    }

    #[test]
    fn the_loader_of_a_program_is_looked_at_first() {
        const HERE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };
        assert_eq!(why_not_guarded(&std::env::current_exe().unwrap()), None);
        let folder = tempfile::tempdir().unwrap();
        let said = |bytes: &[u8], name: &str| {
            let path = folder.path().join(name);
            fs::write(&path, bytes).unwrap();
            why_not_guarded(&path).unwrap_or_default()
        };
        for loader in ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-aarch64.so.1", "/x/ld-2.31.so"]
        {
            assert_eq!(said(&elf(2, HERE, Some(loader)), "a"), "", "{loader}");
        }
        let strange = said(&elf(2, HERE, Some("/system/bin/linker64")), "a");
        assert!(strange.contains("/system/bin/linker64"), "{strange}");
        assert!(said(&elf(2, HERE, None), "a").contains("statically linked"));
        assert_eq!(said(&elf(2, HERE, None), "ld-linux-x86-64.so.2"), "", "it loads another");
        assert!(said(&elf(1, 3, Some("/lib/ld-linux.so.2")), "a").contains("a 32-bit program"));
        assert!(said(&elf(2, 243, None), "a").contains("another kind of processor"));
        let mut cut = elf(2, HERE, None);
        cut[56] = 1;
        assert_eq!(said(&cut, "a"), "", "its table is not there: the kernel will say so");
        assert_eq!(said(b"#!/bin/sh", "a"), "");
        assert_eq!(said(b"\x7fELF", "a"), "");
    }

    #[test]
    fn what_clears_the_environment_is_seen() {
        let words = |line: &str| line.split(' ').map(OsString::from).collect::<Vec<_>>();
        let of = |line: &str| why_not_guarded_as("env".as_ref(), &words(line));
        assert!(of("-i ls").is_some());
        assert!(of("A=b ls -i").is_none());
        assert!(why_not_guarded(Path::new("/usr/bin/docker")).is_some());
    }

    #[test]
    fn what_does_not_start_is_explained() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        fs::write(&script, "#!/no/such/shell -e\n").unwrap();
        let said = |name: &Path| why_not_started(name).unwrap_or_default();
        assert!(said(&script).contains("chmod +x"));
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        assert!(said(&script).contains("/no/such/shell"), "{}", said(&script));
        assert!(said(folder.path()).contains("folder"));
        assert_eq!(said(Path::new("/")), "it is a folder");
        assert!(said(Path::new("no-such-program")).contains("PATH"));
        assert!(said(Path::new("")).contains("empty"));
    }
}
