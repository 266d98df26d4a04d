//! The two detectors of the demo: small, our own, and in the binary.
//!
//! They were trained by `scripts/train-demo` on [`SceneOptions::training`] scenes; the test
//! `tests/demo.rs` judges them on others. Their input is `images`, [1, 3, 256, 256], their
//! output `output0` in the layout of YOLO11, [1, 4 + classes, cells].
//!
//! [`SceneOptions::training`]: super::SceneOptions::training

use super::SceneKind;

/// The name by which reports call a demo detector.
#[must_use]
pub fn model_name(kind: SceneKind) -> &'static str {
    match kind {
        SceneKind::Rgb => "demo_rgb.onnx",
        SceneKind::Thermal => "demo_thermal.onnx",
    }
}

/// The ONNX file of a demo detector.
#[must_use]
pub fn model(kind: SceneKind) -> &'static [u8] {
    match kind {
        SceneKind::Rgb => include_bytes!("../../../models/demo_rgb.onnx"),
        SceneKind::Thermal => include_bytes!("../../../models/demo_thermal.onnx"),
    }
}
