//! Hard voxels of a cloud that need not be in memory: its points are read a piece at a time.
//!
//! The first pass makes as many voxels as there is room for, and marks the points that are the first of
//! theirs, with a bit each. The marks number the voxels, so that one more pass makes any part of
//! them, from the part's first point on. Where there is no room for the cells of all voxels, points
//! are marked before any voxel is made, in a pass for each share of the cells.

use std::ops::Range;
use std::slice::ChunksExact;

use plimsoll_memory::{Bytes, Error, Result};

use super::group::{self, CellNumber};
use super::shares::{DroppedPoints, FindCells};
use super::{HardSpec, HardVoxels};
use crate::cloud::Cloud;
use crate::room;
use crate::simd;
use crate::simd::place::{BLOCK, SimdPlaces};

/// Floats that are read at a time, where a point has no more.
const FLOATS: usize = 1 << 14;
/// Entries of the smallest table.
const ENTRIES: usize = 1 << 6;
/// Entries for each cell that is known at most: tables are at most half full.
const SPARSE: usize = 2;
/// Parts that all voxels of a cloud are made in, at most, but where memory is refused: each reads its points again.
const MOST_PARTS: u64 = 1 << 10;

/// What passes may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PassRoom {
    /// Entries of the table of cells, a power of two.
    entries: usize,
    /// Voxels that are made before they are handed on.
    part: usize,
}

/// Makes hard voxels in passes, and keeps what it works in from one cloud to the next.
#[derive(Debug)]
pub(crate) struct HardPasses {
    spec: HardSpec,
    rule: Option<SimdPlaces>,
    buffer: Vec<f32>,
    known: KnownVoxels,
}

/// What is called for each piece that is read, and may end the work.
pub(crate) type PassLook<'l> = &'l mut dyn FnMut() -> Result<()>;

impl PassRoom {
    /// The most that is of use within so many bytes, or the least there is; no more than `most` bytes
    /// of voxels at a time.
    pub(crate) fn of(bytes: Bytes, most: u64, spec: &HardSpec, cloud: &Cloud) -> PassRoom {
        let (points, columns) = (cloud.len() as u64, cloud.stride());
        let left = bytes.get().saturating_sub(fixed_bytes(points, columns));
        let voxels = spec.most_voxels(points);
        let least = PassRoom::least(spec, points);
        let part_bytes = |part: u64| part.saturating_mul(spec.voxel_bytes(columns));
        let beside = left.saturating_sub(part_bytes(least.part as u64));
        // A table of all cells saves a pass for each share of them; a larger part saves but one.
        let all = voxels.saturating_mul(SPARSE as u64).checked_next_power_of_two();
        let mut entries = all.unwrap_or(u64::MAX);
        while entries > least.entries as u64 {
            let most = if Some(entries) == all { left / 4 * 3 } else { left / 2 };
            if entries <= most.min(beside) / size_of::<CellVoxel>() as u64 {
                break;
            }
            entries /= 2;
        }
        let entries = (entries as usize).max(least.entries);
        let rest = left.saturating_sub((entries * size_of::<CellVoxel>()) as u64).min(most);
        let part = (rest / part_bytes(1).max(1)).min(voxels);
        PassRoom { entries, part: (part as usize).min(entries / SPARSE).max(least.part) }
    }

    /// The least that a cloud of so many points is begun with.
    pub(crate) fn least(spec: &HardSpec, points: u64) -> PassRoom {
        let part = spec.most_voxels(points).div_ceil(MOST_PARTS).max(1) as usize;
        PassRoom { entries: (part * SPARSE).next_power_of_two().max(ENTRIES), part }
    }

    /// Half as much; nothing where this is the least.
    pub(crate) fn halved(self) -> Option<PassRoom> {
        let PassRoom { entries, part } = self;
        let half = PassRoom { entries: (entries / 2).max(ENTRIES), part: part.div_ceil(2) };
        let half = PassRoom { part: half.part.min(half.entries / SPARSE), ..half };
        (half != self).then_some(half)
    }

    /// What this takes for a cloud, the part of the result included.
    pub(crate) fn bytes(self, spec: &HardSpec, points: u64, columns: usize) -> u64 {
        let table = (self.entries * size_of::<CellVoxel>()) as u64;
        let part = (self.part as u64).saturating_mul(spec.voxel_bytes(columns));
        fixed_bytes(points, columns).saturating_add(table).saturating_add(part)
    }
}

/// Marks, and the points that are read at a time.
fn fixed_bytes(points: u64, columns: usize) -> u64 {
    points.div_ceil(64) * 8 + (points_at_once(columns) * 4 * columns) as u64
}

