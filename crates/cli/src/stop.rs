//! How work is stopped before its end: asked politely, it leaves things in order.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;

/// What shells say of a program that Ctrl-C ended.
pub(crate) const STOPPED: u8 = 130;

/// The first Ctrl-C (or a polite kill) sets the flag; the next one ends the process.
pub(crate) fn listen(stop: &Arc<AtomicBool>) -> anyhow::Result<()> {
    use signal_hook::consts::{SIGINT, SIGTERM};
    for signal in [SIGINT, SIGTERM] {
        // In this order: the flag that the first one sets is what arms the second.
        signal_hook::flag::register_conditional_shutdown(
            signal,
            i32::from(STOPPED),
            Arc::clone(stop),
        )
        .and_then(|_| signal_hook::flag::register(signal, Arc::clone(stop)))
        .context("cannot listen for Ctrl-C")?;
    }
    Ok(())
}
