//! measure
pub mod stats;
