//! The exported `dlsym`, `dlvsym` and `dlmopen`.
//!
//! `RTLD_NEXT` depends on who called: the loader looks at the return address. A `dlsym` that
//! called the real one would break that for every program. So these functions let the guard
//! decide, restore the arguments and *jump*: the real function sees the program as its caller.
//! That takes assembly.

use core::ffi::{c_char, c_int, c_void};

use super::dlsym::{decide_dlsym, decide_dlvsym, note_dlmopen};
use super::real::{REAL_DLMOPEN, REAL_DLSYM, REAL_DLVSYM};

/// Exports a function of the loader: the lines call `first` and jump to the function whose
/// address is in `real`, unless `first` has returned what the program shall get.
macro_rules! export {
    ($name:ident($($arg:ident: $type:ty),*), $first:ident, $real:ident, $($line:literal)*) => {
        /// # Safety
        ///
        /// The same as for the dynamic loader's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name($($arg: $type),*) -> *mut c_void {
            core::arch::naked_asm!($($line,)* first = sym $first, real = sym $real)
        }
    };
}

#[cfg(target_arch = "x86_64")]
mod x86_64 {
    use super::*;

    export! {
        dlsym(handle: *mut c_void, name: *const c_char), decide_dlsym, REAL_DLSYM,
        "push rdi"
        "push rsi"
        "sub rsp, 8"
        "call {first}"
        "add rsp, 8"
        "pop rsi"
        "pop rdi"
        "test rax, rax"
        "jz 2f"
        "ret"
        "2:"
        "mov rsi, rdx"
        "mov rax, qword ptr [rip + {real}]"
        "jmp rax"
    }

    export! {
        dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char),
        decide_dlvsym, REAL_DLVSYM,
        "push rdi"
        "push rsi"
        "push rdx"
        "call {first}"
        "mov rcx, rdx"
        "pop rdx"
        "pop rsi"
        "pop rdi"
        "test rax, rax"
        "jz 2f"
        "ret"
        "2:"
        "mov rsi, rcx"
        "mov rax, qword ptr [rip + {real}]"
        "jmp rax"
    }

    export! {
        dlmopen(namespace: isize, name: *const c_char, flags: c_int), note_dlmopen, REAL_DLMOPEN,
        "push rdi"
        "push rsi"
        "push rdx"
        "call {first}"
        "pop rdx"
        "pop rsi"
        "pop rdi"
        "mov rax, qword ptr [rip + {real}]"
        "jmp rax"
    }
}

#[cfg(target_arch = "aarch64")]
mod aarch64 {
    use super::*;

    export! {
        dlsym(handle: *mut c_void, name: *const c_char), decide_dlsym, REAL_DLSYM,
        "stp x29, x30, [sp, #-32]!"
        "str x0, [sp, #16]"
        "bl {first}"
        "mov x9, x0"
        "ldr x0, [sp, #16]"
        "ldp x29, x30, [sp], #32"
        "cbz x9, 2f"
        "mov x0, x9"
        "ret"
        "2:"
        "adrp x9, {real}"
        "ldr x9, [x9, #:lo12:{real}]"
        "br x9"
    }

    export! {
        dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char),
        decide_dlvsym, REAL_DLVSYM,
        "stp x29, x30, [sp, #-32]!"
        "stp x0, x2, [sp, #16]"
        "bl {first}"
        "mov x9, x0"
        "ldp x0, x2, [sp, #16]"
        "ldp x29, x30, [sp], #32"
        "cbz x9, 2f"
        "mov x0, x9"
        "ret"
        "2:"
        "adrp x9, {real}"
        "ldr x9, [x9, #:lo12:{real}]"
        "br x9"
    }

    export! {
        dlmopen(namespace: isize, name: *const c_char, flags: c_int), note_dlmopen, REAL_DLMOPEN,
        "stp x29, x30, [sp, #-48]!"
        "stp x0, x1, [sp, #16]"
        "str x2, [sp, #32]"
        "bl {first}"
        "ldr x2, [sp, #32]"
        "ldp x0, x1, [sp, #16]"
        "ldp x29, x30, [sp], #48"
        "adrp x9, {real}"
        "ldr x9, [x9, #:lo12:{real}]"
        "br x9"
    }
}
