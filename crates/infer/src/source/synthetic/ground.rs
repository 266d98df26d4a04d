//! What is behind the objects: families of backgrounds.
//!
//! A detector that has seen four of them must also work on the other two: that is how the
//! tests tell learning from remembering.

use super::canvas::{Canvas, Ink};
use super::rng::Rng;

/// A family of backgrounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Background {
    /// A smooth change from corner to corner.
    Gradient,
    /// Slanted stripes, sharp or soft.
    Stripes,
    /// Soft blotches.
    Mottle,
    /// A gradient with rectangles, ellipses and bars on it.
    Clutter,
    /// Sky above ground, with blocks along the horizon.
    Horizon,
    /// Bricks with joints.
    Tiles,
}

impl Background {
    /// All of them.
    pub const ALL: [Background; 6] = [
        Background::Gradient,
        Background::Stripes,
        Background::Mottle,
        Background::Clutter,
        Background::Horizon,
        Background::Tiles,
    ];

    /// As users name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Background::Gradient => "gradient",
            Background::Stripes => "stripes",
            Background::Mottle => "mottle",
            Background::Clutter => "clutter",
            Background::Horizon => "horizon",
            Background::Tiles => "tiles",
        }
    }
}

/// Draws a background; `ink` makes one of its colours at a time.
pub(super) fn draw<I: Ink>(
    canvas: &mut Canvas<I>,
    family: Background,
    rng: &mut Rng,
    ink: &dyn Fn(&mut Rng) -> I,
) {
    let all = [0.0, 0.0, canvas.width as f32, canvas.height as f32];
    match family {
        Background::Gradient => gradient(canvas, all, rng, ink),
        Background::Stripes => stripes(canvas, rng, ink),
        Background::Mottle => mottle(canvas, rng, ink),
        Background::Clutter => clutter(canvas, rng, ink),
        Background::Horizon => horizon(canvas, rng, ink),
        Background::Tiles => tiles(canvas, rng, ink),
    }
}

fn gradient<I: Ink>(
    canvas: &mut Canvas<I>,
    bounds: [f32; 4],
    rng: &mut Rng,
    ink: &dyn Fn(&mut Rng) -> I,
) {
    let corners = [ink(rng), ink(rng), ink(rng), ink(rng)];
    let Some([left, top, right, bottom]) = canvas.clip(bounds) else { return };
    let (across, down) = ((right - left) as u32, (bottom - top) as u32);
    let step = (256 << 16) / across;
    for y in top..bottom {
        let part = (y - top) as u32 * 256 / down;
        let (start, end) = (corners[0].mix(corners[1], part), corners[2].mix(corners[3], part));
        let mut along = 0;
        for pixel in &mut canvas.row(y)[left..right] {
            *pixel = start.mix(end, along >> 16);
            along += step;
        }
    }
}

fn stripes<I: Ink>(canvas: &mut Canvas<I>, rng: &mut Rng, ink: &dyn Fn(&mut Rng) -> I) {
    let (one, two) = (ink(rng), ink(rng));
    let sharp = rng.whole(1, 8);
    let table: Vec<I> = (0..256)
        .map(|i: i32| one.mix(two, (128 + ((i - 128).abs() - 64) * 2 * sharp).clamp(0, 256) as u32))
        .collect();
    // A turn of the phase is 2³²: it wraps by itself.
    let period = rng.between(0.03, 0.3) * canvas.width as f32;
    let slant = rng.between(-1.0, 1.0);
    let flip = rng.chance(0.5);
    let long = (4_294_967_296.0 / f64::from(period)) as i64;
    let short = (f64::from(slant) * long as f64) as i64;
    let (dx, dy) = if flip { (long, short) } else { (short, long) };
    for y in 0..canvas.height {
        let mut phase = (dy * y as i64) as u32;
        for pixel in canvas.row(y) {
            *pixel = table[(phase >> 24) as usize];
            phase = phase.wrapping_add(dx as u32);
        }
    }
}

