//! Precision and recall, where the truth is known, at IoU 0.5 and confidence 0.25.

use plimsoll_infer::{Detection, Truth};

use crate::record::Accuracy;

const IOU: f64 = 0.5;
const CONFIDENCE: f64 = 0.25;

/// Counts over all frames whose truth is known.
#[derive(Debug, Clone, Default)]
pub(super) struct AccuracyCount {
    frames: u64,
    matched: u64,
    found: u64,
    present: u64,
}

impl AccuracyCount {
    /// Takes a frame. The most confident detection is matched first, each object once.
    pub(super) fn push(&mut self, detections: &[Detection], truth: &[Truth]) {
        let mut left: Vec<&Truth> = truth.iter().collect();
        self.frames += 1;
        self.present += truth.len() as u64;
        let sure = |d: &&Detection| f64::from(d.confidence) >= CONFIDENCE;
        // The decoder gives the most confident first.
        for detection in detections.iter().filter(sure) {
            self.found += 1;
            let best = left
                .iter()
                .enumerate()
                .filter(|(_, object)| object.class == detection.class)
                .map(|(at, object)| (at, overlap(object.bounds, detection.bounds)))
                .max_by(|a, b| a.1.total_cmp(&b.1));
            if let Some((at, _)) = best.filter(|(_, share)| *share >= IOU) {
                left.swap_remove(at);
                self.matched += 1;
            }
        }
    }

    /// The figures; `None` where no truth was known.
    pub(super) fn accuracy(&self) -> Option<Accuracy> {
        let AccuracyCount { frames, matched, found, present } = *self;
        let share = |of: u64| (of > 0).then(|| matched as f64 / of as f64);
        (frames > 0).then(|| Accuracy {
            precision: share(found),
            recall: share(present),
            iou: IOU,
            conf: CONFIDENCE,
            matched,
            found,
            present,
        })
    }
}

/// Intersection over union.
fn overlap(a: [f32; 4], b: [f32; 4]) -> f64 {
    let area = |[left, top, right, bottom]: [f32; 4]| {
        f64::from((right - left).max(0.0)) * f64::from((bottom - top).max(0.0))
    };
    let both = area([a[0].max(b[0]), a[1].max(b[1]), a[2].min(b[2]), a[3].min(b[3])]);
    let all = area(a) + area(b) - both;
    if all > 0.0 { both / all } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_is_found_once_and_by_its_class() {
        let found = |x: f32, class, confidence| {
            Detection::boxed([x, 0.0, x + 10.0, 10.0], confidence, class)
        };
        let truth = [
            Truth { bounds: [0.0, 0.0, 10.0, 10.0], class: 0 },
            Truth { bounds: [100.0, 0.0, 110.0, 10.0], class: 1 },
        ];
        let mut judge = AccuracyCount::default();
        assert_eq!(judge.accuracy(), None);
        // Correct, the same object again, another class, and below the least confidence.
        judge.push(
            &[found(1.0, 0, 0.9), found(0.0, 0, 0.8), found(100.0, 2, 0.7), found(100.0, 1, 0.2)],
            &truth,
        );
        let accuracy = judge.accuracy().unwrap();
        assert_eq!((accuracy.matched, accuracy.found, accuracy.present), (1, 3, 2));
        assert_eq!((accuracy.precision, accuracy.recall), (Some(1.0 / 3.0), Some(0.5)));
    }
}
