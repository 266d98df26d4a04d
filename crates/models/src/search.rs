//! The largest setting that fits: a search in settings that take ever more.
//!
//! An estimate of a setting takes milliseconds, as a file's header is read, so few should be made.
//! Between a setting that fits and one that does not, memory grows almost evenly: the next estimate
//! is made where a line between the two reaches the room. Where that does not halve what is left,
//! the middle is next, so that no curve takes much longer than bisection.

/// The largest of `count` settings whose `bytes` are at most `room`; `None` where not even the
/// first fits. `bytes` must not become less from one setting to the next.
///
/// ```
/// use plimsoll_models::search::largest_fitting;
///
/// let each = |setting: u64| Ok::<u64, ()>(100 + 7 * setting);
/// assert_eq!(largest_fitting(1000, 160, each), Ok(Some(8)));
/// assert_eq!(largest_fitting(1000, 99, each), Ok(None));
/// ```
///
/// # Errors
/// What `bytes` fails with.
pub fn largest_fitting<E>(
    count: u64,
    room: u64,
    mut bytes: impl FnMut(u64) -> Result<u64, E>,
) -> Result<Option<u64>, E> {
    let Some(last) = count.checked_sub(1) else { return Ok(None) };
    let (mut fits, mut too_large) = ((0, bytes(0)?), (last, 0));
    if fits.1 > room {
        return Ok(None);
    }
    too_large.1 = bytes(last)?;
    if too_large.1 <= room {
        return Ok(Some(last));
    }
    let mut halve = false;
    while too_large.0 - fits.0 > 1 {
        let left = too_large.0 - fits.0;
        let step = if halve { left / 2 } else { reach(fits, too_large, room) };
        let setting = fits.0 + step.clamp(1, left - 1);
        let taken = bytes(setting)?;
        if taken <= room {
            fits = (setting, taken);
        } else {
            too_large = (setting, taken);
        }
        halve = too_large.0 - fits.0 > left / 2;
    }
    Ok(Some(fits.0))
}

/// How many settings past the one that fits a line to the one that does not reaches the room.
fn reach((low, least): (u64, u64), (high, most): (u64, u64), room: u64) -> u64 {
    let (room, growth) = (u128::from(room - least), u128::from(most - least));
    let steps = room * u128::from(high - low) / growth.max(1);
    u64::try_from(steps).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The answer, and how many estimates it took.
    fn found(curve: &[u64], room: u64) -> (Option<u64>, usize) {
        let mut asked = Vec::new();
        let bytes = |setting: u64| {
            asked.push(setting);
            Ok::<u64, ()>(curve[setting as usize])
        };
        let largest = largest_fitting(curve.len() as u64, room, bytes).unwrap();
        (largest, asked.len())
    }

    proptest! {
        #[test]
        fn any_growing_curve_is_searched_exactly(
            steps in proptest::collection::vec(0u64..1 << 40, 0..600),
            room in 0u64..1 << 50,
        ) {
            let mut sum = 0;
            let curve: Vec<u64> = steps.iter().map(|step| { sum += step; sum }).collect();
            let truth = curve.iter().filter(|bytes| **bytes <= room).count().checked_sub(1);
            let (largest, asked) = found(&curve, room);
            prop_assert_eq!(largest, truth.map(|last| last as u64));
            prop_assert!(asked <= 2 + 2 * 10, "{} of {}", asked, curve.len());
        }

        #[test]
        fn a_line_takes_five_estimates(
            fixed in 0u64..1 << 40, each in 1u64..1 << 36, room in 0u64..1 << 50, count in 1u64..65_536,
        ) {
            let mut asked = 0;
            let bytes = |setting: u64| { asked += 1; Ok::<u64, ()>(fixed + each * setting) };
            let largest = largest_fitting(count, room, bytes);
            let truth = room.checked_sub(fixed).map(|left| (left / each).min(count - 1));
            prop_assert_eq!(largest, Ok(truth));
            prop_assert!(asked <= 5, "{}", asked);
        }
    }

    #[test]
    fn an_error_ends_the_search() {
        assert_eq!(
            largest_fitting(9, 9, |setting| if setting > 4 { Err(setting) } else { Ok(0) }),
            Err(8)
        );
        assert_eq!(largest_fitting(0, 9, |_| Ok::<u64, ()>(0)), Ok(None));
    }

    /// Amounts past what u64 can add up are the largest number.
    #[test]
    fn saturated_amounts_are_searched() {
        let bytes = |setting: u64| Ok::<u64, ()>(setting.saturating_mul(1 << 50));
        assert_eq!(largest_fitting(1 << 40, 5 << 50, bytes), Ok(Some(5)));
    }
}
