//! What a device has now.
//!
//! On unified memory the GPU has what the system has available, and a single allocation can
//! hope for what is free without the page cache; both count. A device that is not here has no
//! figures, and the answer says so rather than failing: one may ask about a GPU elsewhere.

use plimsoll::backend::DeviceId;
use plimsoll::current::free_memory_on;
use plimsoll::{Bytes, is_unified};
use serde::Serialize;

/// What a device has now.
#[derive(Debug, Clone, Serialize)]
pub(super) struct EstimateRoom {
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
pub(super) fn of(device: DeviceId) -> EstimateRoom {
    match free_memory_on(device) {
        Ok(free) => EstimateRoom {
            device: device.to_string(),
            available: Some(free.available),
            largest_single: free.largest_single,
            unified: free.is_unified,
            how: free.how.to_string(),
        },
        Err(error) => EstimateRoom {
            device: device.to_string(),
            available: None,
            largest_single: None,
            unified: is_unified(),
            how: format!("not here: {error}; give --limit to compare with another machine"),
        },
    }
}