fn points_at_once(columns: usize) -> usize {
    (FLOATS / columns.max(1)).max(1)
}

impl HardPasses {
    pub(crate) fn new(spec: HardSpec) -> HardPasses {
        let rule = SimdPlaces::new(spec.grid());
        HardPasses { spec, rule, buffer: Vec::new(), known: KnownVoxels::default() }
    }

    /// Makes the voxels of a cloud of this number and hands them to `take` a part at a time. All memory
    /// is taken before the first voxel is made. Gives how many times points were read.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](plimsoll_memory::Error::OutOfMemory) where there is less than `room` says; what
    /// reading, `take` and `look` end with.
    pub(crate) fn run(
        &mut self,
        (cloud, number): (&Cloud, usize),
        room: PassRoom,
        made: &mut HardVoxels,
        take: &mut dyn FnMut(&HardVoxels) -> Result<()>,
        look: PassLook<'_>,
    ) -> Result<u64> {
        let HardPasses { spec, rule, buffer, known } = self;
        let (spec, columns) = (*spec, cloud.stride());
        let floats = room.part.saturating_mul(spec.max_points() as usize).saturating_mul(columns);
        // What another cloud needed goes before anything is taken.
        room::forget_larger(&mut made.voxels, floats);
        room::forget_larger(&mut known.marks, cloud.len().div_ceil(64));
        room::forget_larger(&mut known.table.entries, room.entries);
        room::fit_length(buffer, points_at_once(columns) * columns, || 0.0)?;
        known.make_room(room.entries, cloud.len())?;
        room::empty_for(&mut made.voxels, floats)?;
        room::empty_for(&mut made.coordinates, room.part * spec.form().columns())?;
        room::empty_for(&mut made.num_points, room.part)?;
        let mut pieces = CloudPieces { cloud, spec, rule: rule.as_ref(), buffer, look, passes: 0 };
        let mut part = PartVoxels { made, spec, columns, number, room: room.part, next: None };
        let (dropped, mut is_made) = known.first(&mut pieces, &mut part)?;
        if !is_made {
            known.mark(&mut pieces)?;
            part.next = None;
        }
        let mut left = spec.max_voxels() as usize;
        loop {
            if !is_made {
                part.room = room.part.min(left);
                known.fill(&mut pieces, &mut part)?;
            }
            left -= part.made.num_points.len();
            part.finish(dropped, take)?;
            is_made = part.next.is_none() || left == 0;
            if is_made {
                return Ok(pieces.passes);
            }
        }
    }
}

/// The voxels of cells, and which points are the first of theirs.
#[derive(Debug, Default)]
struct KnownVoxels {
    table: CellVoxels,
    /// A bit for each point.
    marks: Vec<u64>,
}

impl KnownVoxels {
    /// Nothing is known of a cloud of so many points.
    fn make_room(&mut self, entries: usize, points: usize) -> Result<()> {
        self.table.make_room(entries)?;
        room::fit_length(&mut self.marks, points.div_ceil(64), || 0)?;
        self.marks.fill(0);
        Ok(())
    }

    /// Makes as many voxels as there is room for, and marks the first points of all. Gives what was
    /// dropped, and whether there was room for the cells.
    fn first(
        &mut self,
        pieces: &mut CloudPieces<'_>,
        part: &mut PartVoxels<'_>,
    ) -> Result<(DroppedPoints, bool)> {
        let KnownVoxels { table, marks } = self;
        let most = pieces.spec.max_voxels() as usize;
        let (mut dropped, mut room) = (DroppedPoints::default(), true);
        table.clear();
        part.clear();
        pieces.each(0..pieces.cloud.len(), |point, cells, floats| {
            table.fetch(cells);
            for ((point, cell), floats) in (point..).zip(cells).zip(floats) {
                if !cell.is_somewhere() {
                    dropped.see(floats);
                    continue;
                }
                let voxel = match table.get(*cell) {
                    Some(voxel) => voxel,
                    None if table.used == most || !room => continue,
                    None => {
                        let voxel = table.used;
                        room = table.set(*cell, voxel as u32);
                        if !room {
                            continue;
                        }
                        marks[point / 64] |= 1 << (point % 64);
                        part.begin(*cell, point);
                        voxel
                    }
                };
                part.add(voxel, floats);
            }
            true
        })?;
        Ok((dropped, room))
    }

