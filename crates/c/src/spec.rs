//! What is wanted, as C says it.

use plimsoll_memory::{Error, Result};
use plimsoll_points::network::{CoordinateForm, CoordinateOrder, HardSpec};

use crate::error::null;

/// In which order a voxel's coordinates are written.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlimsollOrder {
    /// z, y, x: that of mmcv, OpenPCDet and spconv.
    Zyx = 0,
    /// x, y, z.
    Xyz = 1,
}

/// Hard voxelization: at most `max_points` points of each of at most `max_voxels` voxels.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct PlimsollHardSpec {
    /// The size of a voxel along x, y and z.
    pub voxel_size: [f32; 3],
    /// The range: x, y and z of its first corner, then of its last.
    pub range: [f32; 6],
    /// Points of a voxel at most.
    pub max_points: u32,
    /// Voxels of a cloud at most.
    pub max_voxels: u32,
    /// One of `PlimsollOrder`.
    pub order: u32,
    /// 1 to have the number of the cloud in front of the coordinates, otherwise 0.
    pub batch_index: u32,
}

impl PlimsollHardSpec {
    /// # Safety
    ///
    /// The pointer is null or leads to a spec.
    pub(crate) unsafe fn read(at: *const PlimsollHardSpec) -> Result<HardSpec> {
        // SAFETY: the caller's promise.
        let spec = unsafe { at.as_ref() }.ok_or_else(|| null("spec"))?;
        let order = match spec.order {
            0 => CoordinateOrder::Zyx,
            1 => CoordinateOrder::Xyz,
            other => {
                return Err(Error::Config {
                    field: "order",
                    value: other.to_string(),
                    range: "0 for z, y, x or 1 for x, y, z",
                });
            }
        };
        let form = CoordinateForm { order, batch_index: spec.batch_index != 0 };
        let made = HardSpec::new(spec.voxel_size, spec.range, spec.max_points, spec.max_voxels)?;
        Ok(made.with_form(form))
    }
}
