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
            let why = "a cloud changed while it was read".to_string();
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
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::network::{PointBatch, hard_voxelize};

    /// The same as of a cloud in memory; gives the passes.
    fn check(passes: &mut HardPasses, floats: &[f32], spec: &HardSpec, room: PassRoom) -> u64 {
        let batch = PointBatch::one(floats, 4).unwrap().numbered_from(3);
        let want = hard_voxelize(&batch, spec).unwrap();
        let cloud = Cloud::from_points(floats.to_vec(), 1).unwrap();
        let (mut voxels, mut places, mut counts) = (Vec::new(), Vec::new(), Vec::new());
        let mut made = HardVoxels::default();
        let mut take = |made: &HardVoxels| {
            assert!(made.num_points.len() <= room.part && !made.num_points.is_empty());
            voxels.extend(made.voxels.iter().map(|value| value.to_bits()));
            places.extend_from_slice(&made.coordinates);
            counts.extend_from_slice(&made.num_points);
            Ok(())
        };
        let count = passes.run((&cloud, 3), room, &mut made, &mut take, &mut || Ok(()));
        let bits: Vec<u32> = want.voxels.iter().map(|value| value.to_bits()).collect();
        assert_eq!(counts, want.num_points);
        assert_eq!(places, want.coordinates);
        assert_eq!(voxels, bits);
        assert_eq!((made.not_finite, made.outside), (want.not_finite, want.outside));
        count.unwrap()
    }

    fn float() -> impl Strategy<Value = f32> {
        prop_oneof![8 => -1.0f32..9.0, 1 => Just(f32::NAN), 1 => Just(f32::INFINITY), 4 => (0u8..9).prop_map(f32::from)]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        #[test]
        fn passes_give_what_a_cloud_in_memory_gives(
            points in prop::collection::vec(prop::array::uniform4(float()), 0..200),
            most in 1u32..90, width in prop_oneof![Just(8.0f32), Just(8e6)], few in 1u32..5,
            (entries, part) in (1u32..9, 1usize..40),
        ) {
            // The wide grid has more cells than a number of 32 bits counts.
            let spec = HardSpec::new([1.0; 3], [0.0, 0.0, 0.0, width, 8000.0, 8.0], few, most).unwrap();
            let entries = 1 << entries;
            let room = PassRoom { entries, part: part.min(entries / SPARSE) };
            let mut passes = HardPasses::new(spec);
            for points in [&points[..], &points[..points.len() / 2]] {
                check(&mut passes, points.as_flattened(), &spec, room);
            }
        }
    }

    #[test]
    fn the_less_room_the_more_passes() {
        // Many pieces, and two points in each of most voxels.
        let point = |n: u32| {
            let cell = n.wrapping_mul(2_654_435_761) % 12_000;
            [cell % 100, cell / 100 % 100, cell / 10_000, n].map(|value| value as f32)
        };
        let points: Vec<[f32; 4]> = (0..25_000).map(point).collect();
        let range = [0.0, 0.0, 0.0, 100.0, 100.0, 2.0];
        let spec = HardSpec::new([1.0; 3], range, 3, 20_000).unwrap();
        let mut passes = HardPasses::new(spec);
        let mut of = |entries, part| {
            check(&mut passes, points.as_flattened(), &spec, PassRoom { entries, part })
        };
        assert_eq!(of(1 << 15, 1 << 14), 1);
        assert!(of(1 << 15, 1000) > 8);
        assert!(of(1 << 11, 1000) > 30);
    }

    #[test]
    fn room_is_what_there_is() {
        let cloud = Cloud::from_points(vec![0.0; 40_000], 1).unwrap();
        let spec = HardSpec::new([1.0; 3], [0.0, 0.0, 0.0, 1e3, 1e3, 1.0], 4, 9000).unwrap();
        let least = PassRoom::least(&spec, 10_000).bytes(&spec, 10_000, 4);
        for bytes in [0, least, least + 1, 300_000, 500_000, 700_000, 1 << 30] {
            let mut room = PassRoom::of(Bytes(bytes), 1 << 40, &spec, &cloud);
            let taken = room.bytes(&spec, 10_000, 4);
            assert!(taken <= bytes.max(least), "{bytes}: {room:?} takes {taken}");
            assert!(room.part <= room.entries / SPARSE && room.part > 0, "{room:?}");
            while let Some(half) = room.halved() {
                assert!(half.bytes(&spec, 10_000, 4) < room.bytes(&spec, 10_000, 4));
                room = half;
            }
            assert_eq!(room, PassRoom { entries: ENTRIES, part: 1 });
        }
        let room = PassRoom::of(Bytes(1 << 30), 1 << 40, &spec, &cloud);
        assert_eq!(room, PassRoom { entries: 1 << 15, part: 9000 });
    }

    /// A file that others write to while it is read is an error, where that can be told.
    #[test]
    fn a_cloud_that_changes_between_passes_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.bin");
        let points: Vec<f32> = (0..40_000u16).map(|n| f32::from(n / 4 % 100) + 0.5).collect();
        std::fs::write(&path, bytemuck::cast_slice::<f32, u8>(&points)).unwrap();
        let batch = crate::Batch::open(&path).unwrap();
        let cloud = &batch.load(0..1, true).unwrap()[0];
        let spec = HardSpec::new([1.0; 3], [0.0, 0.0, 0.0, 100.0, 100.0, 100.0], 2, 90).unwrap();
        for value in [f32::NAN, 0.5] {
            std::fs::write(&path, bytemuck::cast_slice::<f32, u8>(&points)).unwrap();
            let mut made = HardVoxels::default();
            let mut take = |_: &HardVoxels| {
                std::fs::write(&path, bytemuck::cast_slice::<f32, u8>(&[value; 40_000])).unwrap();
                Ok(())
            };
            let room = PassRoom { entries: 1 << 8, part: 20 };
            let run =
                HardPasses::new(spec).run((cloud, 0), room, &mut made, &mut take, &mut || Ok(()));
            let said = run.unwrap_err().to_string();
            assert!(said.contains("changed while it was read"), "{said}");
        }
    }
}
