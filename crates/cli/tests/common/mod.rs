//! What the tests of every verb share: the program, its streams and its JSON.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// The program, with signals as they are by default: the tests themselves may have been started to
/// ignore some, as by nohup or in a script's background, and the program would leave them ignored.
pub(crate) fn plimsoll(words: &[&str]) -> Command {
    let mut command = Command::new("/usr/bin/env");
    command.arg("--default-signal=INT,QUIT,HUP,TERM").arg(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(words).env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

pub(crate) fn run(words: &[&str]) -> Result<Output> {
    Ok(plimsoll(words).output()?)
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The answer of a run that must end with this code.
pub(crate) fn json(words: &[&str], code: i32) -> Result<Value> {
    let run = run(&[words, &["--json"]].concat())?;
    if run.status.code() != Some(code) {
        return Err(format!("{words:?}: {}: {}", run.status, text(&run.stderr)).into());
    }
    Ok(serde_json::from_slice(&run.stdout)?)
}

/// The message of a run that must end with code 2 and print nothing.
pub(crate) fn complaint(words: &[&str]) -> Result<String> {
    let run = run(words)?;
    let stderr = text(&run.stderr);
    if run.status.code() != Some(2) || !run.stdout.is_empty() {
        return Err(format!("{words:?}: {}: {stderr}", run.status).into());
    }
    Ok(stderr)
}

/// A folder of recordings beside the workspace, where there is one.
pub(crate) fn shared(path: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared").join(path);
    path.exists().then_some(path)
}
