//! For a program of our own that runs under the guard: it says whose memory its threads
//! allocate, sets the line, and reads what is held. `plimsoll bench` is such a program.

#![expect(unsafe_code, reason = "calls the guard that the loader has put into this process")]

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::ledger::{self, GuardLedger, LedgerDevice, LedgerProcess, NO_LIMIT, flag};
use crate::watch::VARIABLE;

/// This process's way to the guard in it. It stays for as long as the process does.
#[derive(Clone, Copy)]
pub struct GuardClient {
    ledger: &'static GuardLedger,
    tag: extern "C" fn(u32) -> bool,
    process: extern "C" fn() -> *const LedgerProcess,
}

impl std::fmt::Debug for GuardClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").finish_non_exhaustive()
    }
}

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

/// A function of the guard's, in this process.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a zero, and a null library means all that are loaded.
    let found = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

impl GuardClient {
    /// Finds the guard in this process.
    ///
    /// # Errors
    ///
    /// Why there is none, in words.
    pub fn find() -> Result<GuardClient, String> {
        if std::env::var_os(VARIABLE).is_none_or(|value| value.is_empty()) {
            return Err("this program was not started under the guard".into());
        }
        let names = [c"plimsoll_guard_ledger", c"plimsoll_guard_tag", c"plimsoll_guard_process"];
        let [Some(ledger), Some(tag), Some(process)] = names.map(function) else {
            return Err("the system's loader did not load the guard".into());
        };
        // SAFETY: the guard's functions of these names have these signatures; a ledger is mapped
        // for ever, and all that changes in it is atomic.
        let (ledger, tag, process) = unsafe {
            let ledger =
                std::mem::transmute::<*mut c_void, extern "C" fn() -> *const GuardLedger>(ledger);
            let tag = std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> bool>(tag);
            let process = std::mem::transmute::<*mut c_void, extern "C" fn() -> *const LedgerProcess>(
                process,
            );
            (ledger().as_ref(), tag, process)
        };
        match ledger {
            Some(ledger) if ledger.magic.load(Acquire) == ledger::MAGIC && tag(0) => {
                Ok(GuardClient { ledger, tag, process })
            }
            Some(_) => Err("the guard in this program is of another version".into()),
            None => Err("the guard in this program has no counters".into()),
        }
    }

    /// From now on what the calling thread allocates belongs to `tag`, until what is returned
    /// is dropped.
    #[must_use]
    pub fn tag(&self, tag: u32) -> ThreadTag {
        (self.tag)(tag);
        ThreadTag { end: self.tag, thread: PhantomData }
    }

    /// Sets the line of every device, and what is held back below it for the driver. NVML's
    /// memory queries show the device as it is from then on.
    pub fn set_limit(&self, limit: u64, reserve: u64, keep_free: u64) {
        self.ledger.flags.fetch_or(flag::NVML_AS_IT_IS, Relaxed);
        self.ledger.reserve.store(reserve, Relaxed);
        self.ledger.keep_free.store(keep_free, Relaxed);
        self.ledger.default_budget.store(limit, Relaxed);
        self.devices().for_each(|device| device.budget.store(limit, Relaxed));
    }

    /// The line of every device that has none of its own; `None` where nothing is refused.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        Some(self.ledger.default_budget.load(Relaxed)).filter(|limit| *limit != NO_LIMIT)
    }

    /// The devices that were used.
    pub fn devices(&self) -> impl Iterator<Item = &'static LedgerDevice> {
        self.ledger.devices.iter().filter(|device| device.state.load(Acquire) == 2)
    }

    /// What this process holds; nothing before it has called the driver.
    #[must_use]
    pub fn process(&self) -> Option<&'static LedgerProcess> {
        // SAFETY: null, or a place in the ledger, which is mapped for ever.
        unsafe { (self.process)().as_ref() }
    }
}

/// A thread whose memory is counted by a tag.
#[derive(Debug)]
pub struct ThreadTag {
    end: extern "C" fn(u32) -> bool,
    /// It is about the thread that it was made in.
    thread: PhantomData<*const ()>,
}

impl Drop for ThreadTag {
    fn drop(&mut self) {
        (self.end)(0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #[test]
    fn outside_of_a_run_there_is_no_guard() {
        let why = super::GuardClient::find().unwrap_err();
        assert!(why.contains("not started under the guard"), "{why}");
    }
}
