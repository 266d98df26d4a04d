//! A picture of a grid from three sides.
//!
//! Each side is a sheet of glass through which one looks along an axis: the more voxels with
//! points behind a place, the brighter it is, on a scale that shows one as well as a hundred.
//! Top, front and side stand beside each other, x to the right on the first two, z upwards on
//! the last two.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use plimsoll::{Error, Result};

use crate::backend::Filled;
use crate::grid::Grid;
use crate::spec::{Cells, Spec};

const MARGIN: usize = 12;
const PAPER: [u8; 3] = [18, 18, 24];
const FRAME: [u8; 3] = [96, 96, 112];
/// The longest side of a panel, in pixels: larger grids are made smaller, small ones larger.
const PANEL: usize = 384;

/// Voxels with points behind each place of the three sides of one cloud.
#[derive(Debug, Clone)]
pub struct Preview {
    grid: Grid,
    /// Rows of y, columns of x.
    top: Vec<u32>,
    /// Rows of z, columns of x.
    front: Vec<u32>,
    /// Rows of z, columns of y.
    side: Vec<u32>,
}

impl Preview {
    /// An empty picture of a grid.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where a side of the grid has too many voxels to look at.
    pub fn new(grid: &Grid) -> Result<Preview> {
        let [depth, height, width] = grid.dims().map(|extent| extent as usize);
        let most = [height * width, depth * width, depth * height].into_iter().max().unwrap_or(0);
        if most > 1 << 28 {
            return Err(Error::Config {
                field: "preview",
                value: format!("a side of {most} voxels"),
                range: "a grid whose sides have at most 268435456",
            });
        }
        Ok(Preview {
            grid: *grid,
            top: vec![0; height * width],
            front: vec![0; depth * width],
            side: vec![0; depth * height],
        })
    }

    /// Sees one voxel with points.
    fn see(&mut self, voxel: u64) {
        let [z, y, x] = self.grid.place(voxel).map(|n| n as usize);
        let [_, height, width] = self.grid.dims().map(|extent| extent as usize);
        for (panel, place) in [
            (&mut self.top, y * width + x),
            (&mut self.front, z * width + x),
            (&mut self.side, z * height + y),
        ] {
            if let Some(count) = panel.get_mut(place) {
                *count += 1;
            }
        }
    }

    /// Sees a part of the dense result of one cloud: the first plane, from a voxel on.
    pub fn see_dense(&mut self, spec: &Spec, first: u64, bytes: &[u8]) {
        match spec.cells() {
            Cells::Bits => {
                for (index, byte) in bytes.iter().enumerate().filter(|(_, byte)| **byte != 0) {
                    let bits = (0..8).filter(|bit| byte >> bit & 1 == 1);
                    bits.for_each(|bit| self.see(first + 8 * index as u64 + bit));
                }
            }
            Cells::U8 => self.see_cells(first, bytes, 1),
            _ => self.see_cells(first, bytes, 4),
        }
    }

    fn see_cells(&mut self, first: u64, bytes: &[u8], size: usize) {
        for (index, cell) in bytes.chunks_exact(size).enumerate() {
            if cell.iter().any(|byte| *byte != 0) {
                self.see(first + index as u64);
            }
        }
    }

    /// Sees the voxels of a sparse result.
    pub fn see_filled(&mut self, filled: &Filled) {
        filled.voxels.iter().for_each(|voxel| self.see(*voxel));
    }

