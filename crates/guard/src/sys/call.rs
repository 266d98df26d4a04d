//! One system call.

/// The numbers of the system calls: on x86-64 and on aarch64.
macro_rules! numbers {
    ($($name:ident $x86_64:literal $aarch64:literal;)*) => {
        $(pub(super) const $name: usize =
            if cfg!(target_arch = "aarch64") { $aarch64 } else { $x86_64 };)*
    };
}

numbers! {
    READ 0 63;
    WRITE 1 64;
    CLOSE 3 57;
    FSTAT 5 80;
    MMAP 9 222;
    MUNMAP 11 215;
    SCHED_YIELD 24 124;
    MADVISE 28 233;
    GETPID 39 172;
    FCNTL 72 25;
    FTRUNCATE 77 46;
    GETEUID 107 175;
    FUTEX 202 98;
    GETDENTS 217 61;
    CLOCK_GETTIME 228 113;
    OPENAT 257 56;
    MKDIRAT 258 34;
    UNLINKAT 263 35;
    LINKAT 265 37;
    READLINKAT 267 78;
    FALLOCATE 285 47;
    PRLIMIT 302 261;
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the guard knows the system calls of x86-64 and aarch64 only");

/// Makes a system call.
///
/// # Safety
///
/// What the kernel does with these arguments must be sound.
#[inline]
pub(super) unsafe fn call(number: usize, a: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; it changes rcx, r11 and the result only.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        core::arch::asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") a[0], in("rsi") a[1], in("rdx") a[2],
            in("r10") a[3], in("r8") a[4], in("r9") a[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    // SAFETY: the kernel's calling convention; it changes the result only.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        core::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") a[0] as isize => result,
            in("x1") a[1], in("x2") a[2], in("x3") a[3], in("x4") a[4], in("x5") a[5],
            options(nostack),
        );
    }
    result
}
