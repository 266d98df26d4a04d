//! The kernels of pillars and images for CUDA on the processor: their text as it is compiled for a
//! GPU, every block a process and every lane a thread. Skipped without a C++ compiler.
#![expect(clippy::print_stdout, reason = "what is skipped is said")]

mod common;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::{Outcome, compiled, kernels};
use plimsoll_points::network::{
    CoordinateForm, HardSpec, HardVoxels, PointBatch, birds_eye, hard_voxelize, pillar_features,
};

/// The program for so many points of a pillar and columns.
fn built(folder: &Path, points: u32, columns: usize) -> Outcome<Option<PathBuf>> {
    let definitions = format!(
        "WIDE=0 WIDE_KEYS=0 RAGGED=0 WHOLE=1 DIVISION=0 OUT_U8=0 ORDER_XYZ=0 COORDINATES=4 \
         HARD_LANES=64 MAX_POINTS={points} STRIDE={columns}"
    );
    let includes = [
        ("DIALECT", kernels().join("dialect.h")),
        ("PLACE", kernels().join("place.h")),
        ("FEATURES_OF_GRIDS", kernels().join("features.h")),
        ("VOXEL_PLACE", kernels().join("voxel_place.h")),
        ("NETWORK", kernels().join("network.h")),
    ];
    let program = folder.join(format!("network-{points}-{columns}"));
    compiled(program, "network.cpp", &definitions, &includes)
}

fn bits(floats: &[f32]) -> Vec<u32> {
    floats.iter().map(|value| value.to_bits()).collect()
}

/// Two clouds of points that share pillars.
fn pillars(spec: &HardSpec, columns: usize) -> Outcome<HardVoxels> {
    let mut state = 9u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    let floats: Vec<f32> = (0..300 * columns).map(|_| next() * 4.5 - 0.2).collect();
    Ok(hard_voxelize(&PointBatch::ragged(&floats, columns, &[180, 120])?, spec)?)
}

/// What the program makes: features of the first `total` pillars, and the image.
fn run(
    program: &Path,
    spec: &HardSpec,
    made: &HardVoxels,
    values: &[f32],
    total: usize,
) -> Outcome<Vec<u32>> {
    let count = made.num_points.len();
    let head = [count, total, 2, values.len() / count].map(|number| number as u32);
    let grid = spec.grid();
    let mut child = Command::new(program).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().ok_or("no input")?;
    input.write_all(bytemuck::cast_slice(&head))?;
    input.write_all(bytemuck::cast_slice(&[grid.origin(), grid.size()]))?;
    input.write_all(bytemuck::cast_slice(&grid.cells()))?;
    input.write_all(bytemuck::cast_slice(&made.voxels))?;
    input.write_all(bytemuck::cast_slice(&made.coordinates))?;
    input.write_all(bytemuck::cast_slice(&made.num_points))?;
    input.write_all(bytemuck::cast_slice(values))?;
    drop(input);
    let said = child.wait_with_output()?;
    assert!(said.status.success(), "{}", said.status);
    Ok(said.stdout.chunks_exact(4).map(bytemuck::pod_read_unaligned).collect())
}

#[test]
fn the_kernels_for_cuda_make_the_pillars_of_the_host() -> Outcome<()> {
    let folder = tempfile::tempdir()?;
    for (points, columns) in [(4u32, 4usize), (9, 6)] {
        let Some(program) = built(folder.path(), points, columns)? else { return Ok(()) };
        // Images of a multiple of four places, which are written by fours, and others.
        for (size, values) in [([0.5, 0.25, 4.5], 19usize), ([0.4, 0.3, 4.5], 3)] {
            let range = [0.0, 0.0, -0.25, 4.0, 3.9, 4.25];
            let spec = HardSpec::new(size, range, points, 90)?;
            let form = CoordinateForm { batch_index: true, ..CoordinateForm::default() };
            let spec = spec.with_form(form);
            let made = pillars(&spec, columns)?;
            let count = made.num_points.len();
            let rows: Vec<f32> = (0..count * values).map(|n| n as f32 - 7.5).collect();
            for total in [count, count / 2] {
                let words = run(&program, &spec, &made, &rows, total)?;
                let mut want = bits(&pillar_features(&made, &spec, columns)?);
                let each = points as usize * (columns + 6);
                want[total * each..].fill(0x5555_5555);
                want.extend(bits(&birds_eye(&rows, values, &made.coordinates, &spec, 2)?));
                assert!(words == want, "another result: {points} {columns} {size:?} {total}");
            }
        }
    }
    Ok(())
}
