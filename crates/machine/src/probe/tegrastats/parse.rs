//! From text to a [`TegraLine`].

use super::words::{self, TegraWords};
use super::{Iram, Mts, TegraCpu, TegraLine};

/// A line of the largest board is a twentieth of this.
const LONGEST: usize = 16 << 10;

/// The most that is kept of each kind; a board has a quarter of this at most.
pub(super) const MOST: usize = 128;

/// Why a line is no record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotARecord {
    /// Nothing stands in it.
    #[error("not a tegrastats record: the line is empty")]
    Empty,
    /// No board prints so much.
    #[error("not a tegrastats record: a line of {0} bytes, where {LONGEST} is the most")]
    TooLong(usize),
    /// Neither of the two that every record has.
    #[error("not a tegrastats record: neither RAM n/nMB nor CPU [...] stands in it")]
    NoMemoryNoProcessor,
}

/// Reads one line.
///
/// ```
/// use plimsoll_machine::probe::tegrastats::parse;
/// let line = parse("RAM 3452/7620MB (lfb 25x4MB) CPU [1%@1420,off] GR3D_FREQ 0% tj@50.25C")?;
/// assert_eq!(line.ram_used_mb, Some(3452));
/// assert_eq!(line.cpu_mean_online(), Some(1.0));
/// assert!(parse("tegrastats: could not open the GR3D_FREQ node").is_err());
/// # Ok::<(), plimsoll_machine::probe::tegrastats::NotARecord>(())
/// ```
///
/// # Errors
///
/// [`NotARecord`] where the line has neither `RAM n/nMB` nor `CPU [...]`.
pub fn parse(text: &str) -> Result<TegraLine<'_>, NotARecord> {
    let text = text.trim_ascii();
    match text.len() {
        0 => return Err(NotARecord::Empty),
        long if long > LONGEST => return Err(NotARecord::TooLong(long)),
        _ => {}
    }
    let mut parser =
        LineParser { words: TegraWords::new(text), line: TegraLine::default(), begins: None };
    while let Some(key) = parser.words.next() {
        parser.field(key);
    }
    let LineParser { mut line, begins, .. } = parser;
    let Some(begins) = begins else { return Err(NotARecord::NoMemoryNoProcessor) };
    if line.ram_total_mb.is_none() && line.cpu.is_none() {
        return Err(NotARecord::NoMemoryNoProcessor);
    }
    (line.timestamp, line.clock_s) = times(&text[..begins]);
    Ok(line)
}

struct LineParser<'a> {
    words: TegraWords<'a>,
    line: TegraLine<'a>,
    /// Where the record begins; before it stands what a logger wrote.
    begins: Option<usize>,
}

impl<'a> LineParser<'a> {
    fn field(&mut self, key: &'a str) {
        let start = self.words.position() - key.len();
        if let Some(list) = key.strip_prefix("CPU").filter(|list| list.starts_with('[')) {
            if self.cpus(list) {
                self.begins.get_or_insert(start);
            }
            return;
        }
        let Some(value) = self.words.peek() else { return self.alone(key) };
        let taken = match key {
            "RAM" => self.ram(value),
            "SWAP" => self.swap(value),
            "IRAM" => self.iram(value),
            "CPU" | "cpu" if value.starts_with('[') => self.cpus(value),
            "GR3D_FREQ" | "GR3D" | "EMC_FREQ" | "EMC" => self.load_or_rail(key, value),
            // Before the record, other words are somebody else's.
            _ if self.begins.is_none() => return,
            "(lfb" => self.largest_free(value),
            "(cached" => self.cached(value),
            "MTS" => return self.mts(),
            "EDP" if value == "limit" => true,
            "limit" => true,
            _ if key.contains('@') => return self.alone(key),
            _ => self.load_or_rail(key, value),
        };
        if taken {
            self.words.next();
            if !key.starts_with('(') {
                self.begins.get_or_insert(start);
            }
        }
    }

    fn ram(&mut self, value: &str) -> bool {
        let Some((used, total)) = words::pair(value, "MB") else { return false };
        (self.line.ram_used_mb, self.line.ram_total_mb) = (Some(used), Some(total));
        true
    }