fn mottle<I: Ink>(canvas: &mut Canvas<I>, rng: &mut Rng, ink: &dyn Fn(&mut Rng) -> I) {
    let cell = ((rng.between(0.04, 0.16) * canvas.width as f32) as usize).max(4);
    let (columns, rows) = (canvas.width / cell + 2, canvas.height / cell + 2);
    let (one, two) = (ink(rng), ink(rng));
    let grid: Vec<I> =
        (0..columns * rows).map(|_| one.mix(two, rng.whole(0, 256) as u32)).collect();
    let mut knots = vec![I::default(); columns];
    for y in 0..canvas.height {
        let (above, part) = (y / cell * columns, (y % cell * 256 / cell) as u32);
        for (x, knot) in knots.iter_mut().enumerate() {
            *knot = grid[above + x].mix(grid[above + columns + x], part);
        }
        for (x, run) in canvas.row(y).chunks_mut(cell).enumerate() {
            let (start, end) = (knots[x], knots[x + 1]);
            for (i, pixel) in run.iter_mut().enumerate() {
                *pixel = start.mix(end, (i * 256 / cell) as u32);
            }
        }
    }
}

fn clutter<I: Ink>(canvas: &mut Canvas<I>, rng: &mut Rng, ink: &dyn Fn(&mut Rng) -> I) {
    let (width, height) = (canvas.width as f32, canvas.height as f32);
    gradient(canvas, [0.0, 0.0, width, height], rng, ink);
    for _ in 0..rng.whole(6, 20) {
        let ink = ink(rng);
        let (x, y) = (rng.between(-0.1, 1.0) * width, rng.between(-0.1, 1.0) * height);
        let (w, h) = (rng.between(0.02, 0.25) * width, rng.between(0.02, 0.25) * width);
        match rng.whole(0, 3) {
            0 => canvas.rectangle([x, y, x + w, y + h], ink),
            1 => canvas.ellipse([x, y, x + w, y + h], ink),
            2 => canvas.rectangle([x, y, x + w * 3.0, y + h * 0.1 + 2.0], ink),
            _ => canvas.rectangle([x, y, x + w * 0.1 + 2.0, y + h * 3.0], ink),
        }
    }
}

fn horizon<I: Ink>(canvas: &mut Canvas<I>, rng: &mut Rng, ink: &dyn Fn(&mut Rng) -> I) {
    let (width, height) = (canvas.width as f32, canvas.height as f32);
    let line = rng.between(0.3, 0.6) * height;
    gradient(canvas, [0.0, 0.0, width, line], rng, ink);
    gradient(canvas, [0.0, line.floor(), width, height], rng, ink);
    for _ in 0..rng.whole(2, 8) {
        let (x, w) = (rng.between(-0.1, 1.0) * width, rng.between(0.05, 0.25) * width);
        let top = line - rng.between(0.05, 0.3) * height;
        let ink = ink(rng);
        canvas.rectangle([x, top, x + w, line], ink);
    }
}

fn tiles<I: Ink>(canvas: &mut Canvas<I>, rng: &mut Rng, ink: &dyn Fn(&mut Rng) -> I) {
    let (one, two, joint) = (ink(rng), ink(rng), ink(rng));
    let tall = rng.between(0.03, 0.12) * canvas.width as f32;
    let wide = tall * rng.between(1.0, 3.0);
    let gap = rng.between(1.0, 3.0);
    let all = [0.0, 0.0, canvas.width as f32, canvas.height as f32];
    canvas.rectangle(all, joint);
    let mut y = 0.0;
    let mut odd = false;
    while y < all[3] {
        let mut x = if odd { -wide / 2.0 } else { 0.0 };
        while x < all[2] {
            let tile = one.mix(two, rng.whole(0, 256) as u32);
            canvas.rectangle([x, y, x + wide - gap, y + tall - gap], tile);
            x += wide;
        }
        y += tall;
        odd = !odd;
    }
}
