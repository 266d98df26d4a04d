//! Occupancy on a GPU of NVIDIA's: is every bit that of the host, and how near the memory floor
//! is it? One line of JSON for each finding; `docs/results` has what it said on which machine.
//!
//! `cargo run --release -p plimsoll-points --example resident [-- --quick | --cold] [--memory B]`: only
//! whether it is right, or that and the cold cloud; B is what the memory gives in bytes a second,
//! which "the floor" is made of (`scripts/bench-voxelize-gpu` measures it first).

#![expect(
    clippy::print_stdout,
    unsafe_code,
    reason = "a program that says what it found, and copies from pinned memory"
)]

use std::sync::Arc;
use std::time::Instant;

use plimsoll_memory::backend::cuda::{Cuda, CudaMemory, CudaOptions};
use plimsoll_memory::{Block, Bytes, Device, Memory, Request, Result, Stream};
use plimsoll_points::backend::cuda::{self, ResidentShape, ResidentVoxels};
use plimsoll_points::backend::host::VoxelHost;
use plimsoll_points::backend::{VoxelBackend, VoxelPiece};
use plimsoll_points::{Cells, Cloud, VoxelGrid, VoxelMode, VoxelSpec, voxelize};

/// Bytes a second that the memory of an H200 gives, where nobody says.
const MEMORY: f64 = 4.3e12;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Uniform,
    Clustered,
    Edges,
    Broken,
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    fn unit(&mut self) -> f32 {
        (self.next() >> 7) as f32 / (1 << 24) as f32
    }
}

/// A cloud in the unit cube, which the grid cuts into `side` cells along each axis.
fn cloud(kind: Kind, points: usize, side: u32, seed: u64) -> Result<Cloud> {
    let mut random = Random(seed);
    let size = 1.0 / side as f32;
    let centres: Vec<f32> = (0..48).map(|_| random.unit()).collect();
    let mut centre = 0;
    let mut coordinate = |index: usize| {
        if index == 0 {
            centre = random.next() as usize % 16;
        }
        match kind {
            Kind::Uniform => random.unit(),
            Kind::Clustered => {
                let spread: f32 = (0..4).map(|_| random.unit() - 0.5).sum();
                centres[centre * 3 + index] + 0.02 * spread
            }
            Kind::Edges => {
                let edge = (random.next() % (side + 3)) as f32 * size - size;
                f32::from_bits(edge.to_bits().wrapping_add(random.next() % 3).wrapping_sub(1))
            }
            Kind::Broken => match random.next() % 5 {
                0 => f32::NAN,
                1 => f32::INFINITY,
                2 => -1e-45,
                3 => 3e38,
                _ => random.unit(),
            },
        }
    };
    let floats = (0..points).flat_map(|_| [0, 1, 2]).map(&mut coordinate).collect();
    Cloud::from_points(floats, 0)
}

fn clouds(kind: Kind, clouds: usize, points: usize, side: u32) -> Result<Vec<Cloud>> {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = seed.map_or(1, |time| time.as_nanos() as u64);
    std::thread::scope(|scope| {
        let one = |index: usize| {
            scope.spawn(move || cloud(kind, points, side, seed ^ (index as u64) << 40))
        };
        let threads: Vec<_> = (0..clouds).map(one).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|_| cloud(kind, 0, side, 0)))
            .collect()
    })
}

fn grid(side: u32) -> Result<VoxelGrid> {
    VoxelGrid::new([side; 3], [1.0 / side as f32; 3], [0.0; 3])
}

struct Case {
    resident: ResidentVoxels,
    points: Block,
    out: Block,
    clouds: Vec<Cloud>,
    spec: VoxelSpec,
}

impl Case {
    fn new(device: &Arc<Cuda>, kind: Kind, count: usize, points: usize, side: u32) -> Result<Case> {
        let clouds = clouds(kind, count, points, side)?;
        let spec = VoxelSpec::new(grid(side)?, VoxelMode::Occupancy, Cells::F32, 0)?;
        let shape =
            ResidentShape { spec, clouds: count as u64, points: points as u64, features: 0 };
        let resident = ResidentVoxels::new(Arc::clone(device), &shape)?;
        let block = device.allocate(Request::new(Bytes(resident.points_bytes().max(4))))?;
        let each = points * 12;
        for (index, cloud) in clouds.iter().enumerate() {
            let floats = cloud.floats()?;
            let bytes: &[u8] = bytemuck::cast_slice(&floats);
            device.write(block.address().plus((index * each) as u64), bytes)?;
        }
        let out = device.allocate(Request::new(Bytes(resident.out_bytes())))?;
        Ok(Case { resident, points: block, out, clouds, spec })
    }

