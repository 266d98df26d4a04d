//! One lane: a stream, blocks of the device, memory of the host, and a turn after the other.

use plimsoll_memory::{Block, Result, Stream};
use rayon::prelude::*;

use super::program::{grid_arguments, stride_of};
use super::sort::{SortBlocks, histogram_bytes, sort};
use super::{Arg, Kernel, KernelProgram, KernelShape, MOST_BLOCKS, Staging, VoxelDevice};
use crate::backend::host::occupancy::spread;
use crate::backend::{VoxelPiece, VoxelTally};
use crate::cloud::Cloud;
use crate::spec::{Cells, VoxelMode};

/// Threads of a block.
const THREADS: u32 = 256;

/// Some clouds, and the part of the output that is theirs.
pub(super) struct VoxelTurn<'t> {
    pub(super) clouds: &'t [Cloud],
    pub(super) out: &'t mut [u8],
}

/// What a lane works in: a stream, blocks of the device, and memory of the host.
pub(super) struct LaneMemory {
    stream: Stream,
    blocks: Vec<(Block, u64)>,
    staging: Option<(Box<dyn Staging>, u64)>,
}

impl LaneMemory {
    pub(super) fn new(stream: Stream) -> LaneMemory {
        LaneMemory { stream, blocks: Vec::new(), staging: None }
    }

    pub(super) fn stream(&self) -> Stream {
        self.stream
    }

    pub(super) fn release(self, device: &VoxelDevice) {
        for (block, _) in self.blocks {
            device.release(block, self.stream);
        }
    }
}

/// A stream with what its turns work in, which is kept for the next lane when this one ends.
pub(super) struct VoxelLane<'l> {
    gpu: &'l VoxelDevice,
    program: &'l dyn KernelProgram,
    piece: &'l VoxelPiece<'l>,
    stream: Stream,
    blocks: Vec<(Block, u64)>,
    staging: Option<(Box<dyn Staging>, u64)>,
}

/// Where a turn's blocks stand among the lane's.
#[derive(Clone, Copy)]
enum Use {
    Points,
    Starts,
    Result,
    Report,
    Keys,
    Numbers,
    OtherKeys,
    OtherNumbers,
    Histogram,
}

impl Drop for VoxelLane<'_> {
    fn drop(&mut self) {
        let (blocks, staging) = (std::mem::take(&mut self.blocks), self.staging.take());
        self.gpu.keep(LaneMemory { stream: self.stream, blocks, staging });
    }
}

