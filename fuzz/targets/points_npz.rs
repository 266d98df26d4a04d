//! Any bytes as a `.npz` of points: refused with a place, or clouds no larger than promised.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plimsoll_points::read::{CloudFormat, clouds_in, shape_of};

fuzz_target!(|bytes: &[u8]| {
    let Ok(clouds) = clouds_in(CloudFormat::Npz, bytes, true) else { return };
    // What was read is what the header promised.
    let shape = shape_of(CloudFormat::Npz, bytes).map(|shape| (shape.counts, shape.features));
    let counts = clouds.iter().map(|cloud| cloud.len() as u64);
    if let Ok((promised, features)) = shape {
        let floats = promised.iter().map(|points| points * (3 + features as u64));
        assert!(counts.eq(floats));
    }
});
