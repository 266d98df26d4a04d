//! Scenes drawn by our own code: the truth about them is known, and no file is needed.
//!
//! A frame is a function of the options, the seed and its number alone, bit for bit on every
//! machine. So a detector's precision and recall can be told without a data set, and the
//! demo's detectors are trained on the very scenes that are drawn here: on some seeds,
//! backgrounds and numbers of objects ([`SceneOptions::training`]), and judged on others
//! ([`SceneOptions::new`]).
//!
//! The two cameras look at the same scenes: which objects there are and where follows from the
//! seed and the number, whatever the camera. So what a second camera is worth can be judged.
//!
//! `ground` draws what is behind, `shape` the objects, `camera` says what either looks like
//! in colour or in heat and adds the faults of a sensor.

mod camera;
mod canvas;
pub mod demo;
mod ground;
mod rng;
mod shape;

use std::ops::RangeInclusive;
use std::time::Duration;

use self::camera::{Camera, Daylight, Noise, Thermal};
use self::canvas::Canvas;
pub use self::ground::Background;
use self::rng::Rng;
use self::shape::{Pose, SceneShape};
use super::{Frame, Source, SourceInfo, Truth};
use crate::error::InferResult;

/// The names of the classes, in their order.
pub const CLASSES: [&str; 3] = ["person", "car", "sign"];

/// What kind of camera looks at the scenes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SceneKind {
    /// Colour, 8 bits, 640 by 480.
    Rgb,
    /// Heat in hundredths of a kelvin, 16 bits, 320 by 256.
    Thermal,
}

/// What scenes are to be drawn.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SceneOptions {
    /// The camera.
    pub kind: SceneKind,
    /// The seed: another one, other scenes.
    pub seed: u64,
    /// How many objects a frame has, at most (one for which there is no room is left out).
    pub objects: RangeInclusive<u32>,
    /// The backgrounds to choose from; none means all.
    pub backgrounds: Vec<Background>,
    /// How many frames there are; `None` for no end.
    pub frames: Option<u64>,
    /// Columns of a frame.
    pub width: usize,
    /// Rows of a frame.
    pub height: usize,
    /// Frames a second, for their times.
    pub rate: f64,
}

impl SceneOptions {
    /// The scenes of the demo: backgrounds and numbers of objects that the demo's detectors
    /// have not seen.
    #[must_use]
    pub fn new(kind: SceneKind) -> SceneOptions {
        let (width, height) = match kind {
            SceneKind::Rgb => (640, 480),
            SceneKind::Thermal => (320, 256),
        };
        SceneOptions {
            kind,
            seed: 0x706c_696d,
            objects: 0..=8,
            backgrounds: vec![Background::Horizon, Background::Tiles],
            frames: None,
            width,
            height,
            rate: 30.0,
        }
    }

    /// The scenes that the demo's detectors were trained on.
    #[must_use]
    pub fn training(kind: SceneKind, seed: u64) -> SceneOptions {
        use Background::{Clutter, Gradient, Mottle, Stripes};
        let backgrounds = vec![Gradient, Stripes, Mottle, Clutter];
        SceneOptions { seed, objects: 1..=5, backgrounds, ..SceneOptions::new(kind) }
    }
}

/// Frames without a file. See the [module](self).
#[derive(Debug)]
pub struct Synthetic {
    options: SceneOptions,
    info: SourceInfo,
    noise: Noise,
    next: u64,
}

impl Synthetic {
    /// Scenes from the first on.
    #[must_use]
    pub fn new(mut options: SceneOptions) -> Synthetic {
        options.width = options.width.clamp(32, 8192);
        options.height = options.height.clamp(32, 8192);
        if options.backgrounds.is_empty() {
            options.backgrounds = Background::ALL.to_vec();
        }
        let info = SourceInfo {
            name: "synthetic".to_owned(),
            kind: "synthetic",
            frames: options.frames,
            rate: Some(options.rate),
        };
        let noise = Noise::new(options.width);
        Synthetic { options, info, noise, next: 0 }
    }

    /// Says by what name it is to be known.
    #[must_use]
    pub fn named(mut self, name: &str) -> Synthetic {
        name.clone_into(&mut self.info.name);
        self
    }

    /// The frame with this number, whatever was drawn before.
    #[must_use]
    pub fn frame(&self, number: u64) -> Frame {
        match self.options.kind {
            SceneKind::Rgb => self.draw::<Daylight>(number),
            SceneKind::Thermal => self.draw::<Thermal>(number),
        }
    }