    /// Writes the picture as PNG.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] where the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let (width, height, pixels) = self.draw();
        let write = || -> io::Result<()> {
            let mut file = BufWriter::new(File::create(path)?);
            let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
            encoder.set_color(png::ColorType::Rgb);
            encoder.set_depth(png::BitDepth::Eight);
            let mut writer = encoder.write_header().map_err(io::Error::other)?;
            writer.write_image_data(&pixels).map_err(io::Error::other)?;
            writer.finish().map_err(io::Error::other)?;
            file.flush()
        };
        write().map_err(|error| Error::Device {
            call: "writing the preview",
            why: format!("{}: {error}", path.display()),
        })
    }

    fn draw(&self) -> (usize, usize, Vec<u8>) {
        let [depth, height, width] = self.grid.dims().map(|extent| extent as usize);
        let longest = depth.max(height).max(width);
        let panels = [
            Panel::new(&self.top, width, height, longest),
            Panel::new(&self.front, width, depth, longest),
            Panel::new(&self.side, height, depth, longest),
        ];
        let total = panels.iter().map(|panel| panel.width + MARGIN).sum::<usize>() + MARGIN;
        let tall = panels.iter().map(|panel| panel.height).max().unwrap_or(0) + 2 * MARGIN;
        let mut pixels = PAPER.repeat(total * tall);
        let mut left = MARGIN;
        for panel in &panels {
            panel.paint(&mut pixels, total, left, tall - MARGIN - panel.height);
            left += panel.width + MARGIN;
        }
        (total, tall, pixels)
    }
}

/// One side, in pixels.
struct Panel<'a> {
    counts: &'a [u32],
    columns: usize,
    rows: usize,
    width: usize,
    height: usize,
    most: u32,
}

impl Panel<'_> {
    fn new(counts: &[u32], columns: usize, rows: usize, longest: usize) -> Panel<'_> {
        let pixels = |cells: usize| {
            if longest >= PANEL {
                (cells * PANEL).div_ceil(longest)
            } else {
                cells * (PANEL / longest)
            }
        };
        let most = counts.iter().copied().max().unwrap_or(0);
        Panel {
            counts,
            columns,
            rows,
            width: pixels(columns).max(1),
            height: pixels(rows).max(1),
            most,
        }
    }

    /// The brightest of the cells under a pixel; the lowest row of cells is the lowest of pixels.
    fn count(&self, x: usize, y: usize) -> u32 {
        let range = |at: usize, pixels: usize, cells: usize| {
            let start = at * cells / pixels;
            start..((at + 1) * cells).div_ceil(pixels).max(start + 1).min(cells)
        };
        let columns = range(x, self.width, self.columns);
        let rows = range(self.height - 1 - y, self.height, self.rows);
        let cells =
            rows.flat_map(|row| columns.clone().map(move |column| row * self.columns + column));
        cells.filter_map(|cell| self.counts.get(cell)).copied().max().unwrap_or(0)
    }

    fn paint(&self, pixels: &mut [u8], total: usize, left: usize, top: usize) {
        for y in 0..self.height + 2 {
            for x in 0..self.width + 2 {
                let on_frame = x == 0 || y == 0 || x == self.width + 1 || y == self.height + 1;
                let colour =
                    if on_frame { FRAME } else { shade(self.count(x - 1, y - 1), self.most) };
                let place = ((top + y - 1) * total + left + x - 1) * 3;
                if let Some(pixel) = pixels.get_mut(place..place + 3) {
                    pixel.copy_from_slice(&colour);
                }
            }
        }
    }
}

/// From dark over blue and green to yellow, by the logarithm.
fn shade(count: u32, most: u32) -> [u8; 3] {
    const STOPS: [[f32; 3]; 4] =
        [[59.0, 82.0, 139.0], [33.0, 145.0, 140.0], [94.0, 201.0, 98.0], [253.0, 231.0, 37.0]];
    if count == 0 {
        return PAPER;
    }
    let level = if most > 1 { (count as f32).ln() / (most as f32).ln() } else { 1.0 };
    let place = level.clamp(0.0, 1.0) * (STOPS.len() - 1) as f32;
    let below = (place as usize).min(STOPS.len() - 2);
    let part = place - below as f32;
    std::array::from_fn(|i| {
        (STOPS[below][i] * (1.0 - part) + STOPS[below + 1][i] * part).round() as u8
    })
}
