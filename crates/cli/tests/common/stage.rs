//! The fake driver of the guard's own tests and the programs that use it, compiled once for each
//! test binary, and what the tests of `run` ask of its answer.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use serde_json::Value;
use tempfile::TempDir;

use super::common::{Result, text};

/// A C source in the folder of the guard's fakes, its flags, and the file to compile it to.
pub(crate) type StagePart = (&'static str, &'static [&'static str], &'static str);

pub(crate) const DRIVER: StagePart =
    ("cuda.c", &["-shared", "-fPIC", "-Wl,-Bsymbolic,-soname,libcuda.so.1"], "libcuda.so.1");
pub(crate) const CLIENT: StagePart = ("client.c", &[], "client");

/// A folder with these parts, for as long as the tests run.
pub(crate) fn stage(parts: &[StagePart]) -> Result<&'static Path> {
    static BUILT: OnceLock<Option<TempDir>> = OnceLock::new();
    let built = BUILT.get_or_init(|| build(parts).ok());
    Ok(built.as_ref().ok_or("the fake driver cannot be built: the tests need cc")?.path())
}

fn build(parts: &[StagePart]) -> Result<TempDir> {
    let folder = tempfile::tempdir()?;
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guard/tests/fake");
    for (source, flags, to) in parts {
        compile(&sources.join(source), flags, &folder.path().join(to))?;
    }
    Ok(folder)
}

/// Compiles a C source.
pub(crate) fn compile(source: &Path, flags: &[&str], to: &Path) -> Result {
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-w"]).arg(source).args(flags).arg("-o").arg(to).args(["-ldl", "-lpthread"]);
    if cc.stderr(Stdio::null()).status()?.success() { Ok(()) } else { Err("cc failed".into()) }
}

/// The JSON that a command prints.
pub(crate) fn answer_of(command: &mut Command) -> Result<Value> {
    let output = command.output()?;
    serde_json::from_slice(&output.stdout).map_err(|error| {
        format!("{error}: {}{}", text(&output.stdout), text(&output.stderr)).into()
    })
}