    fn draw<C: Camera>(&self, number: u64) -> Frame {
        let options = &self.options;
        let mut rng = Rng::new(options.seed ^ C::SEED, number);
        let mut canvas = Canvas::new(options.width, options.height);
        let camera = C::begin(&mut rng);
        let family = options.backgrounds[rng.index(options.backgrounds.len())];
        ground::draw(&mut canvas, family, &mut rng, &|rng| camera.ground(rng));
        let mut truth: Vec<Truth> = Vec::new();
        for (class, pose) in self.objects(number) {
            let behind = canvas.at(pose.centre.0, pose.centre.1);
            let inks = camera.inks(pose.shape, behind, &mut rng);
            let shade = camera.shade(&mut rng);
            if let Some(area) = pose.draw(&mut canvas, &inks, shade) {
                let bounds = area.map(|edge| edge as f32);
                truth.push(Truth { bounds, class: class as u32 });
            }
        }
        camera.finish(&mut canvas, &self.noise, &mut rng);
        let timestamp =
            Duration::try_from_secs_f64(number as f64 / options.rate).unwrap_or_default();
        let size = (options.width, options.height);
        let seen = Frame::new(C::pixels(&canvas), size, timestamp, number.to_string());
        Frame { truth: Some(truth), ..seen }
    }
}

impl Synthetic {
    /// The objects of a scene with their classes, as they stand in the frame: the same for both
    /// cameras.
    fn objects(&self, number: u64) -> Vec<(usize, Pose)> {
        let options = &self.options;
        let mut rng = Rng::new(options.seed, number);
        let (width, height) = (options.width as f32, options.height as f32);
        let field = field(width, height);
        let most = rng.whole(*options.objects.start() as i32, *options.objects.end() as i32);
        let mut objects: Vec<(usize, Pose)> = Vec::new();
        for _ in 0..most {
            let class = rng.index(SceneShape::ALL.len());
            let taken: Vec<[f32; 4]> = objects.iter().map(|(_, pose)| pose.bounds()).collect();
            let pose = place(SceneShape::ALL[class], field, &taken, &mut rng);
            objects.extend(pose.map(|pose| (class, pose)));
        }
        let (across, down) = (width / field.0, height / field.1);
        for (_, pose) in &mut objects {
            pose.centre = (pose.centre.0 * across, pose.centre.1 * down);
            pose.half = (pose.half.0 * across, pose.half.1 * down);
        }
        objects
    }
}

/// What a camera sees, in pixels of the colour camera. Frames that are about as wide as 4:3 show
/// the same field, so that the thermal camera's 5:4 does; others one of their own shape.
fn field(width: f32, height: f32) -> (f32, f32) {
    let wide = width / height;
    if (1.2..1.47).contains(&wide) { (640.0, 480.0) } else { (480.0 * wide, 480.0) }
}

impl Source for Synthetic {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn next_frame(&mut self) -> Option<InferResult<Frame>> {
        if self.options.frames.is_some_and(|frames| self.next >= frames) {
            return None;
        }
        self.next += 1;
        Some(Ok(self.frame(self.next - 1)))
    }
}

/// Finds room for an object, so that no other is hidden by more than three tenths.
fn place(
    shape: SceneShape,
    (width, height): (f32, f32),
    taken: &[[f32; 4]],
    rng: &mut Rng,
) -> Option<Pose> {
    // Sizes go with the field; small ones are as many as large ones are big.
    let scale = width.min(height * 1.34);
    let size = |rng: &mut Rng, low: f32, high: f32| {
        let part = rng.unit();
        (low + (high - low) * part * part) * scale / 2.0
    };
    for _ in 0..12 {
        let (half, angle) = match shape {
            SceneShape::Person => {
                let tall = size(rng, 0.12, 0.42);
                ((tall * rng.between(0.36, 0.46), tall), rng.between(-0.12, 0.12))
            }
            SceneShape::Car => {
                let wide = size(rng, 0.13, 0.45);
                ((wide, wide * rng.between(0.38, 0.5)), rng.between(-0.12, 0.12))
            }
            SceneShape::Sign => {
                let wide = size(rng, 0.075, 0.2);
                ((wide, wide), rng.between(-0.2, 0.2))
            }
        };
        let margin = (half.0 * 0.8, half.1 * 0.8);
        let centre =
            (rng.between(margin.0, width - margin.0), rng.between(margin.1, height - margin.1));
        let (variant, mirrored) = (rng.unit(), rng.chance(0.5));
        let pose = Pose { shape, variant, centre, half, angle, mirrored };
        if taken.iter().all(|other| overlap(*other, pose.bounds()) <= 0.3) {
            return Some(pose);
        }
    }
    None
}

/// The share of the smaller box that the other covers.
fn overlap(a: [f32; 4], b: [f32; 4]) -> f32 {
    let area = |b: [f32; 4]| (b[2] - b[0]).max(0.0) * (b[3] - b[1]).max(0.0);
    let common = [a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])];
    area(common) / area(a).min(area(b)).max(1.0)
}

#[cfg(test)]
mod tests;
