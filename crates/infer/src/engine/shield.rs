//! Panics of engines become errors.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::error::{InferError, InferResult};

/// How many calls of foreign code are shielded at the moment.
static SHIELDS: AtomicUsize = AtomicUsize::new(0);

/// Whether a panic on some thread may come from an engine. Such a panic becomes an error of its
/// model, so a panic hook must not end the process then. Engines use threads of their own, so the
/// answer is for the whole process.
#[must_use]
pub fn is_shielded() -> bool {
    SHIELDS.load(Ordering::Relaxed) > 0
}

struct Shield;

impl Shield {
    fn raise() -> Shield {
        SHIELDS.fetch_add(1, Ordering::Relaxed);
        Shield
    }
}

impl Drop for Shield {
    fn drop(&mut self) {
        SHIELDS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Runs foreign code that may panic on an unexpected model, and turns the panic into an error: no
/// file makes the program panic.
pub(super) fn shielded<T>(
    engine: &'static str,
    work: impl FnOnce() -> InferResult<T>,
) -> InferResult<T> {
    let _shield = Shield::raise();
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_string())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".into());
        Err(InferError::Engine { engine: engine.into(), why: format!("it panicked: {text}") })
    })
}
