//! The exported `dlsym`, `dlvsym`, `dlopen` and `dlmopen`.
//!
//! `RTLD_NEXT` depends on who called: the loader looks at the return address. A `dlsym` that
//! called the real one would break that for every program. So these functions let the guard
//! decide, restore the arguments and *jump*: the real function sees the program as its caller.
//! `dlopen` looks at it too, for the folders that the caller's library names.
//! That takes assembly.

use core::ffi::{c_char, c_int, c_void};

use super::dlsym::{decide_dlsym, decide_dlvsym, note_dlmopen, note_dlopen};
use super::real::{REAL_DLMOPEN, REAL_DLOPEN, REAL_DLSYM, REAL_DLVSYM};

/// The code of `dlsym` and `dlvsym`: calls `first`, restores the arguments, and returns the
/// address that `first` has decided on. If there is none, jumps to the real function with the
/// name that `first` has chosen.
#[cfg(target_arch = "x86_64")]
macro_rules! decide_or_jump {
    () => {
        "
        push rdi
        push rsi
        push rdx
        call {first}
        mov rcx, rdx
        pop rdx
        pop rsi
        pop rdi
        test rax, rax
        jz 2f
        ret
    2:
        mov rsi, rcx
        mov rax, qword ptr [rip + {real}]
        jmp rax
        "
    };
}

/// The code of `dlopen` and `dlmopen`: calls `first`, restores the arguments, and jumps to the real function.
#[cfg(target_arch = "x86_64")]
macro_rules! note_and_jump {
    () => {
        "
        push rdi
        push rsi
        push rdx
        call {first}
        pop rdx
        pop rsi
        pop rdi
        mov rax, qword ptr [rip + {real}]
        jmp rax
        "
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! decide_or_jump {
    () => {
        "
        stp x29, x30, [sp, #-32]!
        stp x0, x2, [sp, #16]
        bl {first}
        mov x9, x0
        ldp x0, x2, [sp, #16]
        ldp x29, x30, [sp], #32
        cbz x9, 2f
        mov x0, x9
        ret
    2:
        adrp x9, {real}
        ldr x9, [x9, #:lo12:{real}]
        br x9
        "
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! note_and_jump {
    () => {
        "
        stp x29, x30, [sp, #-48]!
        stp x0, x1, [sp, #16]
        str x2, [sp, #32]
        bl {first}
        ldr x2, [sp, #32]
        ldp x0, x1, [sp, #16]
        ldp x29, x30, [sp], #48
        adrp x9, {real}
        ldr x9, [x9, #:lo12:{real}]
        br x9
        "
    };
}

/// Exports a function of the loader.
macro_rules! export {
    ($name:ident($($arg:ident: $type:ty),*) = $code:ident, $first:ident, $real:ident) => {
        /// # Safety
        ///
        /// The same as for the dynamic loader's function.
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub(super) unsafe extern "C" fn $name($($arg: $type),*) -> *mut c_void {
            core::arch::naked_asm!($code!(), first = sym $first, real = sym $real)
        }
    };
}

export!(dlsym(handle: *mut c_void, name: *const c_char) = decide_or_jump, decide_dlsym, REAL_DLSYM);
export!(dlvsym(handle: *mut c_void, name: *const c_char, version: *const c_char)
    = decide_or_jump, decide_dlvsym, REAL_DLVSYM);
export!(dlopen(name: *const c_char, flags: c_int) = note_and_jump, note_dlopen, REAL_DLOPEN);
export!(dlmopen(namespace: isize, name: *const c_char, flags: c_int)
    = note_and_jump, note_dlmopen, REAL_DLMOPEN);
