//! How work is cut, and what is made of it where memory is refused.

use super::*;
use crate::grid::VoxelGrid;
use crate::network::{HardSpec, HardVoxels, PointBatch};
use crate::spec::VoxelMode;

/// The host with room for this many voxels.
struct Cramped(u64);

impl VoxelBackend for Cramped {
    fn hard(&self, batch: &PointBatch<'_>, spec: &HardSpec, made: &mut HardVoxels) -> Result<()> {
        VoxelHost::default().hard(batch, spec, made)
    }

    fn hard_bytes(&self, spec: &HardSpec, columns: usize, points: u64) -> u64 {
        VoxelHost::default().hard_bytes(spec, columns, points)
    }

    fn name(&self) -> String {
        VoxelHost::default().name()
    }

    fn dense(&self, piece: &VoxelPiece<'_>, out: &mut [u8]) -> Result<VoxelTally> {
        VoxelHost::default().dense(piece, out)
    }

    fn sparse(&self, piece: &VoxelPiece<'_>) -> Result<(Vec<Filled>, VoxelTally)> {
        if piece.span() * piece.clouds.len() as u64 <= self.0 {
            return VoxelHost::default().sparse(piece);
        }
        let memory = "host".to_string();
        Err(Error::OutOfMemory { memory, requested: Bytes(1), available: Bytes(0) })
    }

    fn working_bytes(&self, spec: &VoxelSpec, points: u64, span: u64) -> u64 {
        VoxelHost::default().working_bytes(spec, points, span)
    }
}

/// Everything that is written, in order.
#[derive(Default)]
struct Rows(Vec<(u64, u64)>);

impl Sink for Rows {
    fn dense(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn sparse(&mut self, cloud: u64, filled: &Filled) -> Result<()> {
        self.0.extend(filled.voxels.iter().map(|voxel| (cloud, *voxel)));
        Ok(())
    }
}

/// Forty clouds of ten points on a diagonal.
fn batch(folder: &tempfile::TempDir) -> Batch {
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (40, 10, 3)}";
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((header.len() as u16).to_le_bytes());
    file.extend(header.as_bytes());
    let coordinates = (0..400u16).flat_map(|point| [f32::from(point % 100); 3]);
    file.extend(coordinates.flat_map(f32::to_le_bytes));
    let path = folder.path().join("a.npy");
    std::fs::write(&path, file).unwrap();
    Batch::open(&path).unwrap()
}

fn job<'a>(
    batch: &'a Batch,
    backend: &'a dyn VoxelBackend,
    cells: Cells,
    side: u32,
) -> VoxelJob<'a> {
    let grid = VoxelGrid::new([side; 3], [1.0; 3], [0.0; 3]).unwrap();
    let spec = VoxelSpec::new(grid, VoxelMode::Occupancy, cells, 0).unwrap();
    let (available, room) = (Bytes::gib(1 << 10), Bytes::gib(1 << 10));
    VoxelJob { batch, spec, backend, or_host: false, chunk: None, available, room }
}

#[test]
fn a_wish_for_clouds_is_kept_as_far_as_they_fit() {
    let folder = tempfile::tempdir().unwrap();
    let (batch, host) = (batch(&folder), VoxelHost::default());
    let cut = |chunk, free| {
        let whole = job(&batch, &host, Cells::F32, 128);
        VoxelJob { chunk, available: free, room: free, ..whole }.cut().unwrap()
    };
    assert_eq!(cut(Some(3), Bytes::gib(8)).clouds, 3);
    assert_eq!(cut(Some(40), Bytes::gib(8)).clouds, 40, "more than the plan would take");
    assert_eq!(cut(Some(40), Bytes::mib(64)), cut(None, Bytes::mib(64)));
    assert!(cut(Some(40), Bytes::mib(4)).slabs > 1);
}

/// Or nobody hears of it, and nobody can stop it, until all of it is made.
#[test]
fn a_very_large_grid_is_made_in_slabs_though_it_would_fit() {
    let folder = tempfile::tempdir().unwrap();
    let (batch, host) = (batch(&folder), VoxelHost::default());
    let cut = |cells, side| job(&batch, &host, cells, side).cut().unwrap();
    assert_eq!(cut(Cells::F32, 512).slabs, 1);
    let large = cut(Cells::F32, 1024);
    assert_eq!((large.slabs, large.slab_voxels), (16, 1 << 26));
    assert_eq!(cut(Cells::Sparse, 1024).slabs, 1);
}

