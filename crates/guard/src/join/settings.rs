//! The limits that a process without `run` takes from its environment.

use core::ffi::c_char;

use crate::ledger::{DEVICES, LedgerSetup, NO_LIMIT, flag};
use crate::{process, sys};

/// The limit of every device; with `_` and a number appended, that of one device.
pub(crate) const LIMIT: &str = "PLIMSOLL_GPU_MEM_LIMIT";
const RESERVE: &[u8] = b"PLIMSOLL_RESERVE";
const KEEP_FREE: &[u8] = b"PLIMSOLL_KEEP_FREE";

/// Reserved below the limit for what the driver takes for itself, unless the environment says
/// otherwise.
const DEFAULT_RESERVE: u64 = 128 << 20;
/// What must stay available on unified memory, unless the environment says otherwise.
const DEFAULT_KEEP_FREE: u64 = 512 << 20;

/// Reads the limits; `None` where none is named. An error is the reason, in words.
pub(super) fn read() -> Result<Option<LedgerSetup<'static>>, &'static [u8]> {
    let of = |text: &[u8], otherwise: u64, why: &'static [u8]| match text {
        b"" => Ok(otherwise),
        text => size(text).ok_or(why),
    };
    if has_unknown_limit() {
        return Err(
            b"the environment has a PLIMSOLL_GPU variable that the guard does not know; it \
                     reads PLIMSOLL_GPU_MEM_LIMIT, and with _0 to _15 behind it that of one device",
        );
    }
    let bad = b"PLIMSOLL_GPU_MEM_LIMIT must be a size with its unit, such as 8GiB or 512MiB";
    if variables().any(|text| text.strip_prefix(LIMIT.as_bytes()) == Some(b"=")) {
        return Err(bad);
    }
    let limit = of(variable(LIMIT.as_bytes()), NO_LIMIT, bad)?;
    let mut limits = [0; DEVICES];
    for (number, place) in limits.iter_mut().enumerate() {
        let mut name = [0; 40];
        *place = of(variable(limit_of_device(number, &mut name)), 0, bad)?;
    }
    if limit == NO_LIMIT && limits.iter().all(|limit| *limit == 0) {
        return Ok(None);
    }
    let bad = b"PLIMSOLL_RESERVE must be a size with its unit, such as 128MiB";
    let or_none = |text: &'static [u8], otherwise, why| match text {
        b"0" => Ok(0),
        text => of(text, otherwise, why),
    };
    let reserve = or_none(variable(RESERVE), DEFAULT_RESERVE, bad)?;
    let bad = b"PLIMSOLL_KEEP_FREE must be a size with its unit, such as 512MiB";
    let keep_free = or_none(variable(KEEP_FREE), DEFAULT_KEEP_FREE, bad)?;
    let least = limits.iter().copied().filter(|limit| *limit > 0).chain([limit]).min();
    if least.is_some_and(|least| least <= reserve) {
        return Err(b"its limit leaves nothing above PLIMSOLL_RESERVE (128MiB unless set)");
    }
    let (flags, meminfo) = (flag::NO_EVENT_LOG, b"/proc/meminfo");
    Ok(Some(LedgerSetup { limit, limits, reserve, keep_free, flags, meminfo }))
}

/// The variable with the limit of one device.
fn limit_of_device(number: usize, name: &mut [u8; 40]) -> &[u8] {
    let mut digits = [0; 20];
    let pieces = [LIMIT.as_bytes(), b"_", process::decimal(number as u64, &mut digits)];
    let mut end = 0;
    for byte in pieces.iter().copied().flatten() {
        name[end] = *byte;
        end += 1;
    }
    &name[..end]
}

/// Whether a variable looks like a limit and is none, so that a typing error in its name does not
/// switch the limit off.
fn has_unknown_limit() -> bool {
    variables().any(|text| {
        let name = text.split(|byte| *byte == b'=').next().unwrap_or_default();
        name.starts_with(b"PLIMSOLL_GPU")
            && name != LIMIT.as_bytes()
            && !(0..DEVICES).any(|number| name == limit_of_device(number, &mut [0; 40]))
    })
}

/// A size with its unit: `8GiB` is binary, `8GB` decimal. A number without a unit is refused:
/// nobody means a limit of eight bytes.
fn size(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii();
    let end = text.iter().position(|byte| !byte.is_ascii_digit() && *byte != b'.')?;
    let (number, unit) = text.split_at(end);
    let scale = [
        (b"b".as_slice(), 1u64),
        (b"kib", 1 << 10),
        (b"mib", 1 << 20),
        (b"gib", 1 << 30),
        (b"tib", 1 << 40),
        (b"ki", 1 << 10),
        (b"mi", 1 << 20),
        (b"gi", 1 << 30),
        (b"ti", 1 << 40),
        (b"kb", 1_000),
        (b"mb", 1_000_000),
        (b"gb", 1_000_000_000),
        (b"tb", 1_000_000_000_000),
    ];
    let unit = unit.trim_ascii();
    let (_, scale) = scale.into_iter().find(|(name, _)| unit.eq_ignore_ascii_case(name))?;
    let mut parts = number.split(|&byte| byte == b'.');
    let whole = parts.next().filter(|whole| !whole.is_empty())?;
    let part = parts.next().unwrap_or_default();
    if parts.next().is_some() || part.len() > 9 {
        return None;
    }
    let digits = |text: &[u8]| {
        text.iter()
            .try_fold(0u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
    };
    let tenths = 10u64.pow(part.len() as u32);
    let part = u128::from(digits(part)?) * u128::from(scale) / u128::from(tenths);
    let bytes = digits(whole)?.checked_mul(scale)?.checked_add(u64::try_from(part).ok()?)?;
    (bytes > 0).then_some(bytes)
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// The variables of the environment, as `NAME=VALUE`.
fn variables() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: the C library's list of texts, which ends with a null; no other thread runs yet.
    let mut at = unsafe { environ };
    core::iter::from_fn(move || {
        // SAFETY: as above.
        unsafe {
            if at.is_null() || (*at).is_null() {
                return None;
            }
            let text = sys::c_bytes(*at);
            at = at.add(1);
            Some(text)
        }
    })
}

/// A variable of the environment; empty where it is not set.
pub(super) fn variable(name: &[u8]) -> &'static [u8] {
    let value = |text: &'static [u8]| text.strip_prefix(name)?.strip_prefix(b"=");
    variables().find_map(value).unwrap_or_default()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_name_their_unit() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            (" 512 MiB ", 512 << 20),
            ("1.5gib", 3 << 29),
            ("8GB", 8_000_000_000),
            ("0.5kb", 500),
            ("8Gi", 8 << 30),
            ("1073741824B", 1 << 30),
        ] {
            assert_eq!(size(text.as_bytes()), Some(bytes), "{text}");
        }
        for text in ["", "8", "GiB", ".5GiB", "8G", "-1GiB", "1.2.3GiB", "99999999999TiB", "0GiB"] {
            assert_eq!(size(text.as_bytes()), None, "{text}");
        }
    }
}
