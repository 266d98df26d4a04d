//! Counts and limits a program's GPU memory from inside its process.
//!
//! This crate is built twice. As a shared library ([`LIBRARY`]) it is loaded into a program by
//! `LD_PRELOAD` and stands between the program and the CUDA driver: it exports the driver's names,
//! counts what the program asks for, and refuses what would exceed the limit with the driver's own
//! error code. As an ordinary library it starts programs under the guard ([`launch`]), makes the
//! shared counters ([`ledger`]) and reads what happened ([`watch`]). A Plimsoll program that runs under the guard
//! itself uses [`client`].
//!
//! In another program's process it must be small and unnoticed: no standard library, no allocation,
//! no thread, only the oldest calls of the C library. It decides nothing by itself; without a run
//! it passes every call to the driver. `hooks/mod.rs` says how to add a driver call.
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
#[cfg(all(target_os = "linux", not(preload)))]
pub mod launch;
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

/// Nobody could catch a panic, so the process ends. Nothing here panics on purpose.
#[cfg(preload)]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    sys::abort()
}
