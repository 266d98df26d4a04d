//! What hard voxelization works in stays within what it says or was given, counted by the allocator.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::hash::{DefaultHasher, Hasher};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use plimsoll_memory::{Bytes, Error, Result};
use plimsoll_points::backend::Filled;
use plimsoll_points::backend::host::VoxelHost;
use plimsoll_points::job::{HardJob, VoxelJob};
use plimsoll_points::network::{HardHost, HardSlices, HardSpec, HardVoxels, PointBatch};
use plimsoll_points::write::Sink;
use plimsoll_points::{Batch, Cells, VoxelGrid, VoxelMode, VoxelSpec};

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(HELD.fetch_add(layout.size(), SeqCst) + layout.size(), SeqCst);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), SeqCst);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What a call takes beyond what was there before, at its most.
fn peak_of(work: impl FnOnce()) -> usize {
    let before = HELD.load(SeqCst);
    PEAK.store(before, SeqCst);
    work();
    PEAK.load(SeqCst) - before
}

/// Points in cells of their own; `apart` says in which, along x and y.
fn cloud(points: u32, apart: impl Fn(u32) -> (u32, u32)) -> Vec<f32> {
    let point = |n| {
        let (x, y) = apart(n);
        [x as f32 + 0.5, y as f32 + 0.5, 0.5]
    };
    (0..points).flat_map(point).collect()
}

/// One test after the other: what is counted is of the whole process.
static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn a_cloud_on_the_disk_is_made_within_less_than_it_takes() {
    let _alone = ALONE.lock();
    let points: Vec<f32> = (0..400_000u32)
        .flat_map(|n| [n % 700, n / 700, n % 3, n].map(|value| value as f32 + 0.5))
        .collect();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.bin");
    std::fs::write(&path, bytemuck::cast_slice::<f32, u8>(&points)).unwrap();
    let spec = HardSpec::new([1.0; 3], [0.0, 0.0, 0.0, 700.0, 700.0, 3.0], 5, 300_000).unwrap();
    // A small cloud first, whose voxels are all in one part.
    let small = folder.path().join("a.bin");
    std::fs::write(&small, bytemuck::cast_slice::<f32, u8>(&points[..40_000])).unwrap();
    let mut whole = None;
    for (room, reads) in [(1 << 30, 1), (30 << 20, 2), (4 << 20, 10), (1 << 20, 100)] {
        let batch = Batch::open(folder.path()).unwrap();
        let job = HardJob {
            batch: &batch,
            spec,
            backend: &VoxelHost::default(),
            or_host: false,
            chunk: None,
            available: Bytes(room),
            room: Bytes(room),
        };
        let mut made: [DefaultHasher; 3] = Default::default();
        let mut sink = |part: &HardVoxels| {
            part.voxels.iter().for_each(|number| made[0].write_u32(number.to_bits()));
            part.coordinates.iter().for_each(|number| made[1].write_i32(*number));
            part.num_points.iter().for_each(|number| made[2].write_i32(*number));
            Ok(())
        };
        let mut report = None;
        let peak = peak_of(|| report = Some(job.run(&mut sink, &mut |_, _| true).unwrap()));
        let report = report.unwrap();
        assert!(report.reads >= reads && (reads > 1 || report.reads == 1), "{report:?}");
        assert!(peak as u64 <= room && report.peak_bytes <= room, "{peak} of {room}: {report:?}");
        let made = made.map(|hash| hash.finish());
        assert_eq!(*whole.get_or_insert(made), made, "{room}");
    }
}

/// Takes everything and keeps nothing.
struct Nowhere;

