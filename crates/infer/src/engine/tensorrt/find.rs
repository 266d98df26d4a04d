//! Finds the shim, or says how to build it.
//!
//! The program contains the shim's source, so it can be built wherever TensorRT's headers and
//! a C++ compiler are installed, as on every Jetson with JetPack's development packages.

use std::path::{Path, PathBuf};

use super::sys::Shim;
use crate::error::{InferError, InferResult};

/// The source of the shim.
pub const SOURCE: &str = include_str!("shim.cpp");
/// The file that it is built into.
pub const FILE: &str = "libplimsoll_tensorrt.so";
/// The variable that names that file.
pub const VARIABLE: &str = "PLIMSOLL_TENSORRT";

/// The command that builds the shim from `source` into `library`.
#[must_use]
pub fn build_command(source: &Path, library: &Path) -> Vec<String> {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
    let mut command: Vec<String> =
        [&*compiler, "-std=c++17", "-O2", "-shared", "-fPIC", "-fvisibility=hidden", "-w"]
            .map(String::from)
            .to_vec();
    let named = std::env::var_os("TENSORRT_INCLUDE");
    let named = named.iter().flat_map(std::env::split_paths).collect::<Vec<_>>();
    let usual = ["/usr/local/cuda/include", "/usr/local/tensorrt/include"].map(PathBuf::from);
    for folder in named.iter().chain(&usual) {
        command.push(format!("-I{}", folder.display()));
    }
    command.extend(["-o".into(), library.display().to_string(), source.display().to_string()]);
    command.push("-ldl".into());
    command
}

/// Loads the shim: the one that was named, the one that was compiled in, or the first of
/// those that are found.
pub(super) fn shim(option: Option<&Path>) -> InferResult<Shim> {
    let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A file that the user named is the only one that is tried.
    let named = option.map(Path::to_path_buf).or(variable);
    #[cfg(feature = "tensorrt")]
    if named.is_none() {
        return Shim::linked().map_err(|why| InferError::Unavailable {
            what: "TensorRT".into(),
            why: format!(
                "{why}; install its runtime (libnvinfer), or name its folder in \
                          LD_LIBRARY_PATH"
            ),
        });
    }
    let files = named.map_or_else(usual, |file| vec![file]);
    let mut tried = Vec::new();
    for file in &files {
        // A bare name is looked for by the system; a path is tried only where it exists.
        if file.components().count() > 1 && !file.exists() {
            tried.push(format!("{} (not there)", file.display()));
            continue;
        }
        match Shim::from_file(file) {
            Ok(shim) => return Ok(shim),
            Err(why) => tried.push(format!("{} ({why})", file.display())),
        }
    }
    Err(InferError::Unavailable {
        what: "TensorRT".into(),
        why: format!(
            "tried {}; where TensorRT and its headers are installed (libnvinfer-dev, or \
             JetPack's nvidia-tensorrt-dev), run `plimsoll generate --tensorrt DIR` and set \
             {VARIABLE}=DIR/{FILE}",
            tried.join(", ")
        ),
    })
}

fn usual() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let folder = program.as_deref().and_then(Path::parent);
    let beside = folder.map(|folder| vec![folder.join(FILE), folder.join("../lib").join(FILE)]);
    let home = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local/lib").join(FILE));
    beside.into_iter().flatten().chain(home).chain([PathBuf::from(FILE)]).collect()
}
