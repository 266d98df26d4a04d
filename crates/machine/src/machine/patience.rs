//! Drivers hang: a GPU that fell off its bus, a module that waits for a lock. Whoever asks one
//! for the sake of a report must come back all the same.

use std::sync::mpsc;
use std::time::Duration;

/// A context on a cold GPU takes seconds; a driver that hangs, for ever.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Asks on a thread of its own, which is left behind if no answer comes within [`PATIENCE`].
///
/// ```
/// assert_eq!(plimsoll_machine::machine::patiently(|| 1 + 1), Some(2));
/// ```
pub fn patiently<T: Send + 'static>(ask: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    within(PATIENCE, ask)
}

fn within<T: Send + 'static>(
    patience: Duration,
    ask: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (answer, receiver) = mpsc::channel();
    // Whoever is not listening any more does not need the answer.
    let asked = move || drop(answer.send(ask()));
    std::thread::Builder::new().name("patience".to_string()).spawn(asked).ok()?;
    receiver.recv_timeout(patience).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_or_panics_is_no_answer() {
        let short = Duration::from_millis(10);
        let (_keep, never) = mpsc::channel::<u8>();
        assert!(within(short, move || never.recv()).is_none());
        assert_eq!(within(PATIENCE, || 7), Some(7));
    }
}
