//! Tests of the guard against a simulated driver that keeps its own count: whatever the guard
//! counts, the driver knows what was allocated at once, and that must never exceed the limit.
//!
//! The driver and the programs that use it are written in C and built here by the system's
//! compiler.
#![cfg(target_os = "linux")]

#[cfg(test)]
mod attack;
#[cfg(test)]
mod environment;
#[cfg(test)]
mod host;
#[cfg(test)]
mod interception;
#[cfg(test)]
mod kinds;
#[cfg(test)]
mod loaded;
#[cfg(test)]
mod namespaces;
#[cfg(test)]
mod needs;
#[cfg(test)]
mod processes;
#[cfg(test)]
mod stage;
#[cfg(test)]
mod unrelated_programs;