impl<'l> VoxelLane<'l> {
    pub(super) fn new(
        gpu: &'l VoxelDevice,
        program: &'l dyn KernelProgram,
        piece: &'l VoxelPiece<'l>,
    ) -> Result<VoxelLane<'l>> {
        let LaneMemory { stream, blocks, staging } = gpu.lane_memory()?;
        Ok(VoxelLane { gpu, program, piece, stream, blocks, staging })
    }

    /// Does one turn, from clouds to voxels.
    pub(super) fn take(&mut self, turn: VoxelTurn<'_>) -> Result<VoxelTally> {
        let points: u64 = turn.clouds.iter().map(|cloud| cloud.len() as u64).sum();
        let mut tally = VoxelTally { points, ..VoxelTally::default() };
        let result = self.result_bytes(turn.clouds.len() as u64);
        self.upload(turn.clouds, points)?;
        self.room(Use::Result, result)?;
        self.gpu.engine.clear(self.stream, self.block(Use::Result), result)?;
        let (not_finite, outside) = match self.piece.spec.mode() {
            VoxelMode::Occupancy => self.simple(Kernel::Mark, &turn)?,
            VoxelMode::Count => self.simple(Kernel::Count, &turn)?,
            VoxelMode::Max => self.simple(Kernel::Largest, &turn)?,
            VoxelMode::Mean => {
                let (dropped, occupied) = self.means(&turn, points)?;
                tally.occupied = occupied;
                dropped
            }
        };
        (tally.not_finite, tally.outside) = (not_finite, outside);
        let occupied = self.download(turn.out, turn.clouds.len(), result)?;
        if self.piece.spec.mode() != VoxelMode::Mean {
            tally.occupied = occupied;
        }
        Ok(tally)
    }

    /// Words of 64 bits for a cloud's bits.
    fn words(&self) -> u64 {
        self.piece.span().div_ceil(64)
    }

    fn result_bytes(&self, clouds: u64) -> u64 {
        let each = match self.piece.spec.mode() {
            VoxelMode::Occupancy => self.words() * 8,
            _ => self.piece.span() * 4 * self.piece.spec.planes(),
        };
        each * clouds
    }

    /// A block of at least this many bytes for a use, kept for the next turns.
    fn room(&mut self, of: Use, bytes: u64) -> Result<()> {
        let place = of as usize;
        if self.blocks.get(place).is_some_and(|(_, room)| *room >= bytes) {
            return Ok(());
        }
        while self.blocks.len() <= place {
            // A smallest block for every use, until it wants more.
            self.blocks.push((self.gpu.allocate(4, self.stream)?, 4));
        }
        // The new one comes first, so that the use always has one.
        let block = self.gpu.allocate(bytes, self.stream)?;
        if let Some(old) = self.blocks.get_mut(place) {
            let (gone, _) = std::mem::replace(old, (block, bytes));
            self.gpu.release(gone, self.stream);
        }
        Ok(())
    }

    fn block(&self, of: Use) -> &Block {
        // Every use asks for room first.
        &self.blocks[of as usize].0
    }

    fn stage(&mut self, bytes: u64) -> Result<&mut [u8]> {
        if self.staging.as_ref().is_none_or(|(_, room)| *room < bytes) {
            self.staging = None;
            self.staging = Some((self.gpu.engine.staging(bytes)?, bytes));
        }
        let staging = self.staging.as_mut().map(|(staging, _)| staging.bytes());
        Ok(staging.unwrap_or_default().get_mut(..bytes as usize).unwrap_or_default())
    }

    /// Packs the points of all clouds, one after the other, and says where each begins.
    fn upload(&mut self, clouds: &[Cloud], points: u64) -> Result<()> {
        let stride = stride_of(self.piece.spec);
        let bytes = points * stride as u64 * 4;
        let mut starts = vec![0u64];
        for cloud in clouds {
            starts.push(starts.last().copied().unwrap_or(0) + cloud.len() as u64);
        }
        let mut rest = self.stage(bytes.max(4))?;
        let mut parts = Vec::new();
        for cloud in clouds {
            let (part, after) = rest.split_at_mut(cloud.len() * stride * 4);
            parts.push((cloud, part));
            rest = after;
        }
        parts.into_par_iter().try_for_each(|(cloud, part)| pack(cloud, stride, part))?;
        self.room(Use::Points, bytes.max(4))?;
        self.room(Use::Starts, starts.len() as u64 * 8)?;
        let engine = &self.gpu.engine;
        let (stream, to) = (self.stream, *self.block(Use::Points));
        if let Some((staging, _)) = self.staging.as_mut()
            && bytes > 0
        {
            engine.write(stream, &to, staging.bytes().get(..bytes as usize).unwrap_or_default())?;
        }
        engine.write(stream, self.block(Use::Starts), bytemuck::cast_slice(&starts))
    }

    /// The numbers of the grid, as every kernel over points takes them.
    fn grid(&self, clouds: u64) -> [Arg<'static>; 16] {
        let launch = [self.piece.voxels.start, self.piece.span(), 0, clouds];
        grid_arguments(self.piece.spec.grid(), launch)
    }

    fn over_points(&self, clouds: &[Cloud]) -> KernelShape {
        let most = clouds.iter().map(|cloud| cloud.len() as u64).max().unwrap_or(0);
        let down = (clouds.len() as u64).clamp(1, 65_535);
        let across = most.div_ceil(u64::from(THREADS) * 4).clamp(1, (MOST_BLOCKS / down).max(1));
        KernelShape { blocks: [across as u32, down as u32], lanes: THREADS }
    }

    /// A kernel that goes over the points once.
    fn simple(&mut self, kernel: Kernel, turn: &VoxelTurn<'_>) -> Result<(u64, u64)> {
        let shape = self.over_points(turn.clouds);
        self.room(Use::Report, report_bytes(shape, 2))?;
        let grid = self.grid(turn.clouds.len() as u64);
        let mut arguments =
            vec![Arg::Block(self.block(Use::Points)), Arg::Block(self.block(Use::Starts))];
        arguments.extend(grid);
        arguments.push(Arg::Block(self.block(Use::Result)));
        if kernel == Kernel::Mark {
            arguments.push(Arg::U64(self.words() * 2));
        }
        arguments.push(Arg::Block(self.block(Use::Report)));
        self.program.launch(self.stream, kernel, shape, &arguments)?;
        let [not_finite, outside] = self.report(shape)?;
        Ok((not_finite, outside))
    }

    /// Adds up what the blocks of a launch counted.
    fn report<const N: usize>(&mut self, shape: KernelShape) -> Result<[u64; N]> {
        let mut counts = vec![0u32; (report_bytes(shape, N as u64) / 4) as usize];
        let bytes = bytemuck::cast_slice_mut(&mut counts);
        self.gpu.engine.read(self.stream, self.block(Use::Report), bytes)?;
        let mut sums = [0; N];
        for block in counts.chunks_exact(N) {
            sums.iter_mut().zip(block).for_each(|(sum, count)| *sum += u64::from(*count));
        }
        Ok(sums)
    }

    /// Sorts points by voxel and adds up each run. Gives what was dropped, and the voxels.
    fn means(&mut self, turn: &VoxelTurn<'_>, points: u64) -> Result<((u64, u64), u64)> {
        let clouds = turn.clouds.len() as u64;
        let nowhere = clouds * self.piece.span();
        let key = if nowhere >= u64::from(u32::MAX) { 8 } else { 4 };
        for (of, bytes) in [
            (Use::Keys, points * key),
            (Use::Numbers, points * 4),
            (Use::OtherKeys, points * key),
            (Use::OtherNumbers, points * 4),
            (Use::Histogram, histogram_bytes(points)),
        ] {
            self.room(of, bytes.max(8))?;
        }
        let shape = self.over_points(turn.clouds);
        self.room(Use::Report, report_bytes(shape, 2).max(4 * MOST_BLOCKS))?;
        let mut arguments =
            vec![Arg::Block(self.block(Use::Points)), Arg::Block(self.block(Use::Starts))];
        arguments.extend(self.grid(clouds));
        arguments.extend([Arg::Block(self.block(Use::Keys)), Arg::Block(self.block(Use::Numbers))]);
        arguments.extend([Arg::U64(nowhere), Arg::Block(self.block(Use::Report))]);
        self.program.launch(self.stream, Kernel::Keys, shape, &arguments)?;
        let [not_finite, outside] = self.report(shape)?;
        let blocks = SortBlocks {
            keys: [Use::Keys, Use::OtherKeys].map(|of| *self.block(of)),
            numbers: [Use::Numbers, Use::OtherNumbers].map(|of| *self.block(of)),
            histogram: *self.block(Use::Histogram),
        };
        let (keys, numbers) = sort(&blocks, points, nowhere, |kernel, shape, arguments| {
            self.program.launch(self.stream, kernel, shape, arguments)
        })?;
        let shape = KernelShape::over(points);
        let arguments = [
            Arg::Block(self.block(Use::Points)),
            Arg::Block(&keys),
            Arg::Block(&numbers),
            Arg::U64(points),
            Arg::U64(self.piece.span()),
            Arg::U64(nowhere),
            Arg::Block(self.block(Use::Result)),
            Arg::Block(self.block(Use::Report)),
        ];
        self.program.launch(self.stream, Kernel::Means, shape, &arguments)?;
        let [occupied] = self.report(shape)?;
        Ok(((not_finite, outside), occupied))
    }

    /// Brings the result back in the form that was asked for; says how many voxels it has.
    fn download(&mut self, out: &mut [u8], clouds: usize, bytes: u64) -> Result<u64> {
        let (stream, from) = (self.stream, *self.block(Use::Result));
        self.stage(bytes)?;
        let Some((staging, _)) = self.staging.as_mut() else { return Ok(0) };
        let staged = staging.bytes().get_mut(..bytes as usize).unwrap_or_default();
        self.gpu.engine.read(stream, &from, staged)?;
        let (mode, cells) = (self.piece.spec.mode(), self.piece.spec.cells());
        if mode == VoxelMode::Occupancy {
            let each = (staged.len() / clouds.max(1)).max(1);
            let own = (out.len() / clouds.max(1)).max(1);
            let pairs = staged.par_chunks(each).zip(out.par_chunks_mut(own));
            return Ok(pairs
                .map(|(bits, out)| spread(&[bytemuck::cast_slice(bits)], cells, out))
                .sum());
        }
        let numbers: &[u32] = bytemuck::cast_slice(staged);
        let pairs = numbers.par_iter().zip(out.par_chunks_exact_mut(4));
        let planes = self.piece.spec.planes();
        let lit: u64 = pairs
            .map(|(number, out)| {
                let value = match (mode, cells) {
                    (VoxelMode::Count, Cells::F32) => (*number as f32).to_bits(),
                    (VoxelMode::Max, _) => unranked(*number),
                    _ => *number,
                };
                out.copy_from_slice(&value.to_le_bytes());
                u64::from(*number != 0)
            })
            .sum();
        // A voxel with points has a rank in every plane.
        Ok(lit / planes)
    }
}

