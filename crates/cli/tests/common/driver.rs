//! A driver of CUDA whose device is made up.

use std::path::Path;
use std::process::Command;

use crate::common::Result;

/// A folder with a driver of CUDA whose device is made up, for `LD_LIBRARY_PATH`. Needs cc.
pub(crate) fn fake_cuda() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../memory/tests/fake/cuda.c");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-w", "-Wl,-soname,libcuda.so.1", "-o"]);
    cc.arg(folder.path().join("libcuda.so.1")).arg(source).args(["-ldl", "-lpthread"]);
    if !cc.status()?.success() {
        return Err("the fake driver cannot be built: the tests need cc".into());
    }
    Ok(folder)
}
