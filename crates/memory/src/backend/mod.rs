//! The devices: one file each, all of the same plan.
//!
//! A backend is small: it turns a device's calls into the [`Device`] trait and holds no
//! policy. What is pooled, limited or tracked is decided once, in the storeys above.

use std::sync::Arc;

use crate::error::{Error, Result};
use crate::memory::Device;

pub mod host;
pub mod sim;

/// The kinds of device, as users name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// System memory.
    Host,
    /// A device of arithmetic.
    Sim,
}

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            BackendKind::Host => "host",
            BackendKind::Sim => "sim",
        })
    }
}

impl std::str::FromStr for BackendKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "host" | "cpu" => Ok(BackendKind::Host),
            "sim" => Ok(BackendKind::Sim),
            _ => Err(Error::Config {
                field: "backend",
                value: format!("{text:?}"),
                range: "host (or cpu) or sim",
            }),
        }
    }
}

/// Opens a device, or says why there is none.
pub fn open(kind: BackendKind) -> Result<Arc<dyn Device>> {
    match kind {
        BackendKind::Host => Ok(Arc::new(host::Host::open()?)),
        BackendKind::Sim => Ok(Arc::new(sim::Sim::new(sim::SimConfig::default()))),
    }
}
