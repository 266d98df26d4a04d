//! Every way to the driver, and the guard on each of them.
//!
//! | a program | and the guard |
//! | --- | --- |
//! | links to libcuda | exports the same names, and is found first |
//! | asks `dlsym` or `dlvsym` with a library's handle | looks there itself; if the driver's function is there, answers with its own |
//! | asks them with `RTLD_DEFAULT` | answers with its own if a driver is loaded, and with nothing otherwise |
//! | asks them with `RTLD_NEXT` | stays out of it: such a chain means "who comes after me" |
//! | asks `cuGetProcAddress` (the CUDA runtime, always) | asks the driver, and puts its own in place of the answer |
//!
//! A program may also load a driver of its own into a link namespace where the guard is not
//! (`dlmopen`). That is not held, and noted.
//!
//! `RTLD_NEXT` depends on who called: the loader looks at the return address. A `dlsym` that
//! called the real one would break it for everybody, so ours does not: it decides, restores
//! the arguments and *jumps*, and the real one sees the program as its caller.

#![expect(unsafe_code, reason = "stands in for the dynamic loader's own functions")]

use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

use crate::hooks::ROWS;
use crate::ledger::flag;
use crate::{attach, elf, sys};

const RTLD_DEFAULT: usize = 0;
const RTLD_NEXT: usize = usize::MAX;

/// A function that the guard stands in for.
pub(crate) struct HookEntry {
    /// As libraries export it.
    pub(crate) name: &'static CStr,
    /// As `cuGetProcAddress` calls it.
    pub(crate) base: &'static [u8],
    /// From which version on it means this one.
    pub(crate) since: i32,
    /// Whether it uses the calling thread's own stream by default.
    pub(crate) per_thread: bool,
    /// Ours.
    pub(crate) hook: *const (),
    /// Theirs.
    pub(crate) real: &'static RealFunction,
}

// SAFETY: the one field that is not shared by nature is the address of a function.
unsafe impl Sync for HookEntry {}

/// Where the driver's own function is.
pub(crate) struct RealFunction {
    name: &'static CStr,
    at: AtomicUsize,
}

impl RealFunction {
    pub(crate) const fn new(name: &'static CStr) -> RealFunction {
        RealFunction { name, at: AtomicUsize::new(0) }
    }

    /// Its address; 0 where no driver has it.
    #[inline]
    pub(crate) fn get(&self) -> usize {
        match self.at.load(Acquire) {
            0 => self.look(),
            found => found,
        }
    }

