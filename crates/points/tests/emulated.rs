//! The kernel whose blocks hand points to each other, on the processor: its text as it is
//! compiled for a GPU, every block a process and every lane a thread. Skipped without a C++
//! compiler.
#![expect(clippy::print_stdout, reason = "what is skipped is said")]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Outcome, compiled, kernels};
use plimsoll_points::{Cells, Cloud, VoxelGrid, VoxelMode, VoxelSpec, voxelize};

const CELLS: [u32; 3] = [24, 20, 18];
const BLOCKS: u32 = 5;

/// The program, for bytes or floats, with this way of dividing.
fn built(folder: &Path, bytes: bool, division: u32) -> Outcome<Option<PathBuf>> {
    // Dynamic shared memory has a size only here.
    let kernel = std::fs::read_to_string(kernels().join("exchange.h"))?;
    let exchange = folder.join("exchange.h");
    std::fs::write(&exchange, kernel.replace("extern __shared__", "extern"))?;
    let definitions = format!(
        "STRIDE=3 WIDE=0 RAGGED=0 WHOLE=1 __CUDA_ARCH__=800 OUT_U8={} DIVISION={division}",
        u8::from(bytes)
    );
    let includes = [
        ("DIALECT", kernels().join("dialect.h")),
        ("PLACE", kernels().join("place.h")),
        ("EXCHANGE", exchange),
    ];
    let program = folder.join(format!("grid-{bytes}-{division}"));
    compiled(program, "grid.cpp", &definitions, &includes)
}

struct Case {
    points: usize,
    /// Of the volume, along each axis: less than 1 is a cluster.
    part: f32,
    size: f32,
    vector_bits: u32,
    launches: u32,
}

fn cloud(case: &Case, seed: u32) -> Outcome<Cloud> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let coordinate = |axis: usize, next: &mut dyn FnMut() -> u32| match next() % 50 {
        0 => f32::NAN,
        1 => f32::INFINITY,
        2 => -1e-45,
        3..=8 => (next() % 26) as f32 * case.size,
        _ => next() as f32 / (1 << 24) as f32 * CELLS[axis] as f32 * case.size * case.part * 1.05,
    };
    let floats = (0..case.points * 3).map(|at| coordinate(at % 3, &mut next)).collect();
    Ok(Cloud::from_points(floats, 0)?)
}

fn check(program: &Path, bytes: bool, case: &Case, seed: u32) -> Outcome<()> {
    let cloud = cloud(case, seed)?;
    let voxels: u32 = CELLS.iter().product();
    let slab_bits = voxels.div_ceil(BLOCKS).next_power_of_two().ilog2();
    assert_eq!(voxels.div_ceil(1 << slab_bits), BLOCKS, "a slab for every block");
    let [width, height, depth] = CELLS;
    let points = case.points as u32;
    let head =
        [points, width, height, depth, BLOCKS, 64, slab_bits, case.vector_bits, case.launches];
    let floats = [0.0, 0.0, 0.0, case.size, case.size, case.size];
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or("no input")?;
    input.write_all(bytemuck::cast_slice(&head))?;
    input.write_all(bytemuck::cast_slice(&floats))?;
    input.write_all(bytemuck::cast_slice(&cloud.floats()?))?;
    drop(input);
    let said = child.wait_with_output()?;
    assert!(said.status.success(), "{}", said.status);
    let (words, made) = said.stdout.split_at(4 + 8 * BLOCKS as usize);
    let words: Vec<u32> = words.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    let grid = VoxelGrid::new([depth, height, width], [case.size; 3], [0.0; 3])?;
    let cells = if bytes { Cells::U8 } else { Cells::F32 };
    let want = voxelize(&[cloud], &VoxelSpec::new(grid, VoxelMode::Occupancy, cells, 0)?)?;
    assert!(made == want.bytes, "another result: {} points, bytes {bytes}", case.points);
    let sum = |slot: usize| words[1..].iter().skip(slot).step_by(2).copied().map(u64::from).sum();
    let counted: [u64; 2] = [sum(0), sum(1)];
    assert_eq!(counted, [want.tally.not_finite, want.tally.outside]);
    assert_eq!(words[0] & 0x7FFF_FFFF, 0, "everybody has passed the gate");
    Ok(())
}

#[test]
fn blocks_that_hand_points_to_each_other_make_what_the_host_makes() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    for (bytes, division, size) in [(false, 1, 0.125), (false, 0, 0.1), (true, 1, 0.125)] {
        let Some(program) = built(folder.path(), bytes, division)? else { return Ok(()) };
        for (seed, (points, part, vector_bits, launches)) in [
            (403, 1.0, 2, 3),
            // Bins that are full: with few vectors, and in a cluster.
            (1502, 1.0, 0, 3),
            (1201, 0.1, 2, 2),
            (3, 1.0, 1, 1),
            (0, 1.0, 0, 2),
        ]
        .into_iter()
        .enumerate()
        {
            let case = Case { points, part, size, vector_bits, launches };
            check(&program, bytes, &case, seed as u32 + 7)?;
        }
    }
    Ok(())
}
