//! Any bytes as an MP4 file: refused, or an index whose tables are no larger than the file lets
//! them be.
#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use plimsoll_infer::source::mp4::{self, Film};

fuzz_target!(|bytes: &[u8]| {
    let Ok(Film::H264(track)) = mp4::read(&mut Cursor::new(bytes)) else { return };
    assert!(track.timescale > 0 && (1..=4).contains(&track.length_bytes));
    assert!(track.parameters.len() <= 3 * bytes.len());
    // One size for all samples is the one table that may be longer than its bytes.
    assert!(track.samples.len() <= bytes.len() / 4 || track.samples.len() < 1 << 20);
    assert!(track.samples.iter().all(|sample| sample.shown >= 0));
});
