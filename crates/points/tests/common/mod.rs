//! The kernels' text for CUDA as a program of the processor.

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The folder of the kernels.
pub(crate) fn kernels() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/kernels")
}

/// Compiles a file of `tests/emulated` with these definitions (words), and names for files that it
/// includes; none without a C++ compiler.
pub(crate) fn compiled(
    program: PathBuf,
    source: &str,
    definitions: &str,
    includes: &[(&str, PathBuf)],
) -> Outcome<Option<PathBuf>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/emulated").join(source);
    let mut compiler = Command::new("c++");
    compiler.args(["-std=c++17", "-O1", "-w", "-pthread", "-frounding-math", "-ffp-contract=off"]);
    compiler.args(definitions.split_whitespace().map(|definition| format!("-D{definition}")));
    compiler.args(includes.iter().map(|(name, path)| format!("-D{name}=\"{}\"", path.display())));
    match compiler.arg(source).arg("-o").arg(&program).output() {
        Err(why) => {
            println!("skipped: c++: {why}");
            Ok(None)
        }
        Ok(done) if done.status.success() => Ok(Some(program)),
        Ok(done) => Err(String::from_utf8_lossy(&done.stderr).into_owned().into()),
    }
}