    /// Whether the device gives the bits and counts of the host.
    fn is_right(&self, device: &Cuda, stream: Stream) -> Result<bool> {
        device.fill_on(stream, self.out.address(), 0x77, Bytes(self.resident.out_bytes()))?;
        self.resident.launch(stream, &self.points, &self.out)?;
        let seen = self.resident.seen(stream)?;
        let mut got = vec![0u8; self.resident.out_bytes() as usize];
        device.read(self.out.address(), &mut got)?;
        let want = voxelize(&self.clouds, &self.spec)?;
        let counted = seen.not_finite == want.tally.not_finite
            && seen.outside == want.tally.outside
            && seen.occupied.is_none_or(|occupied| occupied == want.tally.occupied);
        Ok(counted && got == want.bytes)
    }

    /// Microseconds of a launch, in a row of many.
    fn time(&self, device: &Cuda, stream: Stream, launches: u32) -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            device.synchronize_stream(stream)?;
            let start = Instant::now();
            for _ in 0..launches {
                self.resident.launch(stream, &self.points, &self.out)?;
            }
            device.synchronize_stream(stream)?;
            best = best.min(start.elapsed().as_secs_f64() / f64::from(launches));
        }
        Ok(best * 1e6)
    }

    fn floor_us(&self, memory: f64) -> f64 {
        (self.resident.points_bytes() + self.resident.out_bytes()) as f64 / memory * 1e6
    }

    fn end(self, device: &Cuda, stream: Stream) -> Result<()> {
        device.release(self.points, stream)?;
        device.release(self.out, stream)
    }
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let quick = words.iter().any(|word| word == "--quick");
    let given = words.iter().skip_while(|word| *word != "--memory").nth(1);
    let memory = given.and_then(|word| word.parse().ok()).unwrap_or(MEMORY);
    let device = Arc::new(Cuda::open(0)?);
    let stream = device.new_stream()?;
    println!(
        "{{\"device\": \"{}\", \"driver\": {}}}",
        device.info().name,
        device.facts().driver_version
    );
    right(&device, stream)?;
    if quick {
        return Ok(());
    }
    if words.iter().any(|word| word == "--cold") {
        return cold(&device, stream, memory);
    }
    for (name, kind, count, points, side) in [
        ("B64 N100k 128", Kind::Uniform, 64, 100_000, 128),
        ("B32 N1M 128", Kind::Uniform, 32, 1_000_000, 128),
        ("B16 N200k 256", Kind::Uniform, 16, 200_000, 256),
        ("B64 N100k 128 clustered", Kind::Clustered, 64, 100_000, 128),
        ("B32 N1M 128 clustered", Kind::Clustered, 32, 1_000_000, 128),
        ("B16 N200k 256 clustered", Kind::Clustered, 16, 200_000, 256),
        ("B1 N2M 512", Kind::Uniform, 1, 2_000_000, 512),
    ] {
        let case = Case::new(&device, kind, count, points, side)?;
        let right = case.is_right(&device, stream)?;
        let (us, floor) = (case.time(&device, stream, 40)?, case.floor_us(memory));
        println!(
            "{{\"case\": \"{name}\", \"plan\": \"{}\", \"us\": {us:.1}, \"floor_us\": {floor:.1}, \
             \"ratio\": {:.3}, \"same\": {right}}}",
            case.resident.plan(),
            us / floor
        );
        case.end(&device, stream)?;
    }
    cold(&device, stream, memory)?;
    ten_times(&device)
}

fn right(device: &Arc<Cuda>, stream: Stream) -> Result<()> {
    for kind in [Kind::Uniform, Kind::Clustered, Kind::Edges, Kind::Broken] {
        for (count, points, side) in [
            (3, 20_001, 64),
            (2, 1000, 100),
            (70, 3000, 96),
            (3, 0, 32),
            (1, 50_000, 320),
            (1, 500_003, 128),
            (1, 900_000, 100),
            (2, 7, 1),
        ] {
            let case = Case::new(device, kind, count, points, side)?;
            let right = case.is_right(device, stream)?;
            println!(
                "{{\"check\": \"{kind:?} B{count} N{points} {side}\", \"plan\": \"{}\", \"same\": {right}}}",
                case.resident.plan()
            );
            case.end(device, stream)?;
        }
    }
    Ok(())
}

