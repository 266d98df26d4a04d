//! The message for a driver that hangs.

use plimsoll::machine::DRIVER_TIMEOUT;

/// The reason that is shown if a driver did not answer before the timeout.
pub(crate) fn no_answer() -> String {
    let seconds = DRIVER_TIMEOUT.as_secs();
    format!("its driver did not answer within {seconds} s; dmesg may say why, a restart may help")
}
