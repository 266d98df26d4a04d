//! Counts and limits a program's GPU memory from inside its process.
//!
//! This crate is built twice. As a shared library ([`LIBRARY`]) it is loaded into a program
//! by `LD_PRELOAD` and stands between it and the CUDA driver: it exports the driver's names,
//! counts what is asked for, and refuses what would pass the line with the driver's own code
//! for it. As a plain library it is what `plimsoll run` uses to lay out the shared counters
//! ([`ledger`]) and to read what happened ([`watch`]); a program of ours that runs under the
//! guard knows of it ([`inside`]).
//!
//! Inside a stranger's process it must be small and quiet: no standard library, no
//! allocation, no thread, nothing but the C library's oldest calls. It decides nothing by
//! itself; without a run it passes every call on.
#![cfg_attr(preload, no_std)]
#![cfg_attr(
    not(preload),
    expect(dead_code, reason = "what stands between program and driver is in the other build")
)]

#[cfg(target_os = "linux")]
mod attach;
#[cfg(all(target_os = "linux", not(preload)))]
pub mod client;
#[cfg(target_os = "linux")]
mod elf;
#[cfg(target_os = "linux")]
mod hooks;
#[cfg(target_os = "linux")]
mod intercept;
#[cfg(target_os = "linux")]
mod join;
#[cfg(target_os = "linux")]
pub mod ledger;
#[cfg(target_os = "linux")]
mod liveness;
#[cfg(target_os = "linux")]
mod lock;
#[cfg(target_os = "linux")]
pub mod log;
#[cfg(target_os = "linux")]
pub mod process;
#[cfg(target_os = "linux")]
mod stacks;
#[cfg(target_os = "linux")]
mod sync;
#[cfg(target_os = "linux")]
mod sys;
#[cfg(target_os = "linux")]
mod system_memory;
#[cfg(target_os = "linux")]
mod table;
#[cfg(all(target_os = "linux", not(preload)))]
pub mod watch;

/// The shared library; empty where it cannot be built.
#[cfg(not(preload))]
pub static LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libplimsoll_guard.so"));

/// Nobody could catch it: the process ends. Nothing here panics on purpose.
#[cfg(preload)]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::abort()
}
