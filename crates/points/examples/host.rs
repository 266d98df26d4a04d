//! Times occupancy on the host: `host CLOUD.npy SIDE SIZE`, milliseconds of the best of some
//! runs into memory that was used before, and what writing as many bytes alone takes.

#![expect(clippy::print_stdout, reason = "a program that says what it measured")]

use std::path::Path;
use std::time::Instant;

use plimsoll::{Error, Result};
use plimsoll_points::backend::host::Host;
use plimsoll_points::backend::{Backend, Piece};
use plimsoll_points::{Batch, Cells, Grid, Mode, Spec};

fn best(mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..15 {
        let start = Instant::now();
        work()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    Ok(best * 1e3)
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
    let spec =
        Spec::new(Grid::new([side; 3], [size; 3], [0.0; 3])?, Mode::Occupancy, Cells::F32, 0)?;
    let piece = Piece { clouds: &clouds, spec: &spec, voxels: 0..spec.grid().voxels() };
    let mut out = vec![0u64; piece.bytes().div_ceil(8) as usize];
    let made =
        best(|| Host::default().dense(&piece, bytemuck::cast_slice_mut(&mut out)).map(|_| ()))?;
    let occupied = out.iter().filter(|word| **word != 0).count();
    // The same bytes with no points at all: bits are read and the output is written.
    let half = out.len() / 2;
    let written = best(|| {
        let (a, b) = out.split_at_mut(half);
        rayon::join(|| a.fill(7), || b.fill(7));
        Ok(())
    })?;
    println!("{{\"ms\": {made:.3}, \"fill_ms\": {written:.3}, \"words_lit\": {occupied}}}");
    Ok(())
}
