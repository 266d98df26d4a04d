//! Finds the functions that the guard replaces: the driver's, and those of the dynamic loader.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::{elf, sys};

pub(super) const RTLD_DEFAULT: usize = 0;
pub(super) const RTLD_NEXT: usize = usize::MAX;

/// The address of a function of the driver, looked up at its first use.
pub(crate) struct RealFunction {
    name: &'static CStr,
    at: AtomicUsize,
}

impl RealFunction {
    pub(crate) const fn new(name: &'static CStr) -> RealFunction {
        RealFunction { name, at: AtomicUsize::new(0) }
    }

    /// The address; 0 where no driver has the function.
    #[inline]
    pub(crate) fn get(&self) -> usize {
        match self.at.load(Acquire) {
            0 => self.look(),
            found => found,
        }
    }

    /// Takes this address if the driver does not export the function under its name.
    pub(crate) fn set_if_missing(&self, address: usize) {
        if self.get() == 0 {
            self.at.store(address, Release);
        }
    }

    #[cold]
    fn look(&self) -> usize {
        // Another preloaded library may intercept the driver too. It is found as the next in the
        // order of libraries, where a driver is part of that order. A driver that the program
        // has opened for itself alone is not, and is looked up in its own library.
        let (first, then): (SymbolLookup, SymbolLookup) =
            if is_in_order(self.name) { (next, in_driver) } else { (in_driver, next) };
        let found = match first(self.name) {
            0 => then(self.name),
            found => found,
        };
        self.at.store(found, Release);
        found
    }
}

type SymbolLookup = fn(&CStr) -> usize;
type Dlsym = unsafe extern "C" fn(usize, *const c_char) -> *mut c_void;
type Dlopen = unsafe extern "C" fn(*const c_char, c_int) -> *mut c_void;
type Dlerror = unsafe extern "C" fn() -> *mut c_char;

/// The addresses of the loader's functions, once found. The exported functions jump to them.
pub(super) static REAL_DLSYM: AtomicUsize = AtomicUsize::new(0);
pub(super) static REAL_DLVSYM: AtomicUsize = AtomicUsize::new(0);
pub(super) static REAL_DLOPEN: AtomicUsize = AtomicUsize::new(0);
static REAL_DLERROR: AtomicUsize = AtomicUsize::new(0);
pub(super) static REAL_DLMOPEN: AtomicUsize = AtomicUsize::new(0);

/// The address of a function of the loader, kept in `address`; 0 where no library has it.
pub(super) fn loader_function(address: &AtomicUsize, name: &[u8]) -> usize {
    match address.load(Acquire) {
        0 => {
            let found = elf::next_function(name) as usize;
            address.store(found, Release);
            found
        }
        found => found,
    }
}

/// The function of this name in a library, by the handle that `dlopen` gave; 0 where there is
/// none. Leaves no error for the program's `dlerror`.
pub(crate) fn symbol(handle: usize, name: &CStr) -> usize {
    let dlsym = loader_function(&REAL_DLSYM, b"dlsym");
    if dlsym == 0 {
        return 0;
    }
    // SAFETY: it is the dynamic loader's `dlsym`; the name ends with a zero, and the handle is
    // the program's, which would have passed it to the real function anyway.
    let found = unsafe { core::mem::transmute::<usize, Dlsym>(dlsym)(handle, name.as_ptr()) };
    if found.is_null() {
        forget_error();
    }
    found as usize
}

/// Clears the error that a failed lookup of the guard left: the program's `dlerror` must not
/// report it.
pub(super) fn forget_error() {
    let dlerror = loader_function(&REAL_DLERROR, b"dlerror");
    if dlerror != 0 {
        // SAFETY: it is the dynamic loader's `dlerror`.
        unsafe { core::mem::transmute::<usize, Dlerror>(dlerror)() };
    }
}

fn next(name: &CStr) -> usize {
    symbol(RTLD_NEXT, name)
}

/// Whether the library that has this function is part of the order in which names are looked up.
/// Told by a function of that library which no other library has a reason to export.
fn is_in_order(name: &CStr) -> bool {
    let other =
        if name.to_bytes().starts_with(b"nvml") { c"nvmlInit_v2" } else { c"cuDriverGetVersion" };
    symbol(RTLD_DEFAULT, other) != 0
}

/// The handle of a library; without `load` only if it is loaded already.
pub(crate) fn library(name: &CStr, load: bool) -> usize {
    let dlopen = loader_function(&REAL_DLOPEN, b"dlopen");
    if dlopen == 0 {
        return 0;
    }
    let flags = if load { sys::RTLD_LAZY } else { sys::RTLD_LAZY | sys::RTLD_NOLOAD };
    // SAFETY: it is the dynamic loader's `dlopen`, and the name ends with a zero.
    let found = unsafe { core::mem::transmute::<usize, Dlopen>(dlopen)(name.as_ptr(), flags) };
    if found.is_null() {
        forget_error();
    }
    found as usize
}

/// The function of this name in the driver's library, where one is loaded. The library stays
/// loaded from then on: an address in it must not dangle.
pub(super) fn in_driver(name: &CStr) -> usize {
    let file =
        if name.to_bytes().starts_with(b"nvml") { c"libnvidia-ml.so.1" } else { c"libcuda.so.1" };
    match library(file, false) {
        0 => 0,
        handle => symbol(handle, name),
    }
}
