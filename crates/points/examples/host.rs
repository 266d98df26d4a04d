//! Times occupancy on the host: `host CLOUD.npy SIDE SIZE`, milliseconds of the best of some
//! runs into memory that was used before, what writing as many bytes alone takes, in turns with
//! them, and the median of the ratio of the two.

#![expect(clippy::print_stdout, reason = "a program that says what it measured")]

use std::path::Path;
use std::time::Instant;

use plimsoll_memory::{Error, Result};
use plimsoll_points::backend::host::VoxelHost;
use plimsoll_points::backend::{VoxelBackend, VoxelPiece};
use plimsoll_points::{Batch, Cells, VoxelGrid, VoxelMode, VoxelSpec};

const ROUNDS: usize = 15;

fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let start = Instant::now();
    work()?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

fn best(times: &[f64]) -> f64 {
    times.iter().copied().fold(f64::INFINITY, f64::min)
}

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    let usage = || Error::Config {
        field: "arguments",
        value: words.join(" "),
        range: "CLOUD.npy SIDE SIZE",
    };
    let [_, path, side, size] = &words[..] else { return Err(usage()) };
    let side: u32 = side.parse().map_err(|_| usage())?;
    let size: f32 = size.parse().map_err(|_| usage())?;
    let batch = Batch::open(Path::new(path))?;
    let clouds = batch.load(0..batch.clouds(), false)?;
    let spec = VoxelSpec::new(
        VoxelGrid::new([side; 3], [size; 3], [0.0; 3])?,
        VoxelMode::Occupancy,
        Cells::F32,
        0,
    )?;
    let piece = VoxelPiece { clouds: &clouds, spec: &spec, voxels: 0..spec.grid().voxels() };
    let mut out = vec![0u64; piece.bytes().div_ceil(8) as usize];
    let (mut made, mut filled, mut lit) = (Vec::new(), Vec::new(), 0);
    for _ in 0..ROUNDS {
        let bytes = bytemuck::cast_slice_mut(&mut out);
        made.push(timed(|| VoxelHost::default().dense(&piece, bytes).map(|_| ()))?);
        lit = out.iter().filter(|word| **word != 0).count();
        let half = out.len() / 2;
        let (a, b) = out.split_at_mut(half);
        filled.push(timed(|| {
            rayon::join(|| a.fill(7), || b.fill(7));
            Ok(())
        })?);
    }
    let mut ratios: Vec<f64> = made.iter().zip(&filled).map(|(made, fill)| made / fill).collect();
    ratios.sort_by(f64::total_cmp);
    println!(
        "{{\"ms\": {:.3}, \"fill_ms\": {:.3}, \"median_ratio\": {:.2}, \"words_lit\": {lit}}}",
        best(&made),
        best(&filled),
        ratios[ROUNDS / 2]
    );
    Ok(())
}
