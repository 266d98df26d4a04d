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

/// The command that builds the shim where plimsoll looks for it.
const COMMAND: &str = "plimsoll generate --tensorrt";
const RUNTIME: &str =
    "install TensorRT's runtime (libnvinfer), or name its folder in LD_LIBRARY_PATH";

/// Loads the shim: the one that was named, the one that was compiled in, or the first of
/// those that are found.
pub(super) fn shim(option: Option<&Path>) -> InferResult<Shim> {
    let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    // A file that the user named is the only one that is tried.
    let named = option.map(Path::to_path_buf).or(variable);
    let unavailable = |why: String| InferError::Unavailable { what: "TensorRT".into(), why };
    #[cfg(feature = "tensorrt")]
    if named.is_none() {
        return Shim::linked().map_err(|why| unavailable(format!("{why}; {RUNTIME}")));
    }
    let files = named.clone().map_or_else(usual, |file| vec![file]);
    let mut missing = Vec::new();
    for file in &files {
        let found = if exists(file) { Shim::from_file(file) } else { Err(String::new()) };
        match found {
            Ok(shim) => return Ok(shim),
            // It is there, so building it is no remedy, unless the message says so.
            Err(why) if !why.is_empty() && !is_absent(file, &why) => {
                let remedy = if why.contains(COMMAND) { "" } else { RUNTIME };
                let why = format!("{}: {why}; {remedy}", file.display());
                return Err(unavailable(why.trim_end_matches("; ").to_string()));
            }
            Err(_) => missing.push(file.display().to_string()),
        }
    }
    // The command is at the end, which is kept where the message is shortened.
    Err(unavailable(format!(
        "our library for it is not built yet (looked for {}); where TensorRT and its headers are \
         installed (libnvinfer-dev), build it: `{}`",
        missing.join(", "),
        command(named.as_deref())
    )))
}

/// Builds the shim to where it was looked for.
fn command(named: Option<&Path>) -> String {
    let folder = named.filter(|file| file.ends_with(FILE)).and_then(Path::parent);
    match folder.filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => format!("{COMMAND} {}", folder.display()),
        None => COMMAND.to_string(),
    }
}

/// A bare name is looked for by the system; a path must exist.
fn exists(file: &Path) -> bool {
    file.components().count() == 1 || file.exists()
}

/// Whether the system did not find a bare name.
fn is_absent(file: &Path, why: &str) -> bool {
    let name = file.display().to_string();
    file.components().count() == 1 && why.starts_with(&format!("{name}: cannot open"))
}

/// The version of TensorRT that a shim loads.
///
/// # Errors
/// Why the shim or TensorRT cannot be loaded.
pub fn version(library: &Path) -> Result<String, String> {
    Ok(Shim::from_file(library)?.version_text())
}

/// The folder of the user's own libraries, where the shim is looked for.
#[must_use]
pub fn user_folder() -> Option<PathBuf> {
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty())?;
    Some(Path::new(&home).join(".local/lib"))
}

/// The shim's file, where it has been built; without loading it.
#[must_use]
pub fn built() -> Option<PathBuf> {
    let variable = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()).map(PathBuf::from);
    let files = variable.map_or_else(usual, |file| vec![file]);
    files.into_iter().find(|file| file.components().count() > 1 && file.is_file())
}

fn usual() -> Vec<PathBuf> {
    let program = std::env::current_exe().ok();
    let folder = program.as_deref().and_then(Path::parent);
    let beside = folder.map(|folder| vec![folder.join(FILE), folder.join("../lib").join(FILE)]);
    let home = user_folder().map(|folder| folder.join(FILE));
    beside.into_iter().flatten().chain(home).chain([PathBuf::from(FILE)]).collect()
}
