//! Finds ONNX Runtime's library.
//!
//! A path that the user gave, by flag or by `ORT_DYLIB_PATH`, is the only one that is tried.
//! Otherwise the usual library directories are searched, then Python environments, since most
//! machines have it from `pip install onnxruntime`. The error message lists what was tried.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Directories that package managers and by-hand installs use.
const USUAL: [&str; 10] = [
    "/usr/local/lib",
    "/usr/lib",
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu/nvidia",
    "/usr/local/onnxruntime/lib",
    "/opt/onnxruntime/lib",
    "/opt/homebrew/lib",
    "/opt/homebrew/opt/onnxruntime/lib",
];

/// How long Python may take to print where its packages are.
const PYTHON_TIMEOUT: Duration = Duration::from_secs(3);

/// Where to search. All of it is passed in, so that a test can choose it.
#[derive(Debug, Clone, Default)]
pub(super) struct LibraryPlaces {
    /// The option.
    pub(super) option: Option<PathBuf>,
    /// `ORT_DYLIB_PATH`.
    pub(super) variable: Option<OsString>,
    /// Library directories.
    pub(super) directories: Vec<PathBuf>,
    /// Roots of Python environments.
    pub(super) environments: Vec<PathBuf>,
    /// Whether to ask `python3` when all else fails.
    pub(super) ask_python: bool,
}

impl LibraryPlaces {
    /// From the environment of this process.
    pub(super) fn of_this_process(option: Option<&Path>) -> LibraryPlaces {
        let variable = std::env::var_os("ORT_DYLIB_PATH").filter(|value| !value.is_empty());
        let environments =
            ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(std::env::var_os).map(PathBuf::from);
        let mut directories: Vec<PathBuf> = std::env::var_os("LD_LIBRARY_PATH")
            .map(|paths| std::env::split_paths(&paths).collect())
            .unwrap_or_default();
        directories.extend(USUAL.iter().map(PathBuf::from));
        LibraryPlaces {
            option: option.map(Path::to_path_buf),
            variable,
            directories,
            environments: environments.collect(),
            ask_python: true,
        }
    }

    /// The files to try in turn, and the places that were searched.
    pub(super) fn search(&self) -> FoundLibraries {
        let mut found = FoundLibraries::default();
        let named =
            self.option.clone().map(|path| (path, "the option")).or_else(|| {
                self.variable.clone().map(|path| (PathBuf::from(path), "ORT_DYLIB_PATH"))
            });
        if let Some((path, from)) = named {
            found.looked.push(format!("{} (from {from})", path.display()));
            found.files.push(path);
            return found;
        }
        for directory in &self.directories {
            found.add_from(directory);
        }
        for environment in &self.environments {
            for packages in site_packages(environment) {
                found.add_from(&packages.join("onnxruntime/capi"));
            }
        }
        if found.files.is_empty() && self.ask_python {
            match ask_python() {
                Ok(packages) => packages
                    .iter()
                    .for_each(|packages| found.add_from(&packages.join("onnxruntime/capi"))),
                Err(why) => found.looked.push(format!("the packages of python3 ({why})")),
            }
        }
        found
    }
}

/// The result of a search.
#[derive(Debug, Clone, Default)]
pub(super) struct FoundLibraries {
    /// Files to try, the most likely first.
    pub(super) files: Vec<PathBuf>,
    /// The places that were searched, for the error message.
    pub(super) looked: Vec<String>,
}

impl FoundLibraries {
    fn add_from(&mut self, directory: &Path) {
        self.looked.push(directory.join(file_name()).display().to_string());
        let Ok(entries) = std::fs::read_dir(directory) else { return };
        let mut files: Vec<PathBuf> = entries
            .flatten()
            .take(100_000)
            .map(|entry| entry.path())
            .filter(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(is_runtime))
            .collect();
        // `libonnxruntime.so` links to the preferred version; among the others the longest
        // name is the file itself.
        files.sort_by_key(|path| (!path.ends_with(file_name()), std::cmp::Reverse(path.clone())));
        self.files.extend(files);
    }
}

/// The library's plain name on this system.
fn file_name() -> String {
    use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
    format!("{DLL_PREFIX}onnxruntime{DLL_SUFFIX}")
}

/// Whether a file's name is that of the runtime, and not of one of its providers.
fn is_runtime(name: &str) -> bool {
    if name == file_name() {
        return true;
    }
    let version = |rest: &str| {
        !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit() || c == '.' || c == '-')
    };
    let numbered = name.strip_prefix("libonnxruntime.so.").is_some_and(version);
    let numbered_mac = name
        .strip_prefix("libonnxruntime.")
        .and_then(|rest| rest.strip_suffix(".dylib"))
        .is_some_and(version);
    numbered || numbered_mac
}

