//! What hard voxelization works in stays within what it says, counted by the allocator.
#![expect(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use plimsoll_points::network::{HardHost, HardSlices, HardSpec, HardVoxels, PointBatch};

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

#[test]
fn it_is_at_most_what_was_said() {
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