    #[cold]
    fn look(&self) -> usize {
        // Another library that is loaded before the program looks for who comes after it, as we
        // do. A driver that the program has opened for itself alone comes after nobody.
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

/// The real functions, once found: where the jumps go.
static REAL_DLSYM: AtomicUsize = AtomicUsize::new(0);
static REAL_DLVSYM: AtomicUsize = AtomicUsize::new(0);
static REAL_DLOPEN: AtomicUsize = AtomicUsize::new(0);
static REAL_DLERROR: AtomicUsize = AtomicUsize::new(0);
static REAL_DLMOPEN: AtomicUsize = AtomicUsize::new(0);

fn real(place: &AtomicUsize, name: &[u8]) -> usize {
    match place.load(Acquire) {
        0 => {
            let found = elf::next_function(name) as usize;
            place.store(found, Release);
            found
        }
        found => found,
    }
}

/// What a library that the dynamic loader knows has under this name; no error is left.
pub(crate) fn symbol(handle: usize, name: &CStr) -> usize {
    let dlsym = real(&REAL_DLSYM, b"dlsym");
    if dlsym == 0 {
        return 0;
    }
    // SAFETY: it is the dynamic loader's `dlsym`; the name ends with a zero, and the handle
    // is the caller's, which the real one would have been given anyway.
    let found = unsafe { core::mem::transmute::<usize, Dlsym>(dlsym)(handle, name.as_ptr()) };
    if found.is_null() {
        forget_error();
    }
    found as usize
}

/// A failed look of our own must not be found by the program's `dlerror`.
fn forget_error() {
    let dlerror = real(&REAL_DLERROR, b"dlerror");
    if dlerror != 0 {
        // SAFETY: it is the dynamic loader's `dlerror`.
        unsafe { core::mem::transmute::<usize, Dlerror>(dlerror)() };
    }
}

fn next(name: &CStr) -> usize {
    symbol(RTLD_NEXT, name)
}

/// Whether the library that should have this name is among those that names are looked up in:
/// by one of its names that nobody else has reason to export.
fn is_in_order(name: &CStr) -> bool {
    let other =
        if name.to_bytes().starts_with(b"nvml") { c"nvmlInit_v2" } else { c"cuDriverGetVersion" };
    symbol(RTLD_DEFAULT, other) != 0
}

/// The handle of a library; of one that is loaded already unless `load`.
pub(crate) fn library(name: &CStr, load: bool) -> usize {
    let dlopen = real(&REAL_DLOPEN, b"dlopen");
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

/// What the driver's library has under this name, where one is loaded. The library is held
/// from then on: an address in it must not dangle.
fn in_driver(name: &CStr) -> usize {
    let file =
        if name.to_bytes().starts_with(b"nvml") { c"libnvidia-ml.so.1" } else { c"libcuda.so.1" };
    match library(file, false) {
        0 => 0,
        handle => symbol(handle, name),
    }
}

/// What `dlsym` is to do.
#[repr(C)]
pub(crate) struct DlsymDecision {
    /// What to return, if it is not 0.
    result: usize,
    /// Otherwise the name to ask the real one for.
    name: *const c_char,
}

/// Whether a name can be one of ours: `cu` and a capital, or NVML's. `cudaMalloc`,
/// `cublasCreate` and `curl_easy_init` are not.
fn concerns(name: &[u8]) -> bool {
    matches!(name, [b'c', b'u', b'A'..=b'Z', ..]) || name.starts_with(b"nvml")
}

/// Decides by what the real function would find, which `look` asks it for.
fn decide(handle: usize, name: *const c_char, look: impl FnOnce(&CStr) -> usize) -> DlsymDecision {
    let pass = DlsymDecision { result: 0, name };
    // SAFETY: callers of `dlsym` pass a text that ends with a zero; null is told apart.
    let text = unsafe { sys::c_bytes(name) };
    if handle == RTLD_NEXT || !concerns(text) || !attach::in_run() {
        return pass;
    }
    let Some(row) = ROWS.iter().find(|row| row.name.to_bytes() == text) else { return pass };
    let hook = row.hook as usize;
    let hooked = DlsymDecision { result: hook, name };
    let found = if handle == RTLD_DEFAULT { hook } else { look(row.name) };
    if found == hook {
        // Found by the order of libraries, in which we stand first, driver or no driver.
        let absent = c"a function of the CUDA driver, which is not loaded";
        return if row.real.get() != 0 {
            hooked
        } else {
            DlsymDecision { result: 0, name: absent.as_ptr() }
        };
    }
    let known = found != 0 && (found == row.real.get() || found == in_driver(row.name));
    // A library of another kind may have a function of this name, which is then meant.
    if known { hooked } else { pass }
}

pub(crate) extern "C" fn decide_dlsym(handle: usize, name: *const c_char) -> DlsymDecision {
    if real(&REAL_DLSYM, b"dlsym") == 0 {
        REAL_DLSYM.store(nothing as *const () as usize, Release);
    }
    decide(handle, name, |name| symbol(handle, name))
}

pub(crate) extern "C" fn decide_dlvsym(
    handle: usize,
    name: *const c_char,
    version: *const c_char,
) -> DlsymDecision {
    type Dlvsym = unsafe extern "C" fn(usize, *const c_char, *const c_char) -> *mut c_void;
    let dlvsym = match real(&REAL_DLVSYM, b"dlvsym") {
        0 => {
            REAL_DLVSYM.store(nothing as *const () as usize, Release);
            return DlsymDecision { result: 0, name };
        }
        found => found,
    };
    decide(handle, name, |name| {
        // SAFETY: it is the dynamic loader's `dlvsym`; the handle and the version are what
        // the program has passed to it.
        let found = unsafe {
            core::mem::transmute::<usize, Dlvsym>(dlvsym)(handle, name.as_ptr(), version)
        };
        if found.is_null() {
            forget_error();
        }
        found as usize
    })
}

/// Notes a library that is loaded where the guard is not.
pub(crate) extern "C" fn note_dlmopen(namespace: isize) {
    const WITH_THE_PROGRAM: isize = 0;
    if real(&REAL_DLMOPEN, b"dlmopen") == 0 {
        REAL_DLMOPEN.store(nothing as *const () as usize, Release);
    }
    if let (true, Some(ledger)) = (namespace != WITH_THE_PROGRAM, attach::ledger()) {
        ledger.warn(flag::SEPARATE);
    }
}

/// In place of a function that no library has.
extern "C" fn nothing() -> usize {
    0
}

#[cfg(all(preload, target_arch = "x86_64"))]
mod jump {
    use super::{REAL_DLMOPEN, REAL_DLSYM, REAL_DLVSYM};
    use super::{c_char, c_int, c_void, decide_dlsym, decide_dlvsym, note_dlmopen};

    /// # Safety
    ///
    /// As the dynamic loader's.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
        core::arch::naked_asm!(
            "push rdi",
            "push rsi",
            "sub rsp, 8",
            "call {decide}",
            "add rsp, 8",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "jz 2f",
            "ret",
            "2:",
            "mov rsi, rdx",
            "mov rax, qword ptr [rip + {real}]",
            "jmp rax",
            decide = sym decide_dlsym,
            real = sym REAL_DLSYM,
        )
    }

    /// # Safety
    ///
    /// As the dynamic loader's.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn dlvsym(
        handle: *mut c_void,
        name: *const c_char,
        version: *const c_char,
    ) -> *mut c_void {
        core::arch::naked_asm!(
            "push rdi",
            "push rsi",
            "push rdx",
            "call {decide}",
            "mov rcx, rdx",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "test rax, rax",
            "jz 2f",
            "ret",
            "2:",
            "mov rsi, rcx",
            "mov rax, qword ptr [rip + {real}]",
            "jmp rax",
            decide = sym decide_dlvsym,
            real = sym REAL_DLVSYM,
        )
    }
    /// # Safety
    ///
    /// As the dynamic loader's.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn dlmopen(
        namespace: isize,
        name: *const c_char,
        flags: c_int,
    ) -> *mut c_void {
        core::arch::naked_asm!(
            "push rdi",
            "push rsi",
            "push rdx",
            "call {note}",
            "pop rdx",
            "pop rsi",
            "pop rdi",
            "mov rax, qword ptr [rip + {real}]",
            "jmp rax",
            note = sym note_dlmopen,
            real = sym REAL_DLMOPEN,
        )
    }
}