/// The `site-packages` of a Python environment.
fn site_packages(environment: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(environment.join("lib")) else { return Vec::new() };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path().join("site-packages"))
        .collect();
    found.sort();
    found
}

/// Asks `python3` where its packages are, and waits no longer than [`PYTHON_TIMEOUT`].
fn ask_python() -> Result<Vec<PathBuf>, String> {
    // Isolated mode: no module comes from the working directory or the environment.
    let script = "import site,sys\nprint('\\n'.join(sys.path+[site.getusersitepackages()]))";
    let mut child = Command::new("python3")
        .args(["-I", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("python3: {error}"))?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if begun.elapsed() < PYTHON_TIMEOUT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("python3 did not answer in time".into());
            }
        }
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().take(64).map(PathBuf::from).filter(|path| path.is_absolute()).collect())
}

/// Libraries that the CUDA provider needs and that a Python environment has in
/// `site-packages/nvidia/*/lib`: those beside the runtime that was found, in the order in which
/// they depend on each other.
pub(super) fn cuda_companions(library: &Path) -> Vec<PathBuf> {
    const WANTED: [&str; 15] = [
        "libcudart.so.",
        "libnvJitLink.so.",
        "libcublasLt.so.",
        "libcublas.so.",
        "libnvrtc.so.",
        "libcurand.so.",
        "libcufft.so.",
        "libcudnn.so.",
        "libcudnn_graph.so.",
        "libcudnn_ops.so.",
        "libcudnn_heuristic.so.",
        "libcudnn_adv.so.",
        "libcudnn_cnn.so.",
        "libcudnn_engines_precompiled.so.",
        "libcudnn_engines_runtime_compiled.so.",
    ];
    // …/site-packages/onnxruntime/capi/libonnxruntime.so
    let Some(packages) = library.ancestors().nth(3) else { return Vec::new() };
    let Ok(vendors) = std::fs::read_dir(packages.join("nvidia")) else { return Vec::new() };
    let mut files: Vec<PathBuf> = vendors
        .flatten()
        .filter_map(|vendor| std::fs::read_dir(vendor.path().join("lib")).ok())
        .flat_map(|entries| entries.flatten().map(|entry| entry.path()))
        .collect();
    files.sort();
    let named = |path: &PathBuf, start: &str| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(start))
    };
    WANTED
        .iter()
        .filter_map(|start| files.iter().find(|path| named(path, start)).cloned())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn providers_are_not_taken_for_the_runtime() {
        assert!(is_runtime(&file_name()));
        for name in ["libonnxruntime.so.1", "libonnxruntime.so.1.31.1", "libonnxruntime.1.31.dylib"]
        {
            assert!(is_runtime(name), "{name}");
        }
        for name in [
            "libonnxruntime_providers_shared.so",
            "libonnxruntime_providers_cuda.so",
            "libonnxruntime.so.1.debug",
            "libonnxruntime.so.",
            "onnxruntime.txt",
        ] {
            assert!(!is_runtime(name), "{name}");
        }
    }

    #[test]
    fn a_named_file_is_the_only_one_tried() {
        let places = LibraryPlaces {
            option: Some("/a/lib.so".into()),
            variable: Some("/b/lib.so".into()),
            directories: vec!["/usr/lib".into()],
            ask_python: true,
            ..LibraryPlaces::default()
        };
        assert_eq!(places.search().files, [PathBuf::from("/a/lib.so")]);
        let places = LibraryPlaces { option: None, ..places };
        assert_eq!(places.search().files, [PathBuf::from("/b/lib.so")]);
    }

    #[test]
    fn directories_and_python_environments_are_looked_through() {
        let root = tempfile::tempdir().expect("a directory");
        let capi = root.path().join("venv/lib/python3.11/site-packages/onnxruntime/capi");
        std::fs::create_dir_all(&capi).expect("made");
        let library = capi.join("libonnxruntime.so.1.31.1");
        for name in ["libonnxruntime.so.1.31.1", "libonnxruntime_providers_shared.so"] {
            std::fs::write(capi.join(name), b"").expect("written");
        }
        let places = LibraryPlaces {
            directories: vec![root.path().join("lib")],
            environments: vec![root.path().join("venv")],
            ..LibraryPlaces::default()
        };
        let found = places.search();
        assert_eq!(found.files, std::slice::from_ref(&library));
        assert_eq!(found.looked.len(), 2, "{:?}", found.looked);

        let lib = root.path().join("venv/lib/python3.11/site-packages/nvidia/cu13/lib");
        std::fs::create_dir_all(&lib).expect("made");
        for name in ["libcublas.so.13", "libcublasLt.so.13", "libother.so"] {
            std::fs::write(lib.join(name), b"").expect("written");
        }
        let names = [lib.join("libcublasLt.so.13"), lib.join("libcublas.so.13")];
        assert_eq!(cuda_companions(&library), names);
    }
}
