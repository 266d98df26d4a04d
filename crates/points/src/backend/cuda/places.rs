//! The voxel of every point of a cloud that is on the device already.

use plimsoll_memory::backend::cuda::{Argument, Cuda, Function, Launch};
use plimsoll_memory::{Error, Result, Stream};

use super::{grid_arguments, load};
use crate::backend::device::program::{HARD_LANES, network_text};
use crate::network::{CoordinateForm, HardSpec};

/// Dynamic voxelization on the device: it works in the caller's memory alone.
#[derive(Debug)]
pub struct ResidentPlaces {
    spec: HardSpec,
    kernel: Function,
}

impl ResidentPlaces {
    /// Compiles the kernel for the grid of a spec, whose maxima do not matter here, and points of
    /// so many columns.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for fewer than three columns; what compiling ends with.
    pub fn new(device: &Cuda, spec: &HardSpec, columns: usize) -> Result<ResidentPlaces> {
        if columns < 3 {
            return Err(Error::Config {
                field: "columns",
                value: columns.to_string(),
                range: "three or more: x, y and z",
            });
        }
        let form = CoordinateForm { batch_index: false, ..spec.form() };
        let module = load(device, &network_text(&spec.with_form(form), columns))?;
        Ok(ResidentPlaces { spec: *spec, kernel: module.function("place_points")? })
    }

    /// Queues the work on a stream: three numbers (`i32`) for each point, −1 where it has no voxel.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for 2³⁹ points or more; what the driver says otherwise.
    ///
    /// # Safety
    ///
    /// The addresses are of memory of the device that is as large as this and aligned to 4 bytes,
    /// and lives until the stream is past the launch.
    pub unsafe fn launch(
        &self,
        stream: Stream,
        points: u64,
        count: u64,
        coordinates: u64,
    ) -> Result<()> {
        let across = count.div_ceil(HARD_LANES.into());
        let Some(across) = u32::try_from(across).ok().filter(|across| *across < 1 << 31) else {
            return Err(Error::Config {
                field: "points",
                value: count.to_string(),
                range: "fewer than 2^39 points of a cloud",
            });
        };
        if across == 0 {
            return Ok(());
        }
        let grid = self.spec.grid();
        let mut arguments = vec![Argument::U64(points)];
        arguments.extend(grid_arguments(grid, [0, grid.voxels(), count, 1]));
        arguments.extend([Argument::U32(0), Argument::U64(coordinates)]);
        let shape = Launch { grid: [across, 1, 1], block: [HARD_LANES, 1, 1], shared: 0 };
        // SAFETY: the arguments are those of the kernel, and the rest is the caller's promise.
        unsafe { self.kernel.launch(stream, shape, &arguments) }
    }
}
