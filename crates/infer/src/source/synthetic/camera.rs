//! The two pretend cameras: what inks things have for each, and what the sensor adds.

use super::canvas::{Canvas, Colour, Heat, Ink};
use super::rng::Rng;
use super::shape::{PARTS, SceneShape};
use crate::source::Pixels;

/// The most that noise can be before it is scaled: the table holds ±127.
const NOISE: usize = 1 << 14;

/// A kind of camera: the inks it sees and the faults it has.
pub(super) trait Camera: Send {
    type Ink: Ink;
    /// Sets its numbers apart from those of the scene.
    const SEED: u64;

    /// Chooses what holds for a whole frame: weather, time of day.
    fn begin(rng: &mut Rng) -> Self;
    /// An ink for the background.
    fn ground(&self, rng: &mut Rng) -> Self::Ink;
    /// Inks for an object in front of `behind`.
    fn inks(&self, shape: SceneShape, behind: Self::Ink, rng: &mut Rng) -> [Self::Ink; PARTS];
    /// The ink towards which an object darkens at its foot, and how much of 256.
    fn shade(&self, rng: &mut Rng) -> (Self::Ink, u32);
    /// What light and sensor do to the whole frame.
    fn finish(&self, canvas: &mut Canvas<Self::Ink>, noise: &Noise, rng: &mut Rng);
    /// The canvas as a frame's pixels.
    fn pixels(canvas: &Canvas<Self::Ink>) -> Pixels;
}

/// Random numbers made once, from which each row takes a run at a random place.
#[derive(Debug)]
pub(super) struct Noise(Vec<i8>);

impl Noise {
    /// A table long enough for rows of `width` pixels.
    pub(super) fn new(width: usize) -> Noise {
        let mut rng = Rng::new(0x6e6f_6973, 0);
        let bell = |bits: u64| (0..4).map(|i| (bits >> (8 * i) & 63) as i32).sum::<i32>() - 126;
        Noise((0..NOISE + 3 * width).map(|_| bell(rng.bits()) as i8).collect())
    }

    fn run(&self, length: usize, rng: &mut Rng) -> &[i8] {
        let start = rng.index(NOISE);
        &self.0[start..start + length]
    }
}

/// A colour camera.
#[derive(Debug)]
pub(super) struct Daylight {
    /// The mean brightness of the background.
    level: f32,
}

impl Daylight {
    fn vivid(rng: &mut Rng) -> Colour {
        let mut colour = [0, 0, 0].map(|_: u8| rng.whole(10, 245) as u8);
        colour[rng.index(3)] = if rng.chance(0.5) { 240 } else { 12 };
        colour
    }
}

impl Camera for Daylight {
    type Ink = Colour;
    const SEED: u64 = 0x7267_6200;

    fn begin(rng: &mut Rng) -> Daylight {
        Daylight { level: rng.between(60.0, 190.0) }
    }

    fn ground(&self, rng: &mut Rng) -> Colour {
        let grey = self.level + rng.between(-45.0, 45.0);
        [0, 0, 0].map(|_: u8| (grey + rng.between(-22.0, 22.0)).clamp(0.0, 255.0) as u8)
    }

    fn inks(&self, shape: SceneShape, behind: Colour, rng: &mut Rng) -> [Colour; PARTS] {
        let mut main = Daylight::vivid(rng);
        for _ in 0..8 {
            if main.distance(behind) > 80 {
                break;
            }
            main = Daylight::vivid(rng);
        }
        let dark = [0, 0, 0].map(|_: u8| rng.whole(5, 45) as u8);
        let light = [0, 0, 0].map(|_: u8| rng.whole(205, 250) as u8);
        match shape {
            SceneShape::Person => {
                let brown = rng.whole(60, 225);
                let skin = [brown, brown * 3 / 4, brown * 3 / 5].map(|c| c as u8);
                let trousers = if rng.chance(0.5) { dark } else { Daylight::vivid(rng) };
                [skin, dark.mix(skin, 60), main, trousers, dark, dark]
            }
            SceneShape::Car => {
                let glass = [70, 90, 110].map(|c| (c + rng.whole(-30, 60)) as u8);
                [main, glass, dark, light.mix(dark, 90), [250, 235, 160], [220, 25, 20]]
            }
            SceneShape::Sign => {
                let plate = if main.distance(light) > 90 { light } else { dark };
                let bar = if plate == light { dark } else { light };
                [plate, main, bar, bar, bar, bar]
            }
        }
    }

