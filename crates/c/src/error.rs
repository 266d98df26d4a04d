//! What a call returns, and what it says in words.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use plimsoll_memory::{Error, Result};

/// What a call came to.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlimsollStatus {
    /// It is done, or queued.
    Ok = 0,
    /// An argument is wrong, or there is too little room, some of which may be written.
    BadArgument = 2,
    /// A driver or the system refused.
    Failed = 3,
    /// There is no such device, driver or compiler here.
    Unavailable = 4,
    /// There is no memory for it.
    OutOfMemory = 5,
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// What was wrong in the last call of this thread that did not return `Ok`. The text lives until
/// the thread's next such call.
#[unsafe(no_mangle)]
pub extern "C" fn plimsoll_last_error() -> *const c_char {
    LAST.with_borrow(|text| text.as_ptr())
}

fn say(text: &str) {
    let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = text);
}

/// Does a call's work; nothing unwinds into the caller.
pub(crate) fn status(work: impl FnOnce() -> Result<()>) -> PlimsollStatus {
    let done = catch_unwind(AssertUnwindSafe(work));
    let error = match done {
        Ok(Ok(())) => return PlimsollStatus::Ok,
        Ok(Err(error)) => error,
        Err(_) => {
            say("this is a bug in plimsoll");
            return PlimsollStatus::Failed;
        }
    };
    say(&error.to_string());
    match error {
        Error::Config { .. } | Error::Malformed { .. } => PlimsollStatus::BadArgument,
        Error::Unavailable { .. } => PlimsollStatus::Unavailable,
        error if error.is_out_of_memory() => PlimsollStatus::OutOfMemory,
        _ => PlimsollStatus::Failed,
    }
}

/// The error for a pointer that leads nowhere.
pub(crate) fn null(field: &'static str) -> Error {
    Error::Config { field, value: "a null pointer".to_string(), range: "the address of memory" }
}

/// A slice of the caller's memory; nothing is read where there are no elements.
///
/// # Safety
///
/// The pointer leads to as many elements, which live and do not change during the call.
pub(crate) unsafe fn slice<'a, T>(
    field: &'static str,
    at: *const T,
    length: usize,
) -> Result<&'a [T]> {
    match (length, at.is_null()) {
        (0, _) => Ok(&[]),
        (_, true) => Err(null(field)),
        _ if length > isize::MAX as usize / size_of::<T>() => Err(endless(field, length)),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(at, length) }),
    }
}

/// The error for more elements than any memory has.
fn endless(field: &'static str, length: usize) -> Error {
    let range = "as many elements as memory can hold";
    Error::Config { field, value: length.to_string(), range }
}

/// The same to be written.
///
/// # Safety
///
/// As [`slice`], and nobody else uses the elements.
pub(crate) unsafe fn slice_mut<'a, T>(
    field: &'static str,
    at: *mut T,
    length: usize,
) -> Result<&'a mut [T]> {
    match (length, at.is_null()) {
        (0, _) => Ok(&mut []),
        (_, true) => Err(null(field)),
        _ if length > isize::MAX as usize / size_of::<T>() => Err(endless(field, length)),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts_mut(at, length) }),
    }
}
