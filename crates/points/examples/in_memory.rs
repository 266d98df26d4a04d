//! Times occupancy of a cloud that is in memory, on the host: `in_memory CLOUD.npy SIDE SIZE ROUNDS`.
//! Milliseconds of each round, for `scripts/bench-python`: the library's plain call, and the
//! backend into memory that was used before.

#![expect(clippy::print_stdout, reason = "a program that says what it measured")]

use std::path::Path;
use std::time::Instant;

use plimsoll_memory::{Error, Result};
use plimsoll_points::backend::host::VoxelHost;
use plimsoll_points::backend::{VoxelBackend, VoxelPiece};
use plimsoll_points::{Batch, Cells, Cloud, VoxelGrid, VoxelMode, VoxelSpec, voxelize};

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let usage = || Error::Config {
        field: "arguments",
        value: words.join(" "),
        range: "CLOUD.npy SIDE SIZE ROUNDS",
    };
    let [_, path, side, size, rounds] = &words[..] else { return Err(usage()) };
    let side: u32 = side.parse().map_err(|_| usage())?;
    let size: f32 = size.parse().map_err(|_| usage())?;
    let rounds: usize = rounds.parse().map_err(|_| usage())?;
    let batch = Batch::open(Path::new(path))?;
    let in_file = batch.load(0..batch.clouds(), false)?;
    let in_memory = |cloud: &Cloud| Cloud::from_points(cloud.floats()?.into_owned(), 0);
    let clouds = in_file.iter().map(in_memory).collect::<Result<Vec<Cloud>>>()?;
    let grid = VoxelGrid::new([side; 3], [size; 3], [0.0; 3])?;
    let spec = VoxelSpec::new(grid, VoxelMode::Occupancy, Cells::F32, 0)?;
    let piece = VoxelPiece { clouds: &clouds, spec: &spec, voxels: 0..spec.grid().voxels() };
    let mut out = vec![0u64; piece.bytes().div_ceil(8) as usize];
    let (mut plain, mut into) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let start = Instant::now();
        let made = voxelize(&clouds, &spec)?;
        plain.push(start.elapsed().as_secs_f64() * 1e3);
        drop(made);
        let start = Instant::now();
        VoxelHost::default().dense(&piece, bytemuck::cast_slice_mut(&mut out))?;
        into.push(start.elapsed().as_secs_f64() * 1e3);
    }
    println!("{{\"plain_ms\": {plain:?}, \"into_ms\": {into:?}}}");
    Ok(())
}
