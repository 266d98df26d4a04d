//! The ONNX Runtime of the process.
//!
//! A process can load one ONNX Runtime with one environment, and `ort` never unloads either; so
//! the first that works is kept. A later request for another file is an error that names it: a
//! benchmark must not run another library than the one that was asked for.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use ort::environment::Environment;
use ort::logging::LogLevel;

use super::find::LibraryPlaces;
use super::sys;
use crate::error::{InferError, InferResult};

static LOADED: Mutex<Option<Runtime>> = Mutex::new(None);

/// A runtime that was loaded.
#[derive(Debug, Clone)]
pub(super) struct Runtime {
    /// Its environment.
    pub(super) environment: Environment,
    /// The file.
    pub(super) library: PathBuf,
    /// The version that it reports.
    pub(super) version: String,
}

impl Runtime {
    /// Loads it, or returns the one that is loaded.
    pub(super) fn get(option: Option<&Path>) -> InferResult<Runtime> {
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = loaded.as_ref() {
            return runtime.again(option);
        }
        let runtime = load(&LibraryPlaces::of_this_process(option))?;
        *loaded = Some(runtime.clone());
        Ok(runtime)
    }

    fn again(&self, option: Option<&Path>) -> InferResult<Runtime> {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        match option {
            Some(other) if real(other) != real(&self.library) => Err(unavailable(format!(
                "{} cannot be loaded: this process already runs {}, and it can hold only one",
                other.display(),
                self.library.display()
            ))),
            _ => Ok(self.clone()),
        }
    }
}

pub(super) fn unavailable(why: String) -> InferError {
    InferError::Unavailable { what: "ONNX Runtime".into(), why }
}

/// Tries the places in turn; the error names every file that was tried or searched for.
pub(super) fn load(places: &LibraryPlaces) -> InferResult<Runtime> {
    let found = places.search();
    let mut refused = Vec::new();
    for file in &found.files {
        match sys::probe(file).and_then(|version| start(file, version)) {
            Ok(runtime) => return Ok(runtime),
            Err(why) => refused.push(format!("{}: {why}", file.display())),
        }
    }
    let remedy = format!(
        "install it (`pip install onnxruntime`, 1.{} or newer) or name the file of the library \
         (--library, ORT_DYLIB_PATH)",
        sys::OLDEST
    );
    let tried = if refused.is_empty() {
        format!("no library found; looked for {}", found.looked.join(", "))
    } else {
        format!("tried {}", refused.join("; "))
    };
    Err(unavailable(format!("{tried}; {remedy}")))
}

fn start(file: &Path, version: String) -> Result<Runtime, String> {
    let builder = ort::init_from(file).map_err(|error| error.to_string())?;
    let environment = builder
        .with_name("plimsoll")
        // Some builds send telemetry by default.
        .with_telemetry(false)
        .with_logger(Arc::new(log))
        .build()
        .map_err(|error| error.to_string())?;
    // A custom logger gets every message unless the level is set afterwards.
    environment.set_log_level(LogLevel::Warning);
    Ok(Runtime { environment, library: file.to_path_buf(), version })
}

fn log(level: LogLevel, _category: &str, _id: &str, place: &str, message: &str) {
    match level {
        LogLevel::Verbose => tracing::trace!(target: "onnxruntime", place, "{message}"),
        LogLevel::Info => tracing::debug!(target: "onnxruntime", place, "{message}"),
        // The runtime's warnings are about its internals (a node moved, an unknown option);
        // the engine's fallbacks have what matters to a user.
        LogLevel::Warning => tracing::info!(target: "onnxruntime", place, "{message}"),
        LogLevel::Error | LogLevel::Fatal => {
            tracing::warn!(target: "onnxruntime", place, "{message}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_unavailable_and_names_the_files() {
        let directory = tempfile::tempdir().expect("a directory");
        let places = LibraryPlaces {
            directories: vec![directory.path().join("one"), directory.path().join("two")],
            ..LibraryPlaces::default()
        };
        let error = load(&places).expect_err("nothing there").to_string();
        for word in ["one", "two", "ORT_DYLIB_PATH", "pip install"] {
            assert!(error.contains(word), "{word} in {error}");
        }
    }

    #[test]
    fn a_file_that_is_no_library_is_refused_by_name() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("libonnxruntime.so");
        std::fs::write(&file, b"not a library").expect("written");
        let places = LibraryPlaces { option: Some(file.clone()), ..LibraryPlaces::default() };
        let error = load(&places).expect_err("no library").to_string();
        assert!(error.contains(&file.display().to_string()), "{error}");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn another_library_is_refused() {
        // The C library is always there, and is no ONNX Runtime.
        let places = LibraryPlaces { option: Some("libc.so.6".into()), ..LibraryPlaces::default() };
        let error = load(&places).expect_err("another library").to_string();
        assert!(error.contains("OrtGetApiBase"), "{error}");
    }
}