    fn shade(&self, rng: &mut Rng) -> (Colour, u32) {
        ([0, 0, 0], rng.whole(0, 90) as u32)
    }

    fn finish(&self, canvas: &mut Canvas<Colour>, noise: &Noise, rng: &mut Rng) {
        let strength = rng.whole(0, 12) as i16;
        let (top, bottom) = (rng.between(190.0, 300.0), rng.between(190.0, 300.0));
        let height = canvas.height as f32;
        for y in 0..canvas.height {
            let gain = (top + (bottom - top) * y as f32 / height) as u16;
            let row = canvas.row(y).as_flattened_mut();
            let grain = noise.run(row.len(), rng);
            for (value, grain) in row.iter_mut().zip(grain) {
                let lit = ((u16::from(*value) * (gain >> 1)) >> 7) as i16;
                *value = (lit + ((i16::from(*grain) * strength) >> 6)).clamp(0, 255) as u8;
            }
        }
    }

    fn pixels(canvas: &Canvas<Colour>) -> Pixels {
        Pixels::Rgb8(canvas.pixels.as_flattened().to_vec())
    }
}

/// A thermal camera: hundredths of a kelvin, warm things on a cool ground.
#[derive(Debug)]
pub(super) struct Thermal {
    /// The temperature of the ground.
    ambient: f32,
}

impl Camera for Thermal {
    type Ink = Heat;
    const SEED: u64 = 0x6865_6174;

    fn begin(rng: &mut Rng) -> Thermal {
        Thermal { ambient: rng.between(27_500.0, 29_300.0) }
    }

    fn ground(&self, rng: &mut Rng) -> Heat {
        (self.ambient + rng.between(-150.0, 150.0)) as u16
    }

    fn inks(&self, shape: SceneShape, behind: Heat, rng: &mut Rng) -> [Heat; PARTS] {
        let at = |kelvin: f32| (f32::from(behind) + kelvin * 100.0) as u16;
        let warm = rng.between(4.0, 9.0);
        let mut by = |low: f32, high: f32| at(warm * rng.between(low, high));
        match shape {
            // Skin is warmest, hair and clothes keep the warmth in.
            SceneShape::Person => {
                [by(1.3, 1.6), by(0.9, 1.1), by(0.8, 1.0), by(0.7, 0.9), by(0.5, 0.7), 0]
            }
            // Tyres and lamps are warm, glass shows the cold sky.
            SceneShape::Car => {
                [by(0.6, 0.9), by(0.1, 0.3), by(1.1, 1.5), by(0.7, 0.9), by(1.2, 1.5), by(1.0, 1.3)]
            }
            // The sun on a plate: the painted border takes more of it.
            SceneShape::Sign => [by(0.4, 0.6), by(1.1, 1.4), by(1.0, 1.4), 0, 0, 0],
        }
    }

    fn shade(&self, rng: &mut Rng) -> (Heat, u32) {
        (self.ambient as u16, rng.whole(0, 50) as u32)
    }

    fn finish(&self, canvas: &mut Canvas<Heat>, noise: &Noise, rng: &mut Rng) {
        let strength = rng.whole(4, 30);
        let columns: Vec<i32> =
            noise.run(canvas.width, rng).iter().map(|&n| (i32::from(n) * 12) >> 6).collect();
        for y in 0..canvas.height {
            let grain = noise.run(canvas.width, rng);
            for (x, value) in canvas.row(y).iter_mut().enumerate() {
                let off = columns[x] + ((i32::from(grain[x]) * strength) >> 6);
                *value = (i32::from(*value) + off).clamp(0, 65_535) as u16;
            }
        }
        for _ in 0..rng.whole(0, 10) {
            let place = rng.index(canvas.pixels.len());
            canvas.pixels[place] = [0, u16::MAX, 33_000][rng.index(3)];
        }
    }

    fn pixels(canvas: &Canvas<Heat>) -> Pixels {
        Pixels::Grey16(canvas.pixels.clone())
    }
}
