//! The kernels, compiled as C and run place by place beside the Rust that they must equal.

use std::ffi::c_int;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use libloading::Library;

use super::*;
use crate::decode::Decoder;
use crate::engine::{EngineInfo, InferenceEngine, ModelInfo};
use crate::source::{Frame, Pixels};
use crate::tensor::Tensor;
use crate::{Prepare, Thresholds};

/// What CUDA C has and C has not.
const SHIM: &str = include_str!("../../../../../tests/fixtures/kernels_on_host.h");

struct Compiled(Library);

impl Compiled {
    /// `None` where there is no compiler, said aloud.
    fn new(folder: &Path) -> Option<Compiled> {
        std::fs::write(folder.join("shim.h"), SHIM).expect("written");
        std::fs::write(folder.join("kernels.cpp"), SOURCE).expect("written");
        let output = Command::new("c++")
            .args(["-O1", "-ffp-contract=off", "-shared", "-fPIC", "-include", "shim.h"])
            .args(["kernels.cpp", "-o", "kernels.so"])
            .current_dir(folder)
            .output();
        match output {
            Err(error) => {
                println!("skipped: kernels: c++: {error}");
                None
            }
            Ok(output) => {
                let words = String::from_utf8_lossy(&output.stderr);
                assert!(output.status.success(), "{words}");
                // SAFETY: our own code, which has no initialisers.
                Some(Compiled(unsafe { Library::new(folder.join("kernels.so")) }.expect("loaded")))
            }
        }
    }

    fn stand(&self, x: usize, y: usize) {
        // SAFETY: the shim's own signature.
        unsafe {
            let stand = self.0.get::<unsafe extern "C" fn(c_int, c_int)>(b"stand\0");
            stand.expect("there")(x as c_int, y as c_int);
        }
    }

    fn letterbox(&self, pixels: &[u8], fit: &crate::prepare::Fit, shape: &FrameShape) -> Vec<f32> {
        let (letterbox, (height, width)) = (&fit.letterbox, shape.tensor);
        let [columns, rows] = fit.tables();
        let mut out = vec![9.0_f32; 3 * height * width];
        // SAFETY: the signature in kernels.cu; the buffers are as large as the fit says.
        unsafe {
            type Letterbox = unsafe extern "C" fn(
                *const u8,
                *const i32,
                *const i32,
                *mut f32,
                c_int,
                c_int,
                c_int,
                c_int,
                c_int,
                c_int,
                c_int,
                c_int,
                c_int,
            );
            let kernel = self.0.get::<Letterbox>(b"letterbox\0").expect("there");
            for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                self.stand(x, y);
                kernel(
                    pixels.as_ptr(),
                    columns.as_ptr(),
                    rows.as_ptr(),
                    out.as_mut_ptr(),
                    letterbox.frame_width as c_int,
                    shape.channels as c_int,
                    c_int::from(shape.blue_first),
                    letterbox.width as c_int,
                    letterbox.height as c_int,
                    letterbox.pad_x as c_int,
                    letterbox.pad_y as c_int,
                    width as c_int,
                    height as c_int,
                );
            }
        }
        out
    }

    fn best(&self, raw: &[f32], classes: usize, places: usize) -> Vec<f32> {
        let mut out = vec![9.0_f32; 6 * places];
        // SAFETY: the signature in kernels.cu; the buffers are as large as it wants.
        unsafe {
            type Best = unsafe extern "C" fn(*const f32, *mut f32, c_int, c_int);
            let kernel = self.0.get::<Best>(b"best\0").expect("there");
            for place in 0..places {
                self.stand(place, 0);
                kernel(raw.as_ptr(), out.as_mut_ptr(), classes as c_int, places as c_int);
            }
        }
        out
    }
}

fn frame(pixels: Pixels, (height, width): (usize, usize)) -> Frame {
    let (timestamp, name) = (Duration::ZERO, String::new());
    Frame::new(pixels, (width, height), timestamp, name)
}

fn noise(count: usize) -> Vec<u8> {
    (0..count).map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

#[test]
fn the_letterbox_on_the_device_is_that_of_the_host() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(kernels) = Compiled::new(folder.path()) else { return };
    let tensor = (64, 96);
    for size in [(72, 128), (64, 96), (100, 30), (31, 200), (1, 1), (7, 1), (300, 500)] {
        let count = size.0 * size.1;
        for pixels in [
            Pixels::Rgb8(noise(3 * count)),
            Pixels::Bgr8(noise(3 * count)),
            Pixels::Grey8(noise(count)),
        ] {
            let (bytes, channels, blue_first) = match &pixels {
                Pixels::Rgb8(bytes) => (bytes.clone(), 3, false),
                Pixels::Bgr8(bytes) => (bytes.clone(), 3, true),
                Pixels::Grey8(bytes) => (bytes.clone(), 1, false),
                Pixels::Grey16(_) => continue,
            };
            let frame = frame(pixels, size);
            let mut prepare = Prepare::new(tensor.0, tensor.1);
            let mut want = Tensor::default();
            let letterbox = prepare.run(&frame, &mut want).expect("prepared");
            let fit = prepare.fit(&frame).expect("fitted");
            let shape = FrameShape { channels, blue_first, letterbox, tensor };
            let got = kernels.letterbox(&bytes, fit, &shape);
            assert!(got == want.data, "{size:?} {channels}");
        }
    }
}

/// An engine that searches its output itself, with the kernel.
struct Searching(EngineInfo, ModelInfo);

impl InferenceEngine for Searching {
    fn info(&self) -> &EngineInfo {
        &self.0
    }
    fn model(&self) -> &ModelInfo {
        &self.1
    }
    fn run(&mut self, _: &Tensor) -> crate::InferResult<&[Tensor]> {
        Ok(&[])
    }
    fn search(&mut self, _: usize, _: usize) -> crate::InferResult<bool> {
        Ok(true)
    }
}

#[test]
fn the_search_on_the_device_is_that_of_the_host() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(kernels) = Compiled::new(folder.path()) else { return };
    let (classes, places) = (80, 8400);
    let mut raw = Tensor::zeros(&[1, 4 + classes, places]);
    for (at, (value, byte)) in raw.data.iter_mut().zip(noise(84 * 8400)).enumerate() {
        let scale = if at < 4 * places { 2.0 } else { 1.0 / 300.0 };
        *value = f32::from(byte) * scale;
    }
    for (place, bad) in [(3, f32::NAN), (77, f32::INFINITY), (900, f32::NEG_INFINITY)] {
        raw.data[20 * places + place] = bad;
    }
    let found = kernels.best(&raw.data, classes, places);
    let letterbox = crate::Letterbox::fit((720, 1280), (640, 640)).expect("fits");
    let thresholds = Thresholds { confidence: 0.8, ..Thresholds::default() };
    let shapes = [raw.shape.clone()];
    let (mut want, mut got) = (Vec::new(), Vec::new());
    let model = ModelInfo::default();
    let mut decoder = Decoder::new(&model, &shapes).expect("a detector");
    decoder.decode(&[raw], &letterbox, &thresholds, &mut want).expect("decoded");
    decoder.delegate(&mut Searching(EngineInfo::default(), model)).expect("delegated");
    let found = Tensor { shape: vec![1, 6, places], data: found };
    decoder.decode(&[found], &letterbox, &thresholds, &mut got).expect("decoded");
    assert!(want.len() > 50, "{}", want.len());
    assert_eq!(got, want);
}
