//! The objects: what part of an object a point belongs to, and how it is put on a canvas.
//!
//! A shape is a function from a point of its own square (−1 to 1 both ways) to the number of
//! a part, or nothing. It is drawn by asking for every pixel under it, so that the truth box
//! is exact: it is the extent of the pixels that were drawn.

use super::canvas::{Area, Canvas, Ink};
use super::rng::sine_cosine;

/// How many parts a shape has at most, and so how many inks it wants.
pub(super) const PARTS: usize = 6;

/// What an object is. The order is that of the classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SceneShape {
    /// Head, trunk, arms and legs; the parts are skin, hair, shirt, trousers, shoes.
    Person,
    /// Body, windows, wheels and lamps, seen from the side; the parts are body, glass, tyre,
    /// hub, front lamp, rear lamp.
    Car,
    /// A plate with a border and a bar; the parts are plate, border, bar.
    Sign,
}

impl SceneShape {
    /// In the order of the classes.
    pub(super) const ALL: [SceneShape; 3] = [SceneShape::Person, SceneShape::Car, SceneShape::Sign];
}

/// An object and how it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pose {
    pub(super) shape: SceneShape,
    /// Which of the shape's variants, from 0 to 1: the stride of a person, the roof of a
    /// car, the outline of a sign.
    pub(super) variant: f32,
    /// The middle.
    pub(super) centre: (f32, f32),
    /// Half of its width and height before it is turned.
    pub(super) half: (f32, f32),
    /// Radians clockwise.
    pub(super) angle: f32,
    /// Whether left and right are swapped.
    pub(super) mirrored: bool,
}

impl Pose {
    /// A box around all of it, turned as it is; never too small.
    pub(super) fn bounds(&self) -> [f32; 4] {
        let (sine, cosine) = sine_cosine(self.angle);
        let across = self.half.0 * cosine.abs() + self.half.1 * sine.abs();
        let down = self.half.0 * sine.abs() + self.half.1 * cosine.abs();
        let (x, y) = self.centre;
        [x - across, y - down, x + across, y + down]
    }

    fn part(&self, u: f32, v: f32) -> Option<usize> {
        match self.shape {
            SceneShape::Person => person(u, v, self.variant),
            SceneShape::Car => car(u, v, self.variant),
            SceneShape::Sign => sign(u, v, self.variant),
        }
    }

    /// Draws the object in its inks, darker by `shade` of 256 towards its foot, and says
    /// which pixels it reached.
    pub(super) fn draw<I: Ink>(
        &self,
        canvas: &mut Canvas<I>,
        inks: &[I; PARTS],
        shade: (I, u32),
    ) -> Option<Area> {
        let bounds = self.bounds();
        let area =
            canvas.clip([bounds[0] - 1.0, bounds[1] - 1.0, bounds[2] + 1.0, bounds[3] + 1.0])?;
        let [left, top, right, bottom] = area;
        let (sine, cosine) = sine_cosine(self.angle);
        let sign = if self.mirrored { -1.0 } else { 1.0 };
        let (du, dv) = (sign * cosine / self.half.0, -sine / self.half.1);
        let mut reached: Option<Area> = None;
        for y in top..bottom {
            let dark = (y - top) as u32 * shade.1 / (bottom - top) as u32;
            let inks = inks.map(|ink| ink.mix(shade.0, dark));
            let down = y as f32 + 0.5 - self.centre.1;
            let from = left as f32 + 0.5 - self.centre.0;
            let u0 = sign * (from * cosine + down * sine) / self.half.0;
            let v0 = (down * cosine - from * sine) / self.half.1;
            for (i, pixel) in canvas.row(y)[left..right].iter_mut().enumerate() {
                let (u, v) = (u0 + du * i as f32, v0 + dv * i as f32);
                if let Some(part) = self.part(u, v) {
                    *pixel = inks[part];
                    reached = Some(grow(reached, left + i, y));
                }
            }
        }
        reached
    }
}

fn grow(area: Option<Area>, x: usize, y: usize) -> Area {
    match area {
        None => [x, y, x + 1, y + 1],
        Some([left, top, right, bottom]) => {
            [left.min(x), top.min(y), right.max(x + 1), bottom.max(y + 1)]
        }
    }
}