    fn swap(&mut self, value: &str) -> bool {
        let Some((used, total)) = words::pair(value, "MB") else { return false };
        (self.line.swap_used_mb, self.line.swap_total_mb) = (Some(used), Some(total));
        true
    }

    fn iram(&mut self, value: &str) -> bool {
        let Some((used_kb, total_kb)) = words::pair(value, "kB") else { return false };
        self.line.iram = Some(Iram { used_kb, total_kb, lfb_kb: None });
        true
    }

    /// `3x4MB)` is the memory's, `252kB)` the small one's.
    fn largest_free(&mut self, value: &str) -> bool {
        let Some(value) = value.strip_suffix(')') else { return false };
        let Some((blocks, size)) = value.split_once('x') else {
            let lfb_kb = value.strip_suffix("kB").and_then(words::number);
            self.line.iram.iter_mut().for_each(|iram| iram.lfb_kb = lfb_kb);
            return true;
        };
        let size = [("kB", 1), ("MB", 1 << 10), ("GB", 1 << 20)]
            .into_iter()
            .find_map(|(unit, kb)| words::number(size.strip_suffix(unit)?)?.checked_mul(kb));
        if let (Some(blocks), Some(size)) = (words::number(blocks), size) {
            (self.line.lfb_blocks, self.line.lfb_block_kb) = (Some(blocks), Some(size));
        }
        true
    }

    fn cached(&mut self, value: &str) -> bool {
        self.line.swap_cached_mb = value.strip_suffix("MB)").and_then(words::number);
        true
    }

    /// `[3%@1996,off]`, or `[3%,off]@1996` with one clock for all.
    fn cpus(&mut self, value: &str) -> bool {
        let Some((list, after)) = value[1..].split_once(']') else { return false };
        let Some(shared) = words::shared_clock(after) else { return false };
        let cores = list.split(',').take(MOST).map(|word| words::core(word.trim(), shared));
        let Some(cores) = cores.collect::<Option<Vec<TegraCpu>>>() else { return false };
        self.line.cpu = Some(cores);
        true
    }

    /// `MTS fg 0% bg 3%`.
    fn mts(&mut self) {
        let mut of = |name: &str| {
            self.words.peek().filter(|word| *word == name)?;
            self.words.next();
            let value = words::percent(self.words.peek()?)?;
            self.words.next();
            Some(value)
        };
        if let Some((fg, bg)) = of("fg").and_then(|fg| Some((fg, of("bg")?))) {
            self.line.mts = Some(Mts { fg, bg });
        }
    }

    /// A word that is a field by itself: a temperature.
    fn alone(&mut self, word: &'a str) {
        let Some((name, value)) = word.split_once('@') else { return };
        if self.begins.is_none() || name.is_empty() {
            return;
        }
        if let Some((now, peak)) = words::temperature(value) {
            put(&mut self.line.temps_c, name, now);
            if let Some(peak) = peak {
                put(&mut self.line.temps_peak_c, name, peak);
            }
        }
    }

    fn load_or_rail(&mut self, key: &'a str, value: &'a str) -> bool {
        if !is_name(key) {
            // Others' rails may be called anything; the unit tells.
            return value.ends_with("mW") && is_word(key) && self.rail(key, value);
        }
        match key {
            "GR3D_FREQ" | "GR3D" => self.line.gpu = words::load(value).filter(|load| !load.off),
            "EMC_FREQ" | "EMC" => self.line.emc = words::load(value).filter(|load| !load.off),
            "GR3D2_FREQ" | "GR3D2" => self.line.gpu2 = words::load(value),
            "GR3D_PCI" => self.line.gpu_pci = words::load(value),
            _ if is_rail(key, value) => return self.rail(key, value),
            _ if is_others(key) => return false,
            _ => match words::load(value) {
                Some(load) => put(&mut self.line.engines, key, load),
                None => return false,
            },
        }
        words::load(value).is_some() || value == "N/A"
    }

    /// Pins that are not connected are called NC, several of them, and mean nothing.
    fn rail(&mut self, key: &'a str, value: &str) -> bool {
        let Some(power) = words::power(value) else {
            // The last of two counts, also where it tells nothing.
            self.line.power_mw.retain(|(rail, _)| *rail != key);
            return value == "off" || value == "N/A";
        };
        if key != "NC" {
            put(&mut self.line.power_mw, key, power);
        }
        true
    }
}