/// One cloud by the replay of a graph, after everything in the caches was overwritten.
fn cold(device: &Arc<Cuda>, stream: Stream, memory: f64) -> Result<()> {
    const ROUNDS: u32 = 200;
    let case = Case::new(device, Kind::Uniform, 1, 500_000, 128)?;
    case.resident.launch(stream, &case.points, &case.out)?;
    device.synchronize_stream(stream)?;
    let capture = device.begin_graph(stream)?;
    case.resident.launch(stream, &case.points, &case.out)?;
    let graph = capture.end()?;
    let other = Bytes::mib(512);
    let flush = device.allocate(Request::new(other))?;
    let round = |with: bool| -> Result<f64> {
        device.synchronize_stream(stream)?;
        let start = Instant::now();
        for _ in 0..ROUNDS {
            device.fill_on(stream, flush.address(), 1, other)?;
            if with {
                graph.launch(stream)?;
            }
        }
        device.synchronize_stream(stream)?;
        Ok(start.elapsed().as_secs_f64() / f64::from(ROUNDS) * 1e6)
    };
    let mut differences: Vec<f64> = Vec::new();
    for _ in 0..7 {
        let (without, with) = (round(false)?, round(true)?);
        differences.push(with - without);
    }
    differences.sort_by(f64::total_cmp);
    println!(
        "{{\"case\": \"B1 N500k 128 cold, by graph\", \"plan\": \"{}\", \"us\": {:.2}, \"floor_us\": {:.2}}}",
        case.resident.plan(),
        differences[3],
        case.floor_us(memory)
    );
    device.release(flush, stream)?;
    case.end(device, stream)
}

/// A batch of ten times the limit, from host memory to host memory.
fn ten_times(device: &Arc<Cuda>) -> Result<()> {
    let clouds = clouds(Kind::Uniform, 256, 100_000, 128)?;
    let spec = VoxelSpec::new(grid(128)?, VoxelMode::Occupancy, Cells::F32, 0)?;
    let piece = VoxelPiece { clouds: &clouds, spec: &spec, voxels: 0..spec.grid().voxels() };
    let points: u64 = piece.points() * 12;
    let limit = Bytes((points + piece.bytes()) / 10);
    let mut out = vec![0u32; (piece.bytes() / 4) as usize];
    let mut whole = vec![0u32; (piece.bytes() / 4) as usize];
    let (line, free) = (cuda::open(0, Some(limit))?, cuda::open(0, None)?);
    let best = |backend: &dyn VoxelBackend, out: &mut [u32]| -> Result<f64> {
        let mut best = f64::INFINITY;
        for _ in 0..6 {
            let start = Instant::now();
            backend.dense(&piece, bytemuck::cast_slice_mut(out))?;
            best = best.min(start.elapsed().as_secs_f64());
        }
        Ok(best)
    };
    let limited = best(&line, &mut out)?;
    let unlimited = best(&free, &mut whole)?;
    let same = out == whole;
    let host = best(&VoxelHost::default(), &mut whole)?;
    let same = same && out == whole;
    let (up, down) = copies(device, points, piece.bytes())?;
    let copies = up.max(down);
    println!(
        "{{\"case\": \"ten times the limit, host to host\", \"limit_bytes\": {}, \"batch_bytes\": {}, \
         \"peak_bytes\": {}, \"ms\": {:.1}, \"in_one_piece_ms\": {:.1}, \"host_ms\": {:.1}, \
         \"copies_up_ms\": {:.1}, \"copies_down_ms\": {:.1}, \"of_what_copies_allow\": {:.2}, \"same\": {same}}}",
        limit.get(),
        points + piece.bytes(),
        line.peak_bytes().unwrap_or(0),
        limited * 1e3,
        unlimited * 1e3,
        host * 1e3,
        up * 1e3,
        down * 1e3,
        copies / limited
    );
    Ok(())
}

/// Seconds that this many bytes take onto the device and back, from pinned memory, 64 MiB at once.
fn copies(device: &Arc<Cuda>, up: u64, down: u64) -> Result<(f64, f64)> {
    let size = Bytes::mib(64);
    let pinned = Cuda::open_with(&CudaOptions::new(0).memory(CudaMemory::Pinned))?;
    let (host, there) =
        (pinned.allocate(Request::new(size))?, device.allocate(Request::new(size))?);
    // SAFETY: the block is pinned memory of this process of that size, used here alone.
    let bytes = unsafe {
        std::slice::from_raw_parts_mut(host.address().pointer() as *mut u8, size.get() as usize)
    };
    bytes.fill(1);
    let stream = device.new_stream()?;
    let mut times = [0.0; 2];
    for (time, amount, upward) in [(0, up, true), (1, down, false)] {
        let start = Instant::now();
        for _ in 0..amount.div_ceil(size.get()) {
            if upward {
                device.write_on(stream, there.address(), bytes)?;
            } else {
                device.read_on(stream, there.address(), bytes)?;
            }
        }
        let whole = amount.div_ceil(size.get()) * size.get();
        times[time] = start.elapsed().as_secs_f64() * amount as f64 / whole as f64;
    }
    pinned.release(host, Stream::DEFAULT)?;
    device.release(there, stream)?;
    Ok((times[0], times[1]))
}
