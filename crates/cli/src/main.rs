//! The front door: `plimsoll <verb>`.
fn main() {}
