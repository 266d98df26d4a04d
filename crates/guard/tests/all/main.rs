//! The guard against a driver that keeps books of its own: whatever the guard believes, the
//! fake driver knows what was handed out at once, and that must never pass the limit.
//!
//! The driver and the programs that use it are C, built here by the system's compiler.
#![cfg(target_os = "linux")]

#[cfg(test)]
mod attack;
#[cfg(test)]
mod environment;
#[cfg(test)]
mod host;
#[cfg(test)]
mod kinds;
#[cfg(test)]
mod loaded;
#[cfg(test)]
mod namespaces;
#[cfg(test)]
mod needs;
#[cfg(test)]
mod others;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod ways;
