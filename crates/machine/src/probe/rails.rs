//! Which rails feed a whole board.

use std::ops::Add;

/// The board's power from that of its rails: the rail that feeds it, or the sum of the
/// six rails of an AGX Xavier. Where neither is there it is not known, as the other rails
/// leave part of the board out.
pub(super) fn whole_board<P: Add<Output = P>>(rail: impl Fn(&str) -> Option<P>) -> Option<P> {
    const FEEDS: [&str; 3] = ["VDD_IN", "POM_5V_IN", "VIN"];
    const XAVIER: [&str; 5] = ["CPU", "SOC", "CV", "VDDRQ", "SYS5V"];
    FEEDS.into_iter().find_map(&rail).or_else(|| {
        XAVIER.into_iter().map(&rail).try_fold(rail("GPU")?, |sum, one| Some(sum + one?))
    })
}
