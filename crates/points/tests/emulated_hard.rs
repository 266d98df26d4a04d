//! The kernels of hard voxelization for CUDA on the processor: their text as it is compiled for a
//! GPU, every block a process and every lane a thread. Skipped without a C++ compiler.
#![expect(clippy::print_stdout, reason = "what is skipped is said")]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Outcome, compiled, kernels};
use plimsoll_points::network::{CoordinateForm, HardSpec, PointBatch, hard_voxelize};

/// The program for so many points of a voxel and columns, with lists of so many runs, and so many
/// slots for four points.
fn built(
    folder: &Path,
    points: u32,
    columns: usize,
    list: u32,
    slots: u32,
) -> Outcome<Option<PathBuf>> {
    let definitions = format!(
        "WIDE=0 RAGGED=1 WHOLE=1 DIVISION=0 OUT_U8=0 ORDER_XYZ=0 COORDINATES=4 FILL_BLOCKS=1 \
         HARD_LANES=64 MAX_POINTS={points} STRIDE={columns} LIST={list} SLOTS_OF_FOUR={slots}"
    );
    let includes = [
        ("DIALECT", kernels().join("dialect.h")),
        ("PLACE", kernels().join("place.h")),
        ("VOXEL_PLACE", kernels().join("voxel_place.h")),
        ("HARD", kernels().join("hard.h")),
        ("HARD_RUNS", kernels().join("hard_runs.h")),
    ];
    let program = folder.join(format!("hard-{points}-{columns}-{list}"));
    compiled(program, "hard.cpp", &definitions, &includes)
}

/// Points that share cells in many ways: in a row, far apart, on faces, and none at all.
fn cloud(points: usize, columns: usize, cells: u32, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let mut last = vec![0.5; columns];
    (0..points)
        .flat_map(|_| {
            if next() % 3 > 0 {
                last = (0..columns).map(|_| (next() % cells) as f32 * 0.5 + 0.25).collect();
            }
            match next() % 40 {
                0 => last[0] = f32::NAN,
                1 => last[1] = f32::INFINITY,
                2 => last[2] = -1e-45,
                3 => last[0] = (next() % cells) as f32 * 0.5,
                _ => {}
            }
            if let Some(feature) = last.get_mut(3) {
                *feature = next() as f32;
            }
            last.clone()
        })
        .collect()
}

fn check(
    program: &Path,
    lengths: &[usize],
    columns: usize,
    spec: &HardSpec,
    cells: u32,
) -> Outcome<()> {
    let floats: Vec<f32> = lengths
        .iter()
        .enumerate()
        .flat_map(|(number, points)| cloud(*points, columns, cells, number as u32 + 9))
        .collect();
    let mut starts = vec![0u64];
    for length in lengths {
        starts.push(starts.last().copied().unwrap_or(0) + *length as u64);
    }
    let longest = lengths.iter().copied().max().unwrap_or(0) as u32;
    let head = [lengths.len() as u32, longest, spec.max_voxels(), 3];
    let grid = spec.grid();
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or("no input")?;
    input.write_all(bytemuck::cast_slice(&head))?;
    input.write_all(bytemuck::cast_slice(&[grid.origin(), grid.size()]))?;
    input.write_all(bytemuck::cast_slice(&grid.cells()))?;
    input.write_all(bytemuck::cast_slice(&starts))?;
    input.write_all(bytemuck::cast_slice(&floats))?;
    drop(input);
    let said = child.wait_with_output()?;
    assert!(said.status.success(), "{}", said.status);
    let words: Vec<u32> = said.stdout.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect();
    let want = hard_voxelize(&PointBatch::ragged(&floats, columns, lengths)?, spec)?;
    let totals = want.clouds.iter().copied().chain([want.num_points.len()]);
    let mut expected = vec![0u32];
    expected.extend(totals.map(|total| total as u32));
    expected.extend(want.num_points.iter().map(|count| count.cast_unsigned()));
    expected.extend(want.coordinates.iter().map(|number| number.cast_unsigned()));
    expected.extend(want.voxels.iter().map(|value| value.to_bits()));
    assert_eq!(words.first(), Some(&0), "everything is zeros again");
    assert_eq!(words.len(), expected.len(), "{lengths:?} {spec:?}");
    assert!(words == expected, "another result: {lengths:?} {spec:?}");
    Ok(())
}

#[test]
fn the_kernels_for_cuda_make_what_the_host_makes() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    for (points, columns, list, slots) in
        [(3, 5, 32, 8), (40, 4, 64, 8), (6, 4, 4, 8), (20, 3, 4, 5), (5, 9, 4, 6)]
    {
        let Some(program) = built(folder.path(), points, columns, list, slots)? else {
            return Ok(());
        };
        for (lengths, cells, voxels) in [
            (&[700usize, 0, 131, 257][..], 6, 1000),
            // Too many voxels, and lists that overflow.
            (&[300, 400], 6, 40),
            (&[900, 70], 1, 10),
            (&[0], 6, 10),
        ] {
            let size = cells as f32 * 0.5;
            let range = [0.0, 0.0, 0.0, size, size, size];
            let spec = HardSpec::new([0.5; 3], range, points, voxels)?;
            let form = CoordinateForm { batch_index: true, ..CoordinateForm::default() };
            check(&program, lengths, columns, &spec.with_form(form), cells)?;
        }
    }
    Ok(())
}
