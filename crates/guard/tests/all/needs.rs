//! What a test needs and a machine may lack.

use std::process::{Command, Stdio};

/// Whether what a test needs is there. If not, the test is skipped and says so, unless
/// `PLIMSOLL_REQUIRE` names it.
pub(crate) fn has(name: &str, there: bool) -> bool {
    let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
    assert!(there || !required.split(',').any(|one| one == name), "{name}: required, not there");
    if !there {
        eprintln!("skipped: {name} is not there");
    }
    there
}

/// Whether a command succeeds.
pub(crate) fn works(program: &str, words: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