    /// Marks the first points of voxels, a share of the cells at a time; of each share as many as there
    /// may be voxels.
    fn mark(&mut self, pieces: &mut CloudPieces<'_>) -> Result<()> {
        let most = pieces.spec.max_voxels() as usize;
        let (mut first, mut more) = (0, u64::MAX / 2);
        loop {
            let share = first..=u64::saturating_add(first, more);
            // Points that come after enough first ones cannot be among these.
            let end = self.place_of(most).unwrap_or(pieces.cloud.len());
            let KnownVoxels { table, marks } = self;
            let mut room = true;
            table.clear();
            pieces.each(0..end, |point, cells, _| {
                table.fetch(cells);
                for (point, cell) in (point..).zip(cells) {
                    let is_its = cell.is_somewhere() && share.contains(&order_of(*cell));
                    if is_its && table.used < most && table.get(*cell).is_none() {
                        room = table.set(*cell, 0);
                        if !room {
                            return false;
                        }
                        marks[point / 64] |= 1 << (point % 64);
                    }
                }
                true
            })?;
            if !room {
                // What is marked is right for the halves of this share, too.
                more /= 2;
            } else if let Some(next) = share.end().checked_add(1) {
                let few = 2 * SPARSE * table.used < table.entries.len();
                (first, more) = (next, if few { more.saturating_mul(2) | 1 } else { more });
            } else {
                return Ok(());
            }
        }
    }

    /// A point behind so many that are marked, no more than a few further; none where there are fewer.
    fn place_of(&self, marked: usize) -> Option<usize> {
        let mut left = marked;
        let word = self.marks.iter().position(|word| {
            let here = word.count_ones() as usize;
            let is_here = here >= left;
            left = left.saturating_sub(here);
            is_here
        })?;
        Some(64 * (word + 1))
    }

    /// Makes as many voxels as there is room for, from the first that there was none for.
    fn fill(&mut self, pieces: &mut CloudPieces<'_>, part: &mut PartVoxels<'_>) -> Result<()> {
        let KnownVoxels { table, marks } = self;
        let from = part.clear();
        let mut changed = false;
        table.clear();
        pieces.each(from..pieces.cloud.len(), |point, cells, floats| {
            table.fetch(cells);
            for ((point, cell), floats) in (point..).zip(cells).zip(floats) {
                let mut voxel = table.get(*cell);
                if marks[point / 64] >> (point % 64) & 1 == 1 {
                    changed = voxel.is_some() || !cell.is_somewhere();
                    if changed {
                        return false;
                    }
                    if part.begin(*cell, point) {
                        let last = part.made.num_points.len() - 1;
                        // There is room, as a part has no more voxels than the table takes cells.
                        table.set(*cell, last as u32);
                        voxel = Some(last);
                    }
                }
                if let Some(voxel) = voxel {
                    part.add(voxel, floats);
                }
            }
            true
        })?;
        if changed {
            let why = format!("cloud {} changed while it was read", part.number);
            return Err(Error::Device { call: "reading", why });
        }
        Ok(())
    }
}

/// Voxels as they are made, as many as there is room for.
struct PartVoxels<'m> {
    made: &'m mut HardVoxels,
    spec: HardSpec,
    columns: usize,
    /// Of the cloud.
    number: usize,
    room: usize,
    /// The first point of a voxel that found no room.
    next: Option<usize>,
}

impl PartVoxels<'_> {
    /// None yet; gives the first point of the next one.
    fn clear(&mut self) -> usize {
        self.made.voxels.clear();
        self.made.coordinates.clear();
        self.made.num_points.clear();
        self.next.take().unwrap_or(0)
    }

    /// Hands on what there is.
    fn finish(
        &mut self,
        dropped: DroppedPoints,
        take: &mut dyn FnMut(&HardVoxels) -> Result<()>,
    ) -> Result<()> {
        self.made.clouds = vec![self.made.num_points.len()];
        (self.made.not_finite, self.made.outside) = (dropped.not_finite, dropped.outside);
        if self.made.num_points.is_empty() { Ok(()) } else { take(self.made) }
    }

    /// Begins the next voxel, whose first point this is; says whether there is room.
    fn begin(&mut self, cell: u64, point: usize) -> bool {
        let HardVoxels { voxels, coordinates, num_points, .. } = self.made;
        let room = num_points.len() < self.room;
        if room {
            let (form, mut place) = (self.spec.form(), [0; 4]);
            let place = &mut place[..form.columns()];
            form.write(self.number, Some(self.spec.grid().place(cell)), place);
            coordinates.extend_from_slice(place);
            voxels.resize(voxels.len() + self.spec.max_points() as usize * self.columns, 0.0);
            num_points.push(0);
        } else {
            self.next.get_or_insert(point);
        }
        room
    }

    /// Adds a point to a voxel of the part that is not full.
    fn add(&mut self, voxel: usize, floats: &[f32]) {
        let most = self.spec.max_points();
        if let Some(seen) = self.made.num_points.get_mut(voxel)
            && seen.cast_unsigned() < most
        {
            let at = (voxel * most as usize + *seen as usize) * self.columns;
            self.made.voxels[at..at + self.columns].copy_from_slice(floats);
            *seen += 1;
        }
    }
}

