//! Durations on the command line.

use std::time::Duration;

/// A duration with its unit, or in seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let units = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
    units
        .iter()
        .find_map(|(unit, size)| in_units(text.strip_suffix(unit)?, *size))
        .or_else(|| in_units(text, 1.0))
        .ok_or_else(|| "it must be a time, such as 90s, 10m or 1h".to_string())
}

/// The time between two looks at the machine.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        long if long < Duration::from_millis(50) => Err("it must be at least 50ms".to_string()),
        long if long > Duration::from_secs(3600) => Err("it must be at most 1h".to_string()),
        interval => Ok(interval),
    }
}

/// How long something may take.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time.is_zero() { Err("it must be above 0".to_string()) } else { Ok(time) }
}

/// A number of units of so many seconds each; `None` where it is no such number, or too large.
pub(crate) fn in_units(text: &str, unit: f64) -> Option<Duration> {
    let value: f64 = text.trim().parse().ok()?;
    Duration::try_from_secs_f64(value * unit).ok().filter(|time| time.as_secs() <= 1 << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_name_their_unit() {
        for (text, ms) in [("10m", 600_000), ("1.5s", 1500), ("250ms", 250), ("2", 2000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "m", "-1s", "10d", "nan", "inf", "1e99h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
