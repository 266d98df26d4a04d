//! Shared libraries that are loaded at run time.
//!
//! One binary serves machines with and without a driver, so we link none: we load a library
//! by its name and look up every function in it. The error for a missing library lists the
//! files that were tried, the system's message for each, and the remedy.

use std::fmt;
use std::path::Path;

use crate::error::{CudaError, CudaResult};

/// A loaded library. It is never unloaded, because drivers keep threads and callbacks that
/// would outlive it.
pub struct SharedLibrary {
    library: std::mem::ManuallyDrop<libloading::Library>,
    file: String,
}

impl fmt::Debug for SharedLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedLibrary").field(&self.file).finish()
    }
}

impl SharedLibrary {
    /// Loads the first of these files that can be loaded. `what` and `remedy` are for the
    /// error: "CUDA", "install NVIDIA's driver".
    #[expect(unsafe_code, reason = "loading a library runs its initializers")]
    pub fn open<P: AsRef<Path>>(
        what: &str,
        files: &[P],
        remedy: &str,
    ) -> CudaResult<SharedLibrary> {
        let mut tried = Vec::new();
        for file in files {
            let name = file.as_ref().display().to_string();
            // SAFETY: loading runs the library's initializers. The system, or the caller by
            // its path, names a driver's library that programs are meant to load.
            match unsafe { libloading::Library::new(file.as_ref()) } {
                Ok(library) => {
                    let library = std::mem::ManuallyDrop::new(library);
                    return Ok(SharedLibrary { library, file: name });
                }
                Err(error) => tried.push(reason(&name, &error)),
            }
        }
        Err(CudaError::Unavailable {
            what: what.to_string(),
            why: format!("tried {}; {remedy}", tried.join(", ")),
        })
    }

    /// The file that was loaded, as it was named.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Looks a function up; `None` where the library lacks it.
    ///
    /// # Safety
    ///
    /// `F` is the function's type as the library has it: an `unsafe extern "C" fn`.
    #[expect(unsafe_code, reason = "a symbol has no type of its own")]
    pub unsafe fn find<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: the caller promises the type; the library is never unloaded, so the copied
        // address stays valid.
        unsafe { self.library.get::<F>(name.as_bytes()) }.ok().map(|symbol| *symbol)
    }
}

/// The system's message for a file, without the file's name repeated in it.
fn reason(name: &str, error: &libloading::Error) -> String {
    let text =
        std::error::Error::source(error).map_or_else(|| error.to_string(), |e| e.to_string());
    let text = text.trim_start_matches(name).trim_start_matches(": ");
    format!("{name} ({text})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_that_was_tried_is_named_with_the_systems_word() {
        let files = ["libplimsoll-none.so.1", "/no/such/dir/libplimsoll.so"];
        let error = SharedLibrary::open("ABC", &files, "install it").unwrap_err().to_string();
        for part in [files[0], files[1], "ABC is not available", "install it", "No such file"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert_eq!(error.matches(files[0]).count(), 1, "{error}");
    }
}
