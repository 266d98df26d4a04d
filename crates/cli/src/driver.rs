//! What is said of a driver that hangs.

use plimsoll::machine::DRIVER_TIMEOUT;

/// The reason where a driver did not answer before the timeout.
pub(crate) fn no_answer() -> String {
    let seconds = DRIVER_TIMEOUT.as_secs();
    format!("its driver did not answer within {seconds} s; dmesg may say why, a restart may help")
}