/// A repeated key: the last one counts.
fn put<'a, T>(list: &mut Vec<(&'a str, T)>, name: &'a str, value: T) {
    match list.iter().position(|(known, _)| *known == name) {
        Some(at) => list[at].1 = value,
        None if list.len() < MOST => list.push((name, value)),
        None => {}
    }
}

/// Keys of loads and rails are capitals, digits and underscores.
fn is_name(key: &str) -> bool {
    key.starts_with(|first: char| first.is_ascii_uppercase())
        && key.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_')
}

/// Letters, digits, underscores and dashes.
fn is_word(key: &str) -> bool {
    key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
}

/// By the form of the value, or by the name where the value alone does not tell.
fn is_rail(key: &str, value: &str) -> bool {
    let named = ["VDD", "VIN", "POM_", "SYS5V", "VDDRQ"].iter().any(|start| key.starts_with(start))
        || matches!(key, "NC" | "GPU" | "CPU" | "SOC" | "CV");
    named || (words::power(value).is_some() && (value.contains('/') || value.ends_with("mW")))
}

/// Whether the key is one of ours with something before it: that is another key.
fn is_others(key: &str) -> bool {
    const OURS: [&str; 20] = [
        "RAM", "SWAP", "IRAM", "CPU", "GR3D", "EMC", "NVENC", "NVDEC", "NVJPG", "NVDLA", "VIC",
        "OFA", "PVA", "APE", "AVP", "VDE", "MSENC", "MTS", "EDP", "SE",
    ];
    let stem = |part: &str| {
        let part = part.strip_suffix("_FREQ").unwrap_or(part);
        OURS.contains(&part.trim_end_matches(|c: char| c.is_ascii_digit()))
    };
    key.match_indices('_').any(|(at, _)| stem(&key[at + 1..]))
}

/// The timestamp that the program prints when asked, and the clock time of that or of a
/// logger's own prefix.
fn times(prefix: &str) -> (Option<&str>, Option<f64>) {
    let stamp = prefix.get(..19);
    if let Some(seconds) = stamp.and_then(american) {
        return (stamp, Some(seconds));
    }
    let starts = prefix.bytes().enumerate().filter(|(_, byte)| byte.is_ascii_digit());
    let found = starts.map(|(at, _)| at).find_map(|at| international(prefix.get(at..)?));
    (None, found)
}

/// `MM-DD-YYYY hh:mm:ss`.
fn american(stamp: &str) -> Option<f64> {
    let (date, time) = stamp.split_once(' ')?;
    let mut parts = date.splitn(3, '-');
    let (month, day) = (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    seconds(digits(parts.next()?, 4)?, month, day, time)
}

/// `YYYY-MM-DD hh:mm:ss`, with a T between, a fraction and anything after it.
fn international(text: &str) -> Option<f64> {
    let (date, rest) = (text.get(..10)?, text.get(10..)?);
    let time = rest.strip_prefix([' ', 'T'])?.get(..8)?;
    let mut parts = date.splitn(3, '-');
    let year = digits(parts.next()?, 4)?;
    let (month, day) = (digits(parts.next()?, 2)?, digits(parts.next()?, 2)?);
    let fraction = rest.get(9..)?.strip_prefix(['.', ',']).unwrap_or_default();
    let length = fraction.bytes().take(9).take_while(u8::is_ascii_digit).count();
    let fraction = format!("0.{}", &fraction[..length]).parse::<f64>().unwrap_or_default();
    Some(seconds(year, month, day, time)? + fraction)
}

fn digits(text: &str, length: usize) -> Option<i64> {
    (text.len() == length).then(|| words::number(text))?.and_then(|n| i64::try_from(n).ok())
}

fn seconds(year: i64, month: i64, day: i64, time: &str) -> Option<f64> {
    let mut parts = time.splitn(3, ':').map(|part| digits(part, 2));
    let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
    let sound = (1970..=9999).contains(&year)
        && (1..=12).contains(&month)
        && (1..=31).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    sound.then(|| (days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second) as f64)
}

/// Days since 1970: years begin in March, so that the leap day is the last.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let in_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    year * 365 + year / 4 - year / 100 + year / 400 + in_year - 719_468
}
