//! Hard voxelization of clouds in the host's memory, on a device: one cloud after the other.
//!
//! The kernels are those that work on clouds on a device already (`backend/cuda/hard`); here
//! points are brought there, and voxels back.

use plimsoll_memory::{Block, Error, Result, Stream};

use super::program::{
    HARD_LANES, grid_arguments, hard_fits, hard_slot_bytes, hard_slots, hard_text,
};
use super::{Arg, Kernel, KernelProgram, KernelShape, VoxelDevice};
use crate::network::{HardSpec, HardVoxels, PointBatch};

/// What a block is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HardUse {
    Points,
    Starts,
    Table,
    Lists,
    Rows,
    Owners,
    Report,
    Status,
    State,
    Ranks,
    Numbers,
    Voxels,
    Coordinates,
    Counts,
    Totals,
}

use HardUse as Use;

/// Blocks of the device for one cloud, with their sizes; those that begin as zeros are marked.
fn blocks(spec: &HardSpec, columns: usize, points: u64, cuda: bool) -> Vec<(Use, u64, bool)> {
    let times = |count: u64, bytes: u64| count.saturating_mul(bytes);
    let (slots, most) = (hard_slots(points), u64::from(spec.max_points()));
    let across = points.div_ceil(HARD_LANES.into()).max(1);
    let voxels = spec.most_voxels(points);
    let shared = [
        (Use::Points, times(points, 4 * columns as u64), false),
        (Use::Starts, 16, false),
        (Use::Owners, times(points, 4), false),
        (Use::Report, times(across, 8), false),
        (Use::Status, times(2 * across + 1, 4), false),
        (Use::Voxels, times(voxels, times(most, 4 * columns as u64)), false),
        (Use::Coordinates, times(voxels, 4 * spec.form().columns() as u64), false),
        (Use::Counts, times(voxels, 4), false),
    ];
    let own = if cuda {
        let [slot, list, row] = hard_slot_bytes(spec);
        vec![
            // The table of this launch, and the one that it clears for the next.
            (Use::Table, times(2 * slots, slot), true),
            (Use::Lists, times(slots, list), false),
            (Use::Rows, times(slots, row), true),
            (Use::State, 8, true),
            (Use::Totals, 8, false),
        ]
    } else {
        vec![
            (Use::Table, times(slots, 4), true),
            (Use::Rows, times(slots, times(most, 4)), true),
            (Use::Ranks, times(points, 4), false),
            (Use::Numbers, times(slots, 4), false),
        ]
    };
    shared.into_iter().chain(own).collect()
}

impl VoxelDevice {
    /// What hard voxelization of a cloud of so many points takes on the device.
    pub(super) fn bytes_of_hard(&self, spec: &HardSpec, columns: usize, points: u64) -> u64 {
        let all = blocks(spec, columns, points, self.engine.is_cuda());
        all.iter().fold(0, |sum: u64, (_, bytes, _)| sum.saturating_add(*bytes))
    }

    /// Makes the voxels of a batch, in the place of what `made` holds.
    pub(super) fn make_hard(
        &self,
        batch: &PointBatch<'_>,
        spec: &HardSpec,
        made: &mut HardVoxels,
    ) -> Result<()> {
        let memory = self.lane_memory()?;
        let stream = memory.stream();
        self.keep(memory);
        made.clouds.clear();
        (made.not_finite, made.outside) = (0, 0);
        for cloud in 0..batch.clouds() {
            HardTurn::take(self, stream, batch, spec, cloud, made)?;
        }
        made.make_room(made.clouds.iter().sum(), spec, batch.columns())
    }
}

/// One cloud on the device.
struct HardTurn<'t> {
    device: &'t VoxelDevice,
    stream: Stream,
    spec: &'t HardSpec,
    points: u64,
    blocks: Vec<(Use, Block)>,
}

impl Drop for HardTurn<'_> {
    fn drop(&mut self) {
        for (_, block) in self.blocks.drain(..) {
            self.device.release(block, self.stream);
        }
    }
}

impl<'t> HardTurn<'t> {
    fn take(
        device: &'t VoxelDevice,
        stream: Stream,
        batch: &PointBatch<'_>,
        spec: &'t HardSpec,
        cloud: usize,
        made: &mut HardVoxels,
    ) -> Result<()> {
        let (columns, points) = (batch.columns(), batch.range(cloud).len() as u64);
        let cuda = device.engine.is_cuda();
        let narrow = spec.grid().voxels() < u64::from(u32::MAX);
        if !hard_fits(spec, points) || !(cuda || narrow) {
            return Err(Error::Unavailable {
                what: format!("hard voxelization of this cloud on {}", device.engine.name()),
                why: "it has more points, or its grid more cells, than the device's table can \
                      tell apart; use the host"
                    .into(),
            });
        }
        let program = device.engine.program(&hard_text(spec, columns, true))?;
        let mut turn = HardTurn { device, stream, spec, points, blocks: Vec::new() };
        turn.prepare(columns, cuda)?;
        let starts = [0, points];
        let floats = bytemuck::cast_slice(batch.cloud(cloud));
        if points > 0 {
            device.engine.write(stream, turn.block(Use::Points), floats)?;
        }
        device.engine.write(stream, turn.block(Use::Starts), bytemuck::cast_slice(&starts))?;
        let number = batch.number(cloud);
        let before: usize = made.clouds.iter().sum();
        let voxels = if cuda {
            turn.by_cuda(&*program, number)?
        } else {
            turn.by_opencl(&*program, number)?
        };
        made.clouds.push(voxels);
        turn.fetch(columns, before, voxels, made)
    }

