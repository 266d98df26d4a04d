//! Where a frame lies inside a tensor, and the way back.
//!
//! The arithmetic is Ultralytics' to the last rounding, because a box that is half a pixel
//! off is another box: the smaller of the two ratios, sizes rounded half to even but never to
//! nothing, and what is left split so that an odd pixel goes to the right and to the bottom.
//! Sizes are rounded each for itself, so that the two scales differ a little, and the way back
//! must know both.

use crate::decode::OrientedBox;

/// How a frame was fitted into a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Letterbox {
    /// Tensor pixels for one frame pixel, across.
    pub scale_x: f32,
    /// The same, down.
    pub scale_y: f32,
    /// Columns of border to the left.
    pub pad_x: usize,
    /// Rows of border above.
    pub pad_y: usize,
    /// Columns that the frame takes in the tensor.
    pub width: usize,
    /// Rows that the frame takes in the tensor.
    pub height: usize,
    /// Columns of the frame itself.
    pub frame_width: usize,
    /// Rows of the frame itself.
    pub frame_height: usize,
}

impl Letterbox {
    /// Fits a frame of `frame` (rows, columns) into a tensor of `tensor` (rows, columns).
    ///
    /// `None` where there is nothing to fit, or nothing to fit it into.
    #[must_use]
    pub fn fit(frame: (usize, usize), tensor: (usize, usize)) -> Option<Letterbox> {
        if frame.0 == 0 || frame.1 == 0 || tensor.0 == 0 || tensor.1 == 0 {
            return None;
        }
        let scale = (tensor.0 as f64 / frame.0 as f64).min(tensor.1 as f64 / frame.1 as f64);
        let extent = |frame: usize, tensor: usize| {
            ((frame as f64 * scale).round_ties_even() as usize).clamp(1, tensor)
        };
        let (height, width) = (extent(frame.0, tensor.0), extent(frame.1, tensor.1));
        // Never negative: -0.1 rounds to 0.
        let before = |free: usize| (free as f64 / 2.0 - 0.1).round_ties_even() as usize;
        Some(Letterbox {
            scale_x: (width as f64 / frame.1 as f64) as f32,
            scale_y: (height as f64 / frame.0 as f64) as f32,
            pad_x: before(tensor.1 - width),
            pad_y: before(tensor.0 - height),
            width,
            height,
            frame_width: frame.1,
            frame_height: frame.0,
        })
    }

    /// Stretches a frame over the whole tensor, whatever its proportions.
    #[must_use]
    pub fn fill(frame: (usize, usize), tensor: (usize, usize)) -> Option<Letterbox> {
        if frame.0 == 0 || frame.1 == 0 || tensor.0 == 0 || tensor.1 == 0 {
            return None;
        }
        Some(Letterbox {
            scale_x: (tensor.1 as f64 / frame.1 as f64) as f32,
            scale_y: (tensor.0 as f64 / frame.0 as f64) as f32,
            pad_x: 0,
            pad_y: 0,
            width: tensor.1,
            height: tensor.0,
            frame_width: frame.1,
            frame_height: frame.0,
        })
    }

    /// Takes a box (left, top, right, bottom) from tensor pixels to frame pixels and
    /// clips it to the frame.
    #[must_use]
    pub fn to_frame(&self, bounds: [f32; 4]) -> [f32; 4] {
        let back = |value: f32, pad: usize, scale: f32, extent: usize| {
            ((value - pad as f32) / scale).clamp(0.0, extent as f32)
        };
        let across = |value| back(value, self.pad_x, self.scale_x, self.frame_width);
        let down = |value| back(value, self.pad_y, self.scale_y, self.frame_height);
        let [left, top, right, bottom] = bounds;
        [across(left), down(top), across(right), down(bottom)]
    }

    /// Takes a point from tensor pixels to frame pixels and clips it to the frame.
    pub(crate) fn point_to_frame(&self, [x, y]: [f32; 2]) -> [f32; 2] {
        let [x, y, _, _] = self.to_frame([x, y, x, y]);
        [x, y]
    }

    /// Takes a turned box (centre and extents) from tensor pixels to frame pixels. It is not
    /// clipped: what is left of a turned box is none.
    pub(crate) fn turned_to_frame(&self, bounds: [f32; 4], angle: f32) -> OrientedBox {
        let [x, y, width, height] = bounds;
        let (x, y) = (x - self.pad_x as f32, y - self.pad_y as f32);
        OrientedBox {
            centre: [x / self.scale_x, y / self.scale_y],
            size: [width / self.scale_x, height / self.scale_y],
            angle,
        }
    }

    /// Takes a box that is given as fractions of the image to frame pixels; not clipped, as
    /// Ultralytics does not either.
    pub(crate) fn fraction_to_frame(&self, [left, top, right, bottom]: [f32; 4]) -> [f32; 4] {
        let (width, height) = (self.frame_width as f32, self.frame_height as f32);
        [left * width, top * height, right * width, bottom * height]
    }

    /// The whole frame as a box.
    pub(crate) fn frame(&self) -> [f32; 4] {
        [0.0, 0.0, self.frame_width as f32, self.frame_height as f32]
    }

    /// Whether the frame lies in the tensor as it is, pixel for pixel.
    #[must_use]
    pub fn is_identity(&self) -> bool {
        self.width == self.frame_width && self.height == self.frame_height
    }

    /// Whether the frame lies in the tensor at half its size.
    pub(crate) fn is_half(&self) -> bool {
        2 * self.width == self.frame_width && 2 * self.height == self.frame_height
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_a_720p_frame_and_centres_it() {
        let fitted = Letterbox::fit((720, 1280), (640, 640)).unwrap();
        assert_eq!((fitted.width, fitted.height), (640, 360));
        assert_eq!((fitted.pad_x, fitted.pad_y), (0, 140));
        assert_eq!(fitted.to_frame([320.0, 320.0, 640.0, 500.0]), [640.0, 360.0, 1280.0, 720.0]);
    }

    #[test]
    fn an_odd_pixel_of_border_goes_below() {
        let fitted = Letterbox::fit((479, 640), (640, 640)).unwrap();
        assert_eq!((fitted.pad_y, fitted.height), (80, 479));
        assert!(fitted.is_identity());
    }

    #[test]
    fn boxes_are_clipped_to_the_frame() {
        let fitted = Letterbox::fit((720, 1280), (640, 640)).unwrap();
        assert_eq!(fitted.to_frame([-9.0, 0.0, 700.0, 640.0]), [0.0, 0.0, 1280.0, 720.0]);
    }

    #[test]
    fn the_way_back_knows_both_roundings() {
        // 333 columns become 274: not quite 640 / 777 of them.
        let fitted = Letterbox::fit((777, 333), (640, 640)).unwrap();
        assert_eq!((fitted.width, fitted.height, fitted.pad_x), (274, 640, 183));
        let [left, top, right, bottom] = fitted.to_frame([320.0, 320.0, 457.0, 640.0]);
        assert!((left - 137.0 * 333.0 / 274.0).abs() < 1e-4, "{left}");
        assert_eq!((top, right, bottom), (388.5, 333.0, 777.0));
    }

    #[test]
    fn what_is_nothing_is_refused_and_what_is_thin_keeps_a_pixel() {
        assert_eq!(Letterbox::fit((0, 5), (640, 640)), None);
        assert_eq!(Letterbox::fit((5, 5), (640, 0)), None);
        let thin = Letterbox::fit((1, 10_000), (640, 640)).unwrap();
        assert_eq!((thin.width, thin.height, thin.pad_y), (640, 1, 319));
    }
}