#[test]
fn a_sparse_result_that_is_refused_is_made_in_slabs() {
    let folder = tempfile::tempdir().unwrap();
    let batch = batch(&folder);
    let run = |backend: &dyn VoxelBackend| {
        let mut rows = Rows::default();
        let job = job(&batch, backend, Cells::Sparse, 90);
        let report = job.run(&mut rows, &mut |_, _| true).unwrap();
        (rows.0, report.tally, report.cut.slabs)
    };
    let (whole, seen, slabs) = run(&VoxelHost::default());
    assert_eq!((whole.len(), seen.outside, slabs), (360, 40, 1));
    assert_eq!(run(&Cramped(1 << 18)), (whole, seen, 4));
}

/// A cloud of so many points, which take no room on the disk.
fn long(folder: &tempfile::TempDir, kind: &str, points: u64) -> Batch {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({points}, 3)}}");
    let mut start = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    start.extend(header.as_bytes());
    start.resize(128, b' ');
    let path = folder.path().join(format!("{}.npy", &kind[1..]));
    std::fs::write(&path, start).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(128 + points * 24).unwrap();
    Batch::open(&path).unwrap()
}

#[test]
fn only_what_a_cut_makes_smaller_is_a_reason_to_cut() {
    const POINTS: u64 = 20_000_000;
    let folder = tempfile::tempdir().unwrap();
    let (floats, doubles) = (long(&folder, "<f4", POINTS), long(&folder, "<f8", POINTS));
    let host = VoxelHost::default();
    let slabs = |batch: &Batch, cells| {
        let (available, room) = (Bytes::mib(200), Bytes::mib(200));
        let cut = VoxelJob { available, room, ..job(batch, &host, cells, 256) }.cut();
        cut.map(|cut| cut.slabs)
    };
    // Floats stay in their file; what is made of doubles does not fit, however it is cut.
    assert_eq!(slabs(&floats, Cells::F32).unwrap(), 1);
    let error = slabs(&doubles, Cells::F32).unwrap_err();
    assert!(matches!(error, Error::NeverFits { .. }), "{error}");
    assert!(error.to_string().contains("70 % of the 200.00 MiB"), "{error}");
    // Of each point a key, and of its voxel a run and a row, are less in a part of the grid.
    assert_eq!(slabs(&floats, Cells::Sparse).unwrap(), 8);
}

/// A device that makes what the host would, and needs this much for a cloud.
struct Device(u64);

impl VoxelBackend for Device {
    fn hard(&self, batch: &PointBatch<'_>, spec: &HardSpec, made: &mut HardVoxels) -> Result<()> {
        VoxelHost::default().hard(batch, spec, made)
    }

    fn hard_bytes(&self, _: &HardSpec, _: usize, _: u64) -> u64 {
        self.0
    }

    fn name(&self) -> String {
        "device".to_string()
    }

    fn dense(&self, piece: &VoxelPiece<'_>, out: &mut [u8]) -> Result<VoxelTally> {
        VoxelHost::default().dense(piece, out)
    }

    fn sparse(&self, piece: &VoxelPiece<'_>) -> Result<(Vec<Filled>, VoxelTally)> {
        VoxelHost::default().sparse(piece)
    }

    fn working_bytes(&self, spec: &VoxelSpec, points: u64, span: u64) -> u64 {
        VoxelHost::default().working_bytes(spec, points, span)
    }
}

#[test]
fn a_cloud_that_a_device_cannot_take_is_made_on_the_host() {
    let folder = tempfile::tempdir().unwrap();
    let batch = long(&folder, "<f4", 30_000);
    let range = [-0.5, -0.5, -0.5, 9.5, 9.5, 9.5];
    let spec = HardSpec::new([1.0; 3], range, 3, 20).unwrap();
    let make = |device: u64, available: u64, room: u64| {
        let backend = &Device(device);
        let (available, room) = (Bytes(available), Bytes(room));
        let job =
            HardJob { batch: &batch, spec, backend, or_host: false, chunk: None, available, room };
        let mut made = Vec::new();
        let report = job.run(
            &mut |part| {
                made.push(part.clone());
                Ok(())
            },
            &mut |_, _| true,
        );
        (report.unwrap(), made)
    };
    let large = 1 << 40;
    let (report, whole) = make(1 << 20, large, large);
    assert_eq!((report.fallback, report.backend.as_str()), (None, "device"));
    let (report, made) = make(large, 1 << 20, large);
    let why = report.fallback.unwrap();
    assert!(why.contains("1.00 TiB on device, where 1.00 MiB may be used"), "{why}");
    assert_eq!((made, report.backend.as_str()), (whole.clone(), "host"));
    // The points would be 360 KB.
    let (report, made) = make(1 << 20, large, 1 << 17);
    let why = report.fallback.unwrap();
    assert!(why.contains("device takes points from memory"), "{why}");
    assert_eq!(made, whole);
    assert!(report.peak_bytes < 1 << 17, "{}", report.peak_bytes);
}