/// The points of a cloud with their cells, some at a time.
struct CloudPieces<'c> {
    cloud: &'c Cloud,
    spec: HardSpec,
    rule: Option<&'c SimdPlaces>,
    buffer: &'c mut Vec<f32>,
    look: PassLook<'c>,
    /// Times that points were gone through.
    passes: u64,
}

impl CloudPieces<'_> {
    /// Calls `visit` with the number of a point, the cells of this one and some that follow, and
    /// their floats; until there are no more, or it says that this was enough.
    fn each(
        &mut self,
        points: Range<usize>,
        mut visit: impl FnMut(usize, &[u64], ChunksExact<'_, f32>) -> bool,
    ) -> Result<()> {
        let (columns, at_once) = (self.cloud.stride(), points_at_once(self.cloud.stride()));
        let (mut cells, mut narrow) = ([0; BLOCK], [0; BLOCK]);
        self.passes += 1;
        for start in points.clone().step_by(at_once) {
            (self.look)()?;
            let floats = self.cloud.read(start..points.end.min(start + at_once), self.buffer)?;
            for (point, floats) in (start..).step_by(BLOCK).zip(floats.chunks(BLOCK * columns)) {
                let cells = &mut cells[..floats.len() / columns];
                match self.rule {
                    None => self.spec.grid().find(floats, columns, cells),
                    Some(rule) => {
                        let narrow = &mut narrow[..cells.len()];
                        simd::places(rule, floats, columns, narrow);
                        for (cell, narrow) in cells.iter_mut().zip(narrow) {
                            let inside = narrow.is_somewhere();
                            *cell = if inside { narrow.number() } else { u64::NOWHERE };
                        }
                    }
                }
                if !visit(point, cells, floats.chunks_exact(columns)) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// Where a cell stands among all of them, of which a share has some that follow each other. No two
/// stand at one place. Tables go by the highest bits.
fn order_of(cell: u64) -> u64 {
    group::mixed(cell).rotate_left(32)
}

/// The voxel of a cell, where it is known.
#[derive(Debug, Clone, Copy, Default)]
struct CellVoxel {
    /// One more than the number of the cell, or 0 where there is none.
    after: u64,
    voxel: u32,
}

/// The voxels of cells, by open addressing.
#[derive(Debug, Default)]
struct CellVoxels {
    entries: Vec<CellVoxel>,
    used: usize,
    shift: u32,
}

impl CellVoxels {
    fn make_room(&mut self, entries: usize) -> Result<()> {
        room::fit_length(&mut self.entries, entries, CellVoxel::default)?;
        self.shift = u64::BITS - entries.trailing_zeros();
        Ok(())
    }

    fn clear(&mut self) {
        self.entries.fill(CellVoxel::default());
        self.used = 0;
    }

    /// Has the entries of cells on their way to the caches.
    fn fetch(&self, cells: &[u64]) {
        cells.iter().for_each(|cell| simd::fetch(&self.entries, self.start(*cell)));
    }

    fn start(&self, cell: u64) -> usize {
        (group::mixed(cell) >> self.shift) as usize
    }

    /// The entry of a cell, or where it would be.
    fn find(&self, cell: u64) -> usize {
        let mut at = self.start(cell);
        while ![0, cell + 1].contains(&self.entries[at].after) {
            at = (at + 1) & (self.entries.len() - 1);
        }
        at
    }

    fn get(&self, cell: u64) -> Option<usize> {
        // A point without a cell has no entry, as nothing is one more than its number.
        let entry = cell.is_somewhere().then(|| self.entries[self.find(cell)])?;
        (entry.after != 0).then_some(entry.voxel as usize)
    }

    /// Gives a voxel to a cell that has none; says whether there was room.
    fn set(&mut self, cell: u64, voxel: u32) -> bool {
        let room = SPARSE * (self.used + 1) <= self.entries.len();
        if room {
            let at = self.find(cell);
            self.entries[at] = CellVoxel { after: cell + 1, voxel };
            self.used += 1;
        }
        room
    }
}

#[cfg(test)]
mod tests;
