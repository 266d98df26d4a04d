//! Builds pretend drivers from C, as tests ask for them.
//!
//! The sources are part of the test's binary, so that it can be taken to a machine with a
//! real driver and run there: gcc is all it needs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;

const CUDA: &str = include_str!("cuda.c");
const HIP: &str = include_str!("hip.c");
/// What both include.
const KNOBS: &str = include_str!("knobs.h");

/// A libcuda, with these flags of the compiler: see `cuda.c` for what they do.
pub(crate) fn cuda(flags: &[&str]) -> PathBuf {
    build("cuda", CUDA, flags)
}

/// A libamdhip64, with these flags of the compiler: see `hip.c` for what they do.
pub(crate) fn hip(flags: &[&str]) -> PathBuf {
    build("hip", HIP, flags)
}

/// Builds a library once for each set of flags.
fn build(name: &str, source: &str, flags: &[&str]) -> PathBuf {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let key = format!("{name} {}", flags.join(" "));
    let mut built = BUILT.lock().unwrap();
    if let Some(library) = built.get(&key) {
        return library.clone();
    }
    let folder = folder();
    let stem = format!("{name}-{}-{}", std::process::id(), built.len());
    let (file, library) = (folder.join(format!("{stem}.c")), folder.join(format!("{stem}.so")));
    std::fs::write(&file, source.replace("#include \"knobs.h\"", KNOBS)).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-fPIC", "-O1", "-w"]).args(flags).arg("-o").arg(&library).arg(&file);
    let output = gcc.args(["-ldl", "-lpthread"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    std::fs::remove_file(&file).unwrap();
    built.insert(key, library.clone());
    library
}

/// The build's own folder for such things, or the system's where the test was carried to
/// another machine.
fn folder() -> PathBuf {
    let own = Path::new(env!("CARGO_TARGET_TMPDIR"));
    if own.is_dir() { own.to_path_buf() } else { std::env::temp_dir() }
}
