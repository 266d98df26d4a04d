//! Any bytes as COCO's labels: refused in words, or objects whose masks fit into their images.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_accuracy::Labels;
use plimsoll_accuracy::labels::ImagePlace;

fuzz_target!(|bytes: &[u8]| {
    let Ok(labels) = Labels::from_coco(bytes) else { return };
    let classes = labels.classes().len();
    for at in 0..labels.images().unwrap_or_default().min(4) {
        let size = (48, 64);
        let Ok(image) = labels.image(&ImagePlace::Coco(at), size) else { continue };
        for object in image.objects.iter().take(4) {
            assert!((object.class as usize) < classes);
            if let Some(mask) = object.outline.pixels(size) {
                let (rows, columns) = mask.size();
                assert!(mask.area() <= u64::from(rows) * u64::from(columns));
                assert!(mask.overlap(&mask, false) <= 1.0);
            }
        }
    }
});
