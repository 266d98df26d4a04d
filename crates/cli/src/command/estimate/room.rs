//! What a device has now.
//!
//! On unified memory the GPU has what the system has available, and a single allocation can
//! hope for what is free without the page cache; both count. A device that is not here has no
//! figures, and the answer says so rather than failing: one may ask about a GPU elsewhere.

use plimsoll::backend::{BackendKind, DeviceId, open};
use plimsoll::{Bytes, memory_info};
use serde::Serialize;

/// What a device has now.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Room {
    pub(super) device: String,
    #[serde(rename = "available_bytes", serialize_with = "bytes")]
    pub(super) available: Option<Bytes>,
    #[serde(rename = "largest_single_bytes", serialize_with = "bytes")]
    pub(super) largest_single: Option<Bytes>,
    pub(super) unified: Option<bool>,
    /// How the figures were obtained, or why there are none.
    pub(super) how: String,
}

fn bytes<S: serde::Serializer>(size: &Option<Bytes>, serializer: S) -> Result<S::Ok, S::Error> {
    size.map(Bytes::get).serialize(serializer)
}

/// Asks a device.
pub(super) fn of(device: DeviceId) -> Room {
    let info = memory_info();
    let name = device.to_string();
    let on_host = matches!(device.kind, BackendKind::Host);
    if on_host || info.is_unified == Some(true) {
        let how = if on_host {
            "sampled: MemAvailable".to_string()
        } else {
            "sampled: MemAvailable, as the GPU shares the system's memory".to_string()
        };
        return Room {
            device: name,
            available: info.system_available,
            largest_single: info.largest_single.filter(|_| !on_host),
            unified: info.is_unified,
            how,
        };
    }
    match open(device).and_then(|opened| opened.free_memory()) {
        Ok(free) => Room {
            device: name,
            available: Some(free),
            largest_single: None,
            unified: Some(false),
            how: "sampled: what the device says is free".to_string(),
        },
        Err(error) => Room {
            device: name,
            available: None,
            largest_single: None,
            unified: info.is_unified,
            how: format!("not here: {error}; give --limit to compare with another machine"),
        },
    }
}
