//! For a Plimsoll program that runs under the guard itself, such as `plimsoll bench`: it tags the
//! memory of its threads, sets the limit, and reads what is charged.

#![expect(unsafe_code, reason = "calls the guard that the loader has put into this process")]

use std::ffi::{CStr, c_char, c_void};
use std::marker::PhantomData;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::ledger::{self, GuardLedger, LedgerDevice, LedgerProcess, NO_LIMIT, flag};
use crate::watch::VARIABLE;

/// Access to the guard in this process. It stays valid for as long as the process lives.
#[derive(Clone, Copy)]
pub struct GuardClient {
    ledger: &'static GuardLedger,
    tag: extern "C" fn(u32) -> bool,
    process: extern "C" fn() -> *const LedgerProcess,
    device: extern "C" fn(u32) -> i32,
}

impl std::fmt::Debug for GuardClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside").finish_non_exhaustive()
    }
}

unsafe extern "C" {
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}

fn is_used(device: &LedgerDevice) -> bool {
    device.state.load(Acquire) == 2
}

/// The address of a function of the guard in this process.
fn function(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends with a zero, and a null library means all loaded ones.
    let found = unsafe { dlsym(std::ptr::null_mut(), name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

impl GuardClient {
    /// Finds the guard in this process.
    ///
    /// # Errors
    ///
    /// The reason why there is none, in words.
    pub fn find() -> Result<GuardClient, String> {
        if std::env::var_os(VARIABLE).is_none_or(|value| value.is_empty()) {
            return Err("this program was not started under the guard".into());
        }
        let names = [
            c"plimsoll_guard_ledger",
            c"plimsoll_guard_tag",
            c"plimsoll_guard_process",
            c"plimsoll_guard_device",
        ];
        let [Some(ledger), Some(tag), Some(process), Some(device)] = names.map(function) else {
            return Err("the system's loader did not load the guard".into());
        };
        // SAFETY: the guard's functions of these names have these signatures; a ledger stays
        // mapped, and all that changes in it is atomic.
        let (ledger, tag, process, device) = unsafe {
            let ledger =
                std::mem::transmute::<*mut c_void, extern "C" fn() -> *const GuardLedger>(ledger);
            let tag = std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> bool>(tag);
            let process = std::mem::transmute::<*mut c_void, extern "C" fn() -> *const LedgerProcess>(
                process,
            );
            let device = std::mem::transmute::<*mut c_void, extern "C" fn(u32) -> i32>(device);
            (ledger().as_ref(), tag, process, device)
        };
        match ledger {
            Some(ledger) if ledger.magic.load(Acquire) == ledger::MAGIC && tag(0) => {
                Ok(GuardClient { ledger, tag, process, device })
            }
            Some(_) => Err("the guard in this program is of another version".into()),
            None => Err("the guard in this program has no counters".into()),
        }
    }

    /// Counts what the calling thread allocates under `tag`, until the returned value is dropped.
    #[must_use]
    pub fn tag(&self, tag: u32) -> ThreadTag {
        (self.tag)(tag);
        ThreadTag { end: self.tag, thread: PhantomData }
    }

    /// Sets the limit of every device, and what is reserved below it for the driver. From then on
    /// NVML's memory queries show the device as it is.
    pub fn set_limit(&self, limit: u64, reserve: u64, keep_free: u64) {
        self.ledger.flags.fetch_or(flag::NVML_AS_IT_IS, Relaxed);
        self.ledger.reserve.store(reserve, Relaxed);
        self.ledger.keep_free.store(keep_free, Relaxed);
        self.ledger.default_budget.store(limit, Relaxed);
        self.devices().for_each(|device| device.budget.store(limit, Relaxed));
    }

    /// The limit of every device that has none of its own; `None` where nothing is refused.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        Some(self.ledger.default_budget.load(Relaxed)).filter(|limit| *limit != NO_LIMIT)
    }

    /// The limit of the device of this number, as the process counts them; `None` where nothing is
    /// refused.
    #[must_use]
    pub fn limit_of(&self, number: u32) -> Option<u64> {
        Some(self.ledger.limit_of_number(number as usize)).filter(|limit| *limit != NO_LIMIT)
    }

    /// The devices that were used.
    pub fn devices(&self) -> impl Iterator<Item = &'static LedgerDevice> {
        self.ledger.devices.iter().filter(|device| is_used(device))
    }

    /// The device that this process knows by this number, and its place in the ledger, by which a
    /// process's share of it is found; `None` where neither this process nor one beside it has
    /// used it. A process that has not called the driver yet cannot tell which device that is:
    /// then it is the one that has this number in the other processes, if that is one device.
    #[must_use]
    pub fn device(&self, number: u32) -> Option<(usize, &'static LedgerDevice)> {
        let place = match (self.device)(number) {
            ledger::UNKNOWN_PLACE => {
                let same = |device: &LedgerDevice| device.ordinal.load(Relaxed) == number;
                let mut same =
                    (0..).zip(&self.ledger.devices).filter(|(_, d)| is_used(d) && same(d));
                let (place, _) = same.next()?;
                same.next().is_none().then_some(place)?
            }
            place => usize::try_from(place).ok()?,
        };
        self.ledger.devices.get(place).map(|device| (place, device))
    }

    /// What this process holds; `None` before it has called the driver.
    #[must_use]
    pub fn process(&self) -> Option<&'static LedgerProcess> {
        // SAFETY: null, or a slot of the ledger, which stays mapped.
        unsafe { (self.process)().as_ref() }
    }
}

/// A thread whose memory is counted under a tag.
#[derive(Debug)]
pub struct ThreadTag {
    end: extern "C" fn(u32) -> bool,
    /// Not `Send`: it is about the thread that it was made in.
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