#[cfg(all(preload, target_arch = "aarch64"))]
mod jump {
    use super::{REAL_DLMOPEN, REAL_DLSYM, REAL_DLVSYM};
    use super::{c_char, c_int, c_void, decide_dlsym, decide_dlvsym, note_dlmopen};

    /// # Safety
    ///
    /// As the dynamic loader's.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-32]!",
            "str x0, [sp, #16]",
            "bl {decide}",
            "mov x9, x0",
            "ldr x0, [sp, #16]",
            "ldp x29, x30, [sp], #32",
            "cbz x9, 2f",
            "mov x0, x9",
            "ret",
            "2:",
            "adrp x9, {real}",
            "ldr x9, [x9, #:lo12:{real}]",
            "br x9",
            decide = sym decide_dlsym,
            real = sym REAL_DLSYM,
        )
    }

    /// # Safety
    ///
    /// As the dynamic loader's.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn dlvsym(
        handle: *mut c_void,
        name: *const c_char,
        version: *const c_char,
    ) -> *mut c_void {
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-32]!",
            "stp x0, x2, [sp, #16]",
            "bl {decide}",
            "mov x9, x0",
            "ldp x0, x2, [sp, #16]",
            "ldp x29, x30, [sp], #32",
            "cbz x9, 2f",
            "mov x0, x9",
            "ret",
            "2:",
            "adrp x9, {real}",
            "ldr x9, [x9, #:lo12:{real}]",
            "br x9",
            decide = sym decide_dlvsym,
            real = sym REAL_DLVSYM,
        )
    }
    /// # Safety
    ///
    /// As the dynamic loader's.
    #[unsafe(naked)]
    #[unsafe(no_mangle)]
    unsafe extern "C" fn dlmopen(
        namespace: isize,
        name: *const c_char,
        flags: c_int,
    ) -> *mut c_void {
        core::arch::naked_asm!(
            "stp x29, x30, [sp, #-48]!",
            "stp x0, x1, [sp, #16]",
            "str x2, [sp, #32]",
            "bl {note}",
            "ldr x2, [sp, #32]",
            "ldp x0, x1, [sp, #16]",
            "ldp x29, x30, [sp], #48",
            "adrp x9, {real}",
            "ldr x9, [x9, #:lo12:{real}]",
            "br x9",
            note = sym note_dlmopen,
            real = sym REAL_DLMOPEN,
        )
    }
}

/// Puts ours in place of what `cuGetProcAddress` found.
///
/// # Safety
///
/// `name` and `found` are what the program passed to a call that succeeded.
pub(crate) unsafe fn replace(
    name: *const c_char,
    found: *mut *mut c_void,
    version: c_int,
    flags: u64,
) {
    const PER_THREAD: u64 = 2;
    // SAFETY: the driver has read the name and written the address; null is told apart.
    let (text, place) = unsafe { (sys::c_bytes(name), found.as_mut()) };
    let Some(place) = place.filter(|place| !place.is_null()) else { return };
    let fits = |row: &&HookEntry| row.base == text && row.since <= version;
    let newest = |per_thread: bool| {
        let all = ROWS.iter().filter(fits).filter(|row| row.per_thread == per_thread);
        all.max_by_key(|row| row.since)
    };
    let row = match flags & PER_THREAD != 0 {
        true => newest(true).or_else(|| newest(false)),
        false => newest(false),
    };
    if let Some(row) = row.filter(|row| !core::ptr::eq(row.hook, (*place).cast())) {
        // The name's own address where the driver exports it, else what it has just said.
        if row.real.get() == 0 {
            row.real.at.store(*place as usize, Release);
        }
        *place = row.hook as *mut c_void;
    }
}
