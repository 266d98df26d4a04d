//! A line cut into words, and the forms that a word may have.

use super::parse::MOST;
use super::{ClockRate, EngineLoad, RailPower, TegraCpu};

/// Words between blanks. A bracketed list is one word with its blanks, and a parenthesis
/// starts a word, because old boards print `252kB(lfb`.
pub(super) struct TegraWords<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> TegraWords<'a> {
    pub(super) fn new(text: &'a str) -> TegraWords<'a> {
        TegraWords { text, at: 0 }
    }

    /// The next word without taking it.
    pub(super) fn peek(&self) -> Option<&'a str> {
        TegraWords { text: self.text, at: self.at }.next()
    }

    /// Where in the text the next word is looked for.
    pub(super) fn position(&self) -> usize {
        self.at
    }
}

impl<'a> Iterator for TegraWords<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let bytes = self.text.as_bytes();
        while bytes.get(self.at)?.is_ascii_whitespace() {
            self.at += 1;
        }
        let start = self.at;
        let mut end = start;
        while let Some(&byte) = bytes.get(end) {
            if byte.is_ascii_whitespace() || (byte == b'(' && end > start) {
                break;
            }
            end = if byte == b'[' { after_list(bytes, end) } else { end + 1 };
        }
        self.at = end;
        // All ends are at ASCII bytes, so no character is cut.
        self.text.get(start..end)
    }
}

/// The end of the list that opens here, or of the bracket alone where it is no list.
fn after_list(bytes: &[u8], open: usize) -> usize {
    let inside = bytes.get(open + 1..).unwrap_or_default();
    match inside.iter().position(|byte| matches!(byte, b']' | b'[')) {
        Some(at) if inside[at] == b']' => open + at + 2,
        _ => open + 1,
    }
}

/// `20/100MB` as its two numbers.
pub(super) fn pair(word: &str, unit: &str) -> Option<(u64, u64)> {
    let (first, second) = word.strip_suffix(unit)?.split_once('/')?;
    Some((number(first)?, number(second)?))
}

/// Digits alone.
pub(super) fn number(word: &str) -> Option<u64> {
    word.bytes().all(|byte| byte.is_ascii_digit()).then(|| word.parse().ok())?
}

/// `12%`, as far as it is a share of a whole.
pub(super) fn percent(word: &str) -> Option<f64> {
    decimal(word.strip_suffix('%')?).filter(|share| (0.0..=100.0).contains(share))
}

/// A clock; a negative one is not known.
fn megahertz(word: &str) -> Option<f64> {
    decimal(word).filter(|mhz| *mhz >= 0.0)
}

/// A number with or without a fraction and a sign.
pub(super) fn decimal(word: &str) -> Option<f64> {
    let plain = word.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'.' | b'-'));
    plain.then(|| word.parse().ok().filter(|number: &f64| number.is_finite()))?
}

/// Load and clock: `12%`, `12%@600`, `12%@[600,610]`, `@600`, `600` (a clock), `off`. Each
/// half stands for itself, so that `12%@N/A` still has a load; with neither it is none.
pub(super) fn load(word: &str) -> Option<EngineLoad> {
    if word == "off" {
        return Some(EngineLoad { off: true, ..EngineLoad::default() });
    }
    let (util, clock) = match word.split_once('@') {
        Some(halves) => halves,
        None if word.ends_with('%') => (word, ""),
        None => ("", word),
    };
    let load = EngineLoad { off: false, util: percent(util), mhz: clocks(clock) };
    (load.util.is_some() || load.mhz != ClockRate::Unknown).then_some(load)
}

/// `600`, or `[600,610]` in which one of several may be unknown and keeps its place.
fn clocks(word: &str) -> ClockRate {
    let Some(list) = word.strip_prefix('[').and_then(|list| list.strip_suffix(']')) else {
        return megahertz(word).map_or(ClockRate::Unknown, ClockRate::One);
    };
    let all: Vec<_> = list.split(',').take(MOST).map(|one| megahertz(one.trim())).collect();
    if all.iter().all(Option::is_none) { ClockRate::Unknown } else { ClockRate::Many(all) }
}

/// One of the processors: `3%@1996`, `3%` with the clock that all share, or `off`. What is
/// listed and not off is on, also where a half of it is not known.
pub(super) fn core(word: &str, shared: Option<f64>) -> Option<TegraCpu> {
    let unknown = |word: &str| matches!(word, "" | "N/A" | "N/A%") || word.starts_with('-');
    if word == "off" {
        return Some(TegraCpu::default());
    }
    let (util, clock) = word.split_once('@').unwrap_or((word, ""));
    let (load, mhz) = (percent(util), megahertz(clock));
    let sound = (load.is_some() || unknown(util)) && (mhz.is_some() || unknown(clock));
    let mhz = if word.contains('@') { mhz } else { shared };
    (sound && !word.is_empty()).then_some(TegraCpu { online: true, util: load, mhz })
}

/// The clock after a list of processors.
pub(super) fn shared_clock(after: &str) -> Option<Option<f64>> {
    match after.strip_prefix('@') {
        Some(clock) => Some(megahertz(clock)),
        None => after.is_empty().then_some(None),
    }
}

/// `34.3C` or `34.3C/34.8C`: now and, where it is there, the peak. A sensor at -256 is off.
pub(super) fn temperature(word: &str) -> Option<(Option<f64>, Option<Option<f64>>)> {
    let degrees = |word: &str| {
        let celsius = decimal(word.strip_suffix('C')?)?;
        Some((celsius != -256.0).then_some(celsius))
    };
    match word.split_once('/') {
        Some((now, peak)) => Some((degrees(now)?, Some(degrees(peak)?))),
        None => Some((degrees(word)?, None)),
    }
}

/// A megawatt: what is more is no power of a board.
const MOST_POWER: f64 = 1e9;

/// `5251mW/8535mW`, `5251/8535`, three of them, or one.
pub(super) fn power(word: &str) -> Option<RailPower> {
    let mut parts = word.split('/').map(|part| {
        let part = part.strip_suffix("mW").unwrap_or(part);
        decimal(part).filter(|power| power.abs() <= MOST_POWER)
    });
    let cur = parts.next()??;
    let mut next = || match parts.next() {
        None => Some(None),
        Some(part) => Some(Some(part?)),
    };
    let (avg, peak) = (next()?, next()?);
    parts.next().is_none().then_some(RailPower { cur, avg, peak })
}