fn person(u: f32, v: f32, stride: f32) -> Option<usize> {
    let side = u.abs();
    if v < -0.62 {
        let (a, b) = (u / 0.45, (v + 0.81) / 0.19);
        return (a * a + b * b < 1.0).then_some(usize::from(v < -0.87));
    }
    if v < 0.12 {
        let trunk = side < 0.58 - 0.1 * (v + 0.62);
        let arm = (0.66 + 0.1 * stride..0.98).contains(&side) && v > -0.58;
        let shoulder = side < 0.98 && v < -0.48;
        return (trunk || arm || shoulder).then_some(2);
    }
    if v < 0.26 && (0.68 + 0.1 * stride..0.96).contains(&side) {
        return Some(0);
    }
    let spread = 0.06 + 0.38 * stride * (v - 0.12);
    if v < 0.92 {
        return (spread..spread + 0.48).contains(&side).then_some(3);
    }
    (v < 1.0 && (spread - 0.03..spread + 0.58).contains(&side)).then_some(4)
}

fn car(u: f32, v: f32, roof: f32) -> Option<usize> {
    for axle in [-0.58, 0.58] {
        let (a, b) = ((u - axle) / 0.2, (v - 0.58) / 0.42);
        let reach = a * a + b * b;
        if reach < 1.0 {
            return Some(if reach < 0.25 { 3 } else { 2 });
        }
    }
    if !(-1.0..=0.7).contains(&v) || u.abs() > 1.0 {
        return None;
    }
    if v < -0.12 {
        let reach = 0.4 + 0.15 * roof + 0.28 * (v + 1.0);
        let off = (u + 0.08).abs();
        if off > reach {
            return None;
        }
        let glass = v > -0.85 && v < -0.2 && off < reach - 0.1 && off > 0.05;
        return Some(usize::from(glass));
    }
    if v < 0.2 && u > 0.9 {
        return Some(4);
    }
    if v < 0.2 && u < -0.92 {
        return Some(5);
    }
    Some(0)
}

fn sign(u: f32, v: f32, outline: f32) -> Option<usize> {
    let inside = |u: f32, v: f32| {
        if outline < 0.34 {
            u * u + v * v < 1.0
        } else if outline < 0.67 {
            u.abs() + v.abs() < 1.0
        } else {
            v < 1.0 && u.abs() * 2.0 < v + 1.0
        }
    };
    if !inside(u, v) {
        return None;
    }
    // A triangle's middle is below that of its square.
    let low = if outline < 0.67 { 0.0 } else { 0.34 };
    if !inside(u / 0.68, (v - low) / 0.68 + low) {
        return Some(1);
    }
    Some(if u.abs() < 0.38 && (v - low).abs() < 0.16 { 2 } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pose(shape: SceneShape) -> Pose {
        let centre = (50.0, 40.0);
        Pose { shape, variant: 0.1, centre, half: (20.0, 30.0), angle: 0.0, mirrored: false }
    }

    #[test]
    fn the_truth_is_the_extent_of_what_was_drawn() {
        for shape in SceneShape::ALL {
            for angle in [0.0, 0.2] {
                let mut canvas: Canvas<u16> = Canvas::new(100, 80);
                let pose = Pose { angle, ..pose(shape) };
                let area = pose.draw(&mut canvas, &[9; PARTS], (9, 0));
                let reached = (0..100 * 80).filter(|&i| canvas.pixels[i] == 9);
                let extent = reached.fold(None, |area, i| {
                    let [left, top, right, bottom] = area.unwrap_or([100, 80, 0, 0]);
                    let (x, y) = (i % 100, i / 100);
                    Some([left.min(x), top.min(y), right.max(x + 1), bottom.max(y + 1)])
                });
                assert!(extent.is_some());
                assert_eq!(area, extent, "{shape:?}");
            }
        }
    }

    #[test]
    fn what_lies_outside_is_cut_off_or_absent() {
        let mut canvas: Canvas<u16> = Canvas::new(55, 80);
        let area = pose(SceneShape::Car).draw(&mut canvas, &[9; PARTS], (9, 0));
        assert_eq!(area.map(|a| a[2]), Some(55));
        let mut far: Canvas<u16> = Canvas::new(20, 5);
        assert_eq!(pose(SceneShape::Car).draw(&mut far, &[9; PARTS], (9, 0)), None);
    }
}
