//! One side of a grid, in pixels.

use super::canvas::{PAPER, PreviewCanvas};

const FRAME: [u8; 3] = [96, 96, 112];
/// The longest side of a panel, in pixels: larger grids are made smaller, small ones larger.
const LONGEST: usize = 384;
/// The shortest: a grid of one layer is still seen.
const SHORTEST: usize = 6;
/// A side is at least this part of its other side: a flat cloud would else be a strip, in which
/// nothing can be told apart.
const LEAST_PART: usize = 4;
/// Where no more places than this have anything behind them, they are drawn in large dots.
const FEW: usize = 200;
/// The width of such a dot, in pixels.
const DOT: usize = 5;

pub(super) struct Panel<'a> {
    counts: &'a [u32],
    columns: usize,
    rows: usize,
    pub(super) width: usize,
    pub(super) height: usize,
    /// Of the places that have any.
    least: u32,
    most: u32,
    /// Pixels that a place is drawn beyond its own.
    wider: usize,
    /// How many times longer than to scale its short side is drawn, where it is.
    pub(super) stretched: Option<f64>,
}

impl Panel<'_> {
    pub(super) fn new(counts: &[u32], columns: usize, rows: usize, longest: usize) -> Panel<'_> {
        let pixels = |cells: usize| {
            let pixels = match LONGEST / longest {
                0 => (cells * LONGEST).div_ceil(longest),
                times => cells * times,
            };
            pixels.max(SHORTEST)
        };
        let filled = || counts.iter().copied().filter(|count| *count > 0);
        let wide = LONGEST / longest;
        let wider =
            if filled().take(FEW + 1).count() <= FEW { DOT.saturating_sub(wide) / 2 } else { 0 };
        let (to_scale_x, to_scale_y) = (pixels(columns), pixels(rows));
        let width = to_scale_x.max(to_scale_y / LEAST_PART);
        let height = to_scale_y.max(to_scale_x / LEAST_PART);
        let longer = (width as f64 / to_scale_x as f64).max(height as f64 / to_scale_y as f64);
        Panel {
            counts,
            columns,
            rows,
            width,
            height,
            stretched: (longer > 1.0).then_some(longer),
            least: filled().min().unwrap_or(0),
            most: filled().max().unwrap_or(0),
            wider,
        }
    }

    /// The least and the most voxels behind a place that has any.
    pub(super) fn range(&self) -> String {
        match (self.least, self.most) {
            (_, 0) => "empty".to_string(),
            (least, most) if least == most => least.to_string(),
            (least, most) => format!("{least}-{most}"),
        }
    }

    /// The most behind a pixel, and its neighbours where dots are large; the lowest row of
    /// places is the lowest of pixels.
    fn count(&self, x: usize, y: usize) -> u32 {
        let range = |at: usize, pixels: usize, cells: usize| {
            let start = at.saturating_sub(self.wider) * cells / pixels;
            let end = ((at + self.wider + 1) * cells).div_ceil(pixels);
            start..end.max(start + 1).min(cells)
        };
        let columns = range(x, self.width, self.columns);
        let rows = range(self.height - 1 - y, self.height, self.rows);
        let cells =
            rows.flat_map(|row| columns.clone().map(move |column| row * self.columns + column));
        cells.filter_map(|cell| self.counts.get(cell)).copied().max().unwrap_or(0)
    }

    pub(super) fn paint(&self, canvas: &mut PreviewCanvas, left: usize, top: usize) {
        for y in 0..self.height + 2 {
            for x in 0..self.width + 2 {
                let on_frame = x == 0 || y == 0 || x == self.width + 1 || y == self.height + 1;
                let colour = if on_frame { FRAME } else { self.colour(x - 1, y - 1) };
                canvas.set(left + x - 1, top + y - 1, colour);
            }
        }
    }

    /// By the logarithm, from the least to the most.
    fn colour(&self, x: usize, y: usize) -> [u8; 3] {
        let count = self.count(x, y);
        let log = |count: u32| (count.max(1) as f32).ln();
        let span = log(self.most) - log(self.least);
        match count {
            0 => PAPER,
            _ if span == 0.0 => shade(1.0),
            _ => shade((log(count) - log(self.least)) / span),
        }
    }
}

/// From blue over green to yellow.
pub(super) fn shade(level: f32) -> [u8; 3] {
    const STOPS: [[f32; 3]; 4] =
        [[59.0, 82.0, 139.0], [33.0, 145.0, 140.0], [94.0, 201.0, 98.0], [253.0, 231.0, 37.0]];
    let place = level.clamp(0.0, 1.0) * (STOPS.len() - 1) as f32;
    let below = (place as usize).min(STOPS.len() - 2);
    let part = place - below as f32;
    std::array::from_fn(|i| {
        (STOPS[below][i] * (1.0 - part) + STOPS[below + 1][i] * part).round() as u8
    })
}