impl Sink for Nowhere {
    fn dense(&mut self, _: u64, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn sparse(&mut self, _: u64, _: &Filled) -> Result<()> {
        Ok(())
    }
}

#[test]
fn grids_are_made_within_what_was_given_or_refused() {
    let _alone = ALONE.lock();
    let points: Vec<f32> =
        (0..200_000u32).flat_map(|n| [n % 60, n / 60 % 60, n % 61, n].map(|v| v as f32)).collect();
    let numbers: &[u8] = bytemuck::cast_slice(&points);
    let folder = tempfile::tempdir().unwrap();
    let header = "ply\nformat binary_little_endian 1.0\nelement vertex 200000\nproperty float x\n\
                  property float y\nproperty float z\nproperty float i\nend_header\n";
    let tiny = "\x01\0\x76\0{'descr': '<f4', 'fortran_order': False, 'shape': (50000, 4, 4)}";
    let tiny = [b"\x93NUMPY", format!("{tiny:<123}\n").as_bytes(), numbers].concat();
    let small = VoxelGrid::new([2; 3], [32.0; 3], [0.0; 3]).unwrap();
    let large = VoxelGrid::new([64; 3], [1.0; 3], [0.0; 3]).unwrap();
    // Each thread has a buffer of its own.
    let threads = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let least = |name: &str, bytes: &[u8], grid, mode, cells| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let spec = VoxelSpec::new(grid, mode, cells, 1).unwrap();
        let rooms = [1 << 30, 24 << 20, 12 << 20, 8 << 20, 5 << 20, 1 << 20, 600 << 10, 1];
        let made = rooms.into_iter().filter(|room| {
            let (backend, room) = (&VoxelHost::default(), Bytes(*room));
            let mut report = None;
            let batch = Batch::open(&path).unwrap();
            let (chunk, available) = (None, room);
            let job =
                VoxelJob { batch: &batch, spec, backend, or_host: false, chunk, available, room };
            let run = || job.run(&mut Nowhere, &mut |_, _| true);
            let peak = peak_of(|| report = Some(threads.install(run)));
            match report.unwrap() {
                Err(Error::NeverFits { .. }) => false,
                Err(error) => panic!("{error}"),
                Ok(report) => {
                    let said = report.peak_bytes;
                    assert!(peak as u64 <= room.get() && said <= room.get(), "{peak} {report:?}");
                    assert!(peak as u64 <= said + (64 << 10), "{name} {mode} {peak} {report:?}");
                    true
                }
            }
        });
        made.min()
    };
    let (occupancy, f32) = (VoxelMode::Occupancy, Cells::F32);
    assert_eq!(least("a.bin", numbers, large, occupancy, f32), Some(600 << 10));
    assert_eq!(least("a.bin", numbers, large, VoxelMode::Count, f32), Some(5 << 20));
    assert_eq!(least("a.bin", numbers, large, VoxelMode::Mean, f32), Some(8 << 20));
    assert_eq!(least("a.bin", numbers, large, VoxelMode::Count, Cells::Sparse), Some(1 << 20));
    let ply = [header.as_bytes(), numbers].concat();
    assert_eq!(least("a.ply", &ply, large, occupancy, f32), Some(8 << 20));
    // Clouds of four points each: what is kept of each is more than its points.
    assert_eq!(least("tiny.npy", &tiny, small, occupancy, f32), Some(5 << 20));
}

#[test]
fn what_is_worked_in_is_at_most_what_was_said() {
    let _alone = ALONE.lock();
    let square = |n| (n % 1024, n / 1024);
    let column = |n| (7, n);
    type Apart = fn(u32) -> (u32, u32);
    let apart: [(&str, Apart); 2] = [("a square", square), ("a column", column)];
    // The second has more cells than a number of 32 bits counts.
    for height in [1, 1 << 10] {
        let range = [0.0, 0.0, 0.0, 1024.0, (1u32 << 20) as f32, height as f32];
        let spec = HardSpec::new([1.0; 3], range, 1, u32::MAX >> 1).unwrap();
        for threads in [1, 3] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for (name, apart) in apart {
                let mut host = HardHost::new(spec);
                let mut made = HardVoxels::default();
                let mut taken = 0;
                // Just past what a table holds, where it is emptiest; kept from one to the next.
                for points in [1000, 24_577, 32_769, 49_153, 65_537, 98_305] {
                    let floats = cloud(points, apart);
                    let batch = PointBatch::one(&floats, 3).unwrap();
                    let room = points as usize;
                    let (mut a, mut b, mut c) =
                        (vec![0.0; 3 * room], vec![0; 3 * room], vec![0; room]);
                    // The result is memory of the caller's, or was there before.
                    pool.install(|| HardHost::new(spec).run(&batch, &mut made).unwrap());
                    let before = HELD.load(SeqCst);
                    let peak = peak_of(|| {
                        pool.install(|| {
                            host.run(&batch, &mut made).unwrap();
                            let to = HardSlices {
                                voxels: &mut a,
                                coordinates: &mut b,
                                num_points: &mut c,
                            };
                            host.run_into(&batch, to).unwrap();
                        });
                    });
                    let said = HardHost::working_bytes(u64::from(points)) as usize;
                    let at_most = taken + peak;
                    assert!(
                        at_most <= said,
                        "{points} points in {name}, {threads} threads: {at_most} > {said}"
                    );
                    taken = taken + HELD.load(SeqCst) - before;
                }
            }
        }
    }
}
