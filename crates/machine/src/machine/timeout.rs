//! A timeout for drivers. A GPU that fell off its bus, or a module that waits for a lock, can
//! keep a call for ever; a report must come back all the same.

use std::sync::mpsc;
use std::time::Duration;

/// How long a driver may take to answer: a context on a cold GPU takes seconds.
pub const DRIVER_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs `ask` on a thread of its own and returns its answer, or `None` after
/// [`DRIVER_TIMEOUT`]. A thread that has not answered by then is left behind.
///
/// ```
/// assert_eq!(plimsoll_machine::machine::with_timeout(|| 1 + 1), Some(2));
/// ```
pub fn with_timeout<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    within(DRIVER_TIMEOUT, ask)
}

fn within<T: Send + 'static>(
    timeout: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (answer, receiver) = mpsc::channel();
    // Whoever is not listening any more does not need the answer.
    let asked = move || drop(answer.send(ask()));
    std::thread::Builder::new().name("timeout".to_string()).spawn(asked).ok()?;
    receiver.recv_timeout(timeout).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_or_panics_is_no_answer() {
        let short = Duration::from_millis(10);
        let (_keep, never) = mpsc::channel::<u8>();
        assert!(within(short, move || never.recv()).is_none());
        assert_eq!(within(DRIVER_TIMEOUT, || 7), Some(7));
    }
}