    fn prepare(&mut self, columns: usize, cuda: bool) -> Result<()> {
        for (of, bytes, zero) in blocks(self.spec, columns, self.points, cuda) {
            let block = self.device.allocate(bytes, self.stream)?;
            self.blocks.push((of, block));
            if zero {
                self.device.engine.clear(self.stream, &block, bytes.max(4))?;
            }
        }
        Ok(())
    }

    fn block(&self, of: Use) -> &Block {
        let found = self.blocks.iter().position(|(own, _)| *own == of);
        // What a kernel takes was prepared; the first block stands for none.
        &self.blocks[found.unwrap_or(0)].1
    }

    fn shape(&self) -> KernelShape {
        let across = self.points.div_ceil(HARD_LANES.into()).max(1);
        KernelShape { blocks: [across as u32, 1], lanes: HARD_LANES }
    }

    /// Points, where clouds begin, the grid, then these.
    fn launch(&self, program: &dyn KernelProgram, kernel: Kernel, rest: &[Arg<'_>]) -> Result<()> {
        let mut arguments =
            vec![Arg::Block(self.block(Use::Points)), Arg::Block(self.block(Use::Starts))];
        let grid = self.spec.grid();
        arguments.extend(grid_arguments(grid, [0, grid.voxels(), self.points, 1]));
        arguments.extend_from_slice(rest);
        program.launch(self.stream, kernel, self.shape(), &arguments)
    }

    /// Gives the number of voxels.
    fn by_cuda(&self, program: &dyn KernelProgram, cloud: usize) -> Result<usize> {
        let own = |of| Arg::Block(self.block(of));
        let table = [
            own(Use::Table),
            Arg::U64(hard_slots(self.points)),
            own(Use::Lists),
            own(Use::Rows),
            own(Use::Owners),
            own(Use::Status),
            own(Use::State),
        ];
        let mut insert = table.to_vec();
        insert.push(own(Use::Report));
        self.launch(program, Kernel::HardInsert, &insert)?;
        let mut fill = table.to_vec();
        fill.extend([self.spec.max_voxels(), cloud as u32].map(Arg::U32));
        fill.extend([Use::Voxels, Use::Coordinates, Use::Counts, Use::Totals].map(own));
        self.launch(program, Kernel::HardFill, &fill)?;
        let mut total = [0u32; 1];
        self.read(Use::Totals, bytemuck::cast_slice_mut(&mut total))?;
        Ok(total[0] as usize)
    }

    /// The same. Blocks do not wait for each other here: voxels are counted first.
    fn by_opencl(&self, program: &dyn KernelProgram, cloud: usize) -> Result<usize> {
        let own = |of| Arg::Block(self.block(of));
        let slots = u32::try_from(hard_slots(self.points)).unwrap_or(u32::MAX);
        let insert =
            [own(Use::Table), Arg::U32(slots), own(Use::Rows), own(Use::Owners), own(Use::Report)];
        self.launch(program, Kernel::HardInsert, &insert)?;
        let points = Arg::U32(u32::try_from(self.points).unwrap_or(u32::MAX));
        let count = [own(Use::Rows), own(Use::Owners), points, own(Use::Status)];
        program.launch(self.stream, Kernel::HardCount, self.shape(), &count)?;
        let across = self.shape().blocks[0];
        let mut last = vec![0u32; across as usize];
        self.read(Use::Status, bytemuck::cast_slice_mut(&mut last))?;
        let voxels: u64 = last.iter().map(|count| u64::from(*count)).sum();
        let single = KernelShape { blocks: [1, 1], lanes: HARD_LANES };
        let sums = [own(Use::Status), Arg::U64(across.into())];
        program.launch(self.stream, Kernel::Sums, single, &sums)?;
        let number = [
            own(Use::Rows),
            own(Use::Owners),
            own(Use::Status),
            Arg::U32(self.spec.max_voxels()),
            Arg::U32(cloud as u32),
            own(Use::Ranks),
            own(Use::Numbers),
            own(Use::Voxels),
            own(Use::Coordinates),
            own(Use::Counts),
        ];
        self.launch(program, Kernel::HardNumber, &number)?;
        let copy = [
            own(Use::Points),
            points,
            own(Use::Owners),
            own(Use::Ranks),
            own(Use::Numbers),
            own(Use::Voxels),
        ];
        program.launch(self.stream, Kernel::HardCopy, self.shape(), &copy)?;
        Ok(voxels.min(self.spec.max_voxels().into()) as usize)
    }

    fn read(&self, of: Use, bytes: &mut [u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.device.engine.read(self.stream, self.block(of), bytes)
    }

    /// Brings voxels back behind those that are there.
    fn fetch(
        &self,
        columns: usize,
        before: usize,
        voxels: usize,
        made: &mut HardVoxels,
    ) -> Result<()> {
        made.make_room(before + voxels, self.spec, columns)?;
        let (each, width) = (self.spec.max_points() as usize * columns, self.spec.form().columns());
        let floats = made.voxels.get_mut(before * each..).unwrap_or_default();
        self.read(Use::Voxels, bytemuck::cast_slice_mut(floats))?;
        let places = made.coordinates.get_mut(before * width..).unwrap_or_default();
        self.read(Use::Coordinates, bytemuck::cast_slice_mut(places))?;
        let counts = made.num_points.get_mut(before..).unwrap_or_default();
        self.read(Use::Counts, bytemuck::cast_slice_mut(counts))?;
        let mut report = vec![[0u32; 2]; self.shape().blocks[0] as usize];
        self.read(Use::Report, bytemuck::cast_slice_mut(&mut report))?;
        for [not_finite, outside] in report {
            made.not_finite += u64::from(not_finite);
            made.outside += u64::from(outside);
        }
        Ok(())
    }
}
