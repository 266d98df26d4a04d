//! Compiled kernels on disk: what was compiled once, and what came with the board.
//!
//! A file is named by what it was compiled from: the target and a number made of the text and
//! its definitions, so that another version of the program finds nothing and compiles anew.
//! It begins with the length and a checksum of the rest, as the driver believes what it is
//! given. `PLIMSOLL_KERNELS` names a folder that is looked into first: for boards without the
//! compiler, filled elsewhere by `plimsoll voxelize --compile-kernels`.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_memory::{Error, Result};

const MAGIC: &[u8; 8] = b"plimsoK1";

/// The name of the file for a text compiled for a target with these options.
pub(crate) fn name(target: &str, source: &str, options: &[String]) -> String {
    let mut sum = checksum(source.as_bytes(), OFFSET);
    for option in options {
        sum = checksum(option.as_bytes(), checksum(&[0], sum));
    }
    format!("voxelize-{target}-{sum:016x}.kernels")
}

/// Folders in the order in which they are looked into; the last is written to.
pub(crate) fn folders() -> Vec<PathBuf> {
    let given = env::var_os("PLIMSOLL_KERNELS").map(PathBuf::from);
    let home = || Some(PathBuf::from(env::var_os("HOME")?).join(".cache"));
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = cache.or_else(home).map(|folder| folder.join("plimsoll/kernels"));
    given.into_iter().chain(cache).collect()
}

/// What a folder has under a name, where it is whole.
pub(crate) fn find(name: &str) -> Option<Vec<u8>> {
    folders().iter().find_map(|folder| open(&fs::read(folder.join(name)).ok()?))
}

/// Keeps what was compiled, whole or not at all.
pub(crate) fn keep(folder: &Path, name: &str, code: &[u8]) -> Result<()> {
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(folder)?;
        let mut builder = tempfile::Builder::new();
        crate::write::readable(&mut builder);
        let mut file = builder.tempfile_in(folder)?;
        std::io::Write::write_all(&mut file, &seal(code))?;
        file.persist(folder.join(name)).map_err(|error| error.error)?;
        Ok(())
    };
    write().map_err(|error| Error::Device {
        call: "keeping compiled kernels",
        why: format!("{}: {error}", folder.display()),
    })
}

fn seal(code: &[u8]) -> Vec<u8> {
    let mut file = MAGIC.to_vec();
    file.extend((code.len() as u64).to_le_bytes());
    file.extend(checksum(code, OFFSET).to_le_bytes());
    file.extend(code);
    file
}

fn open(file: &[u8]) -> Option<Vec<u8>> {
    let (head, code) = file.split_at_checked(24)?;
    let number = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
    let whole = head.starts_with(MAGIC)
        && number(8)? == code.len() as u64
        && number(16)? == checksum(code, OFFSET);
    whole.then(|| code.to_vec())
}

const OFFSET: u64 = 0xCBF2_9CE4_8422_2325;

/// FNV-1a: finds accidents, and is the same on every machine.
fn checksum(bytes: &[u8], start: u64) -> u64 {
    bytes.iter().fold(start, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_whole_is_not_there() {
        let sealed = seal(b"code");
        assert_eq!(open(&sealed).as_deref(), Some(&b"code"[..]));
        assert_eq!(open(&sealed[..sealed.len() - 1]), None);
        let mut changed = sealed.clone();
        changed[25] ^= 1;
        assert_eq!(open(&changed), None);
        assert_eq!(open(b"\x7fELF"), None);
    }

    #[test]
    fn another_text_or_option_is_another_file() {
        let options = |text: &str| vec![text.to_string()];
        let one = name("sm_90", "a", &options("-DX=1"));
        assert_ne!(one, name("sm_90", "b", &options("-DX=1")));
        assert_ne!(one, name("sm_90", "a", &options("-DX=2")));
        assert_ne!(one, name("sm_87", "a", &options("-DX=1")));
        assert_eq!(one, name("sm_90", "a", &options("-DX=1")));
    }
}
