//! A picture of a grid from three sides.
//!
//! Each side is a sheet of glass through which one looks along an axis: the more voxels with
//! points behind a place, the brighter it is, on a scale that shows one as well as a hundred.
//! Top, front and side stand beside each other, x to the right on the first two, z upwards on
//! the last two. A side that would be a strip, as those of a flat LiDAR cloud, is stretched, and the
//! picture says by how much. Below are the numbers that a picture needs to be read: how many voxels the
//! darkest and the brightest places of each side have behind them, and where each axis begins
//! and ends. A cloud of few points is drawn in large dots, and one of none says so.
//!
//! Of means and maxima the first feature is looked at: a voxel where that is 0 looks empty.

mod canvas;
mod panel;

use std::path::{Path, PathBuf};

use plimsoll_memory::{Error, Result};

use self::canvas::{LETTER, LINE, PreviewCanvas};
use self::panel::{Panel, shade};
use crate::backend::Filled;
use crate::grid::VoxelGrid;
use crate::spec::{Cells, VoxelSpec};
use crate::write::{Partial, failed};

const MARGIN: usize = 12;
const INK: [u8; 3] = [176, 176, 188];
/// The least room of a side: what stands below it is as wide.
const SLOT: usize = 18 * LETTER;
/// The length of the scale of colours.
const SCALE: usize = 12 * LETTER;

/// Voxels with points behind each place of the three sides of one cloud.
#[derive(Debug)]
pub struct Preview {
    path: PathBuf,
    file: Partial,
    grid: VoxelGrid,
    /// Rows of y, columns of x.
    top: Vec<u32>,
    /// Rows of z, columns of x.
    front: Vec<u32>,
    /// Rows of z, columns of y.
    side: Vec<u32>,
}

impl Preview {
    /// An empty picture of a grid, to be written to this file.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] where the name does not end in `.png`, a side of the grid has too many
    /// voxels to look at or there is no such folder, [`Error::Device`] where nothing can be written to it.
    pub fn create(path: &Path, grid: &VoxelGrid) -> Result<Preview> {
        if path.extension().is_none_or(|ending| !ending.eq_ignore_ascii_case("png")) {
            return Err(Error::Config {
                field: "preview",
                value: path.display().to_string(),
                range: "a name that ends in .png",
            });
        }
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
            path: path.to_path_buf(),
            file: Partial::create(path, "preview")?,
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
    pub fn see_dense(&mut self, spec: &VoxelSpec, first: u64, bytes: &[u8]) {
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

    /// Writes the picture as PNG and gives the file its name.
    ///
    /// # Errors
    ///
    /// [`Error::Device`] where that fails; nothing is left then.
    pub fn finish(mut self) -> Result<()> {
        let picture = self.draw();
        let written = picture.write(&mut self.file).and_then(|()| self.file.finish());
        written.map_err(|error| failed(&self.path, &error))
    }

    fn draw(&self) -> PreviewCanvas {
        let [depth, height, width] = self.grid.dims().map(|extent| extent as usize);
        let longest = depth.max(height).max(width);
        let sides = [
            ("top: x, y", Panel::new(&self.top, width, height, longest)),
            ("front: x, z", Panel::new(&self.front, width, depth, longest)),
            ("side: y, z", Panel::new(&self.side, height, depth, longest)),
        ];
        let slot = |panel: &Panel<'_>| panel.width.max(SLOT) + MARGIN;
        let wide = sides.iter().map(|(_, panel)| slot(panel)).sum::<usize>() + MARGIN;
        let floor = sides.iter().map(|(_, panel)| panel.height).max().unwrap_or(0) + MARGIN;
        let mut canvas = PreviewCanvas::new(wide, floor + MARGIN + 8 * LINE);
        let mut left = MARGIN;
        for (name, panel) in &sides {
            panel.paint(&mut canvas, left, floor - panel.height);
            canvas.write_text(left, floor + LINE, &format!("{name} ({})", panel.range()), INK);
            left += slot(panel);
        }
        self.legend(&mut canvas, floor + 3 * LINE);
        let stretched = sides.iter().filter_map(|(name, panel)| {
            let name = name.split(':').next().unwrap_or(name);
            Some(format!("{name} {:.1} times", panel.stretched?))
        });
        let stretched: Vec<String> = stretched.collect();
        if !stretched.is_empty() {
            let line = format!("stretched to be seen: {}", stretched.join(", "));
            canvas.write_text(MARGIN, floor + 7 * LINE, &line, INK);
        }
        canvas
    }

    /// The scale of colours, and what each axis spans.
    fn legend(&self, canvas: &mut PreviewCanvas, mut y: usize) {
        if self.top.iter().all(|count| *count == 0) {
            canvas.write_text(MARGIN, y, "no voxel has points in it", INK);
        } else {
            for x in 0..SCALE {
                let colour = shade(x as f32 / (SCALE - 1) as f32);
                (0..LETTER).for_each(|row| canvas.set(MARGIN + x, y + row, colour));
            }
            let meaning = "voxels behind a place, least to most";
            canvas.write_text(MARGIN + SCALE + LETTER, y, meaning, INK);
        }
        let (dims, size, origin) = (self.grid.dims(), self.grid.size(), self.grid.origin());
        for (axis, name) in ["x", "y", "z"].into_iter().enumerate() {
            // Sizes and origin are by x, y, z; extents by depth, height, width.
            let voxels = dims[2 - axis];
            let from = f64::from(origin[axis]);
            let to = from + f64::from(voxels) * f64::from(size[axis]);
            y += LINE;
            let each = if voxels == 1 { "voxel" } else { "voxels" };
            let line = format!("{name} from {} to {}: {voxels} {each}", short(from), short(to));
            canvas.write_text(MARGIN, y, &line, INK);
        }
    }
}

/// Six digits of a number, which is what an f32 has.
fn short(number: f64) -> String {
    let digits = 5 - number.abs().max(1e-30).log10().floor() as i32;
    let unit = 10f64.powi(digits.clamp(-30, 30));
    format!("{}", (number * unit).round() / unit)
}

#[cfg(test)]
mod tests;
