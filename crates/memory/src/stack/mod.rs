//! The storeys: each is a memory that wraps a memory, adds one idea and forwards the rest.

pub mod pool;
