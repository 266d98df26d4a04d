//! Any text as YOLO's labels and data.yaml: refused with a line, or objects of known classes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_accuracy::labels::{classes_of_yaml, from_yolo_text};

fuzz_target!(|text: &str| {
    for keypoints in [None, Some([3, 2])] {
        let Ok(objects) = from_yolo_text(text, 5, keypoints, (48, 64)) else { continue };
        for object in objects {
            assert!(object.class < 5);
            assert!(object.bounds.iter().all(|edge| edge.is_finite()) && object.area >= 0.0);
        }
    }
    if let Ok(names) = classes_of_yaml(text) {
        assert!(names.len() <= text.len());
    }
});
