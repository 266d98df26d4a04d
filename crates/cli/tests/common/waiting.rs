//! Waiting for what must come, for as long as a busy machine may need.

use std::time::{Duration, Instant};

use crate::common::Result;

/// Waits until something is there.
pub(crate) fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> Result<T> {
    let end = Instant::now() + Duration::from_secs(120);
    while Instant::now() < end {
        if let Some(found) = look() {
            return Ok(found);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(format!("{what} never came").into())
}

/// A function of the shell: waits until a command succeeds.
pub(crate) const WAIT_FOR: &str = "wait_for() {
    for _ in $(seq 1200); do \"$@\" && return; sleep 0.05; done
    echo \"it never came: $*\" >&2; return 1
}
";
