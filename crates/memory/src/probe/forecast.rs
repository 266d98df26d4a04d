//! placeholder
/// x
#[derive(Debug, Default, Clone)]
pub struct Forecast;
/// x
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeLeft;
