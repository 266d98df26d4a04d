//! Polygons to masks, pixel for pixel as COCO's tools draw them.
//!
//! They move the corners to a grid five times as fine, walk along each edge one step of the grid
//! at a time, and keep where the walk passes the middle of a column of pixels. Only these
//! crossings matter, so they are computed here directly, with the same arithmetic: a mask is
//! inside between the first and the second crossing of a column, the third and the fourth, and
//! so on.

use super::PixelRuns;

/// How much finer the grid is.
const FINE: f64 = 5.0;

/// The most crossings of columns by the edges of one polygon; one that is drawn by people has some
/// thousands.
pub const MOST_CROSSINGS: u64 = 1 << 24;

/// The edge from one corner to the next, on the fine grid.
struct FineEdge {
    from: (i64, i64),
    to: (i64, i64),
}

/// Edges of a polygon of alternating x and y.
fn edges(points: &[f64]) -> impl Iterator<Item = FineEdge> + '_ {
    // Casts cut towards zero, as in C; a coordinate beyond 32 bits ends there.
    let fine = |at: usize| i64::from((FINE * points[at] + 0.5) as i32);
    let corners = points.len() / 2;
    let corner = move |at: usize| (fine(2 * at), fine(2 * at + 1));
    (0..corners).map(move |at| FineEdge { from: corner(at), to: corner((at + 1) % corners) })
}

/// At most how often the edges of a polygon cross columns of an image, without drawing it.
#[must_use]
pub fn crossings(points: &[f64], columns: u32) -> u64 {
    let wide = i64::from(columns) * FINE as i64;
    let inside = |x: i64| x.clamp(0, wide);
    edges(points).map(|edge| inside(edge.from.0).abs_diff(inside(edge.to.0)) / 5 + 1).sum()
}

impl PixelRuns {
    /// The pixels inside a polygon of alternating x and y; `size` is rows and columns.
    #[must_use]
    pub fn from_polygon(size: (u32, u32), points: &[f64]) -> PixelRuns {
        let (rows, columns) = size;
        let mut places = Vec::new();
        for edge in edges(points) {
            edge.cross(rows, columns, &mut places);
        }
        places.sort_unstable();
        if places.len() % 2 == 1 {
            places.push(rows * columns);
        }
        let pairs = places.chunks_exact(2).map(|pair| (pair[0], pair[1]));
        PixelRuns::from_ordered(size, pairs)
    }
}

impl FineEdge {
    /// Adds the places at which the edge crosses the middle of columns.
    fn cross(&self, rows: u32, columns: u32, places: &mut Vec<u32>) {
        let (wide, tall) = (self.from.0.abs_diff(self.to.0), self.from.1.abs_diff(self.to.1));
        let (wide, tall) = (wide as i64, tall as i64);
        let flat = wide >= tall;
        let swap = if flat { self.from.0 > self.to.0 } else { self.from.1 > self.to.1 };
        let (from, to) = if swap { (self.to, self.from) } else { (self.from, self.to) };
        // A column is crossed between the steps 5 x + 2 and 5 x + 3 of the grid.
        let (low, high) = (from.0.min(to.0), from.0.max(to.0));
        let first = (low - 2).div_euclid(5) + i64::from((low - 2).rem_euclid(5) > 0);
        let last = (high - 3).div_euclid(5);
        let slope = if flat {
            (to.1 - from.1) as f64 / wide as f64
        } else {
            (to.0 - from.0) as f64 / tall as f64
        };
        for column in first.max(0)..=last.min(i64::from(columns) - 1) {
            let step = 5 * column + 2;
            let height = if flat {
                let at = |step: i64| cut(from.1 as f64 + slope * (step - from.0) as f64 + 0.5);
                at(step).min(at(step + 1))
            } else {
                from.1 + before_crossing(from.0, slope, step, tall)
            };
            places.push(column as u32 * rows + row(height, rows));
        }
    }
}

/// Along a steep edge: the last step before the walk passes from `step` to `step + 1`, or back.
fn before_crossing(start: i64, slope: f64, step: i64, length: i64) -> i64 {
    let across = |at: i64| cut(start as f64 + slope * at as f64 + 0.5);
    let passed = |at: i64| if slope > 0.0 { across(at) > step } else { across(at) <= step };
    let guess = ((step as f64 + 0.5 - start as f64) / slope) as i64;
    let mut at = guess.clamp(1, length);
    while at < length && !passed(at) {
        at += 1;
    }
    while at > 1 && passed(at - 1) {
        at -= 1;
    }
    at - 1
}

/// As C converts to an integer.
fn cut(value: f64) -> i64 {
    value as i64
}

/// The row of pixels below a height on the fine grid.
fn row(height: i64, rows: u32) -> u32 {
    let row = (height as f64 + 0.5) / FINE - 0.5;
    row.clamp(0.0, f64::from(rows)).ceil() as u32
}
