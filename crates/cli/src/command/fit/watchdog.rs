//! Ends a try whose `fit` is gone.
//!
//! A `fit` that is killed (`kill -9`) ends nothing itself, and its try would go on with its program
//! and the GPU memory of it. So a shell waits at the end of a pipe that only `fit` holds open. When
//! that closes, it ends the try's whole process group, as `fit` does after the time limit.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Its arguments are the group, and how many seconds that has to end by itself. It looks each second
/// and ends with the group, whose number may be used again.
const SCRIPT: &str = r#"
read -r _
kill -s TERM -- "-$1" || exit 0
seconds=$2
while [ "$seconds" -gt 0 ]; do
    sleep 1
    kill -s 0 -- "-$1" || exit 0
    seconds=$((seconds - 1))
done
kill -s KILL -- "-$1"
"#;

/// Waits for the end of this process until it is dropped.
#[derive(Debug)]
pub(super) struct TryWatchdog {
    shell: Child,
}

impl TryWatchdog {
    /// Watches for a group. Nothing where there is no shell: the try runs all the same.
    pub(super) fn of(group: u32, grace: Duration) -> Option<TryWatchdog> {
        let mut shell = Command::new("/bin/sh");
        shell.args(["-c", SCRIPT, "plimsoll-fit", &group.to_string()]);
        shell.arg(grace.as_secs().to_string()).process_group(0);
        shell.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        match shell.spawn() {
            Ok(shell) => Some(TryWatchdog { shell }),
            Err(error) => {
                tracing::debug!("nothing ends a try when fit is killed: {error}");
                None
            }
        }
    }
}

impl Drop for TryWatchdog {
    fn drop(&mut self) {
        // Before the pipe closes, which it would take for the end of this process. It only waits, so
        // it ends at once.
        if self.shell.kill().is_ok() {
            let _ = self.shell.wait();
        }
    }
}