fn report_bytes(shape: KernelShape, slots: u64) -> u64 {
    u64::from(shape.blocks[0]) * u64::from(shape.blocks[1]) * slots * 4
}

/// The float of a rank: see `ranked` in the kernels.
fn unranked(rank: u32) -> u32 {
    match rank {
        0 => 0,
        rank if rank & 0x8000_0000 != 0 => rank & 0x7FFF_FFFF,
        rank => !rank,
    }
}

/// Points that are packed at a time, which stay in the cache where they come from a file.
const READ: usize = 1 << 13;

/// The points of a cloud, each cut to this many floats.
fn pack(cloud: &Cloud, stride: usize, out: &mut [u8]) -> Result<()> {
    let mut buffer = Vec::new();
    for (number, out) in out.chunks_mut(READ * stride * 4).enumerate() {
        let start = number * READ;
        let floats = cloud.read(start..start + out.len() / (stride * 4), &mut buffer)?;
        if cloud.stride() == stride {
            out.copy_from_slice(bytemuck::cast_slice(floats));
            continue;
        }
        let points = floats.chunks_exact(cloud.stride());
        for (to, from) in out.chunks_exact_mut(stride * 4).zip(points) {
            to.copy_from_slice(bytemuck::cast_slice(&from[..stride]));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_undone() {
        let rank = |value: f32| {
            let bits = if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() };
            if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
        };
        for value in
            [0.0, -0.0, 1.5, -1.5, f32::INFINITY, f32::NEG_INFINITY, f32::MIN, 1e-45, -1e-45]
        {
            assert_eq!(unranked(rank(value)), value.to_bits());
            assert!(rank(value) > 0);
        }
        assert_eq!(unranked(rank(f32::NAN)), f32::NAN.to_bits());
        assert!(rank(-0.0) < rank(0.0) && rank(f32::NAN) > rank(f32::INFINITY));
    }
}
