//! Reading a trace: a file or stdin, gzipped or not.
//!
//! Gzip is known by its first bytes and not by a name, which stdin does not have. What
//! comes out of it is bounded by its size: a few KiB can unpack to more than any machine has.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, BufReader, Cursor, ErrorKind, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use plimsoll::trace::{Trace, TraceFormat, corpus};
use plimsoll::{Bytes, Error};

use crate::outcome::{BadInput, OrBadInput};

/// The most that is read, unpacked: a hundred million events as csv.
const MOST_READ: u64 = 4 << 30;
const GZIP: [u8; 2] = [0x1f, 0x8b];
/// Recordings become some five to twenty times larger when they are unpacked.
const MOST_TIMES: u64 = 32;
/// This much may be unpacked of any file.
const ALWAYS: u64 = 16 << 20;
/// What is read before it is looked at.
const PART: u64 = 1 << 20;

/// The name that messages use, and the trace.
pub(super) fn read(path: &Path, device: Option<usize>) -> anyhow::Result<(String, Trace)> {
    if let Some(seed) = path.to_str().and_then(|path| path.strip_prefix("corpus:")) {
        let seed =
            seed.parse().or_bad_input(|| format!("corpus:{seed}: a seed is a whole number"))?;
        return Ok((format!("corpus:{seed}"), corpus::trace(seed)?));
    }
    let (name, bytes) = if path == Path::new("-") {
        ("stdin".to_string(), unpacked("stdin", io::stdin().lock(), MOST_READ)?)
    } else {
        let name = path.display().to_string();
        let file = File::open(path).or_bad_input(|| format!("cannot open {name}"))?;
        let bytes = unpacked(&name, file, MOST_READ)?;
        (name, bytes)
    };
    let trace = parse(&bytes, device).map_err(|error| wrong(&name, error))?;
    Ok((name, trace))
}

fn parse(bytes: &[u8], device: Option<usize>) -> Result<Trace, Error> {
    match (TraceFormat::of(bytes)?, device) {
        (TraceFormat::Snapshot, device) => Trace::from_snapshot(bytes, device),
        (TraceFormat::Csv, None) => Trace::from_csv(bytes),
        (TraceFormat::Csv, Some(device)) => Err(Error::Config {
            field: "--device",
            value: device.to_string(),
            range: "left out: a csv has events of one device",
        }),
    }
}

/// One line that names the file and the place in it.
fn wrong(name: &str, error: Error) -> anyhow::Error {
    match error {
        Error::Malformed { what, why } if why.ends_with("choose one") => {
            BadInput::new(format!("{name}, {what}: {why} with --device N")).into()
        }
        Error::Malformed { what, why } => BadInput::new(format!("{name}, {what}: {why}")).into(),
        other => BadInput::new(format!("{name}: {other}")).into(),
    }
}

fn unpacked(name: &str, mut source: impl Read, most: u64) -> anyhow::Result<Vec<u8>> {
    let mut start = Vec::new();
    let cannot_read = || format!("cannot read {name}");
    source.by_ref().take(2).read_to_end(&mut start).or_bad_input(cannot_read)?;
    if start != GZIP {
        return gathered(name, Cursor::new(start).chain(source), most, None);
    }
    let packed = Cell::new(start.len() as u64);
    let whole = Cursor::new(start).chain(CountedReader { source, count: &packed });
    let decoder = MultiGzDecoder::new(BufReader::new(whole));
    gathered(name, decoder, most, Some(&packed)).map_err(|error| {
        match error.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(ErrorKind::UnexpectedEof) => {
                BadInput::new(format!("{name}: the gzip is cut short; copy it again")).into()
            }
            _ => error,
        }
    })
}

/// All of it, a part at a time: what cannot be a trace is known by its first part, and what is
/// packed far more tightly than traces are is not unpacked to its end.
fn gathered(
    name: &str,
    mut from: impl Read,
    most: u64,
    packed: Option<&Cell<u64>>,
) -> anyhow::Result<Vec<u8>> {
    let doing = if packed.is_some() { "unpack" } else { "read" };
    let mut bytes = Vec::new();
    loop {
        let before = bytes.len();
        let read = from.by_ref().take(PART).read_to_end(&mut bytes);
        let read = read.or_bad_input(|| format!("cannot {doing} {name}"))?;
        let tight = packed.map(|packed| MOST_TIMES.saturating_mul(packed.get()).max(ALWAYS));
        let length = bytes.len() as u64;
        if length > most {
            return Err(too_large(name, packed.is_some(), most));
        }
        if tight.is_some_and(|tight| length > tight) {
            return Err(BadInput::new(format!(
                "{name} unpacks to more than {MOST_TIMES} times its size, as no recording does; \
                 if it is one, unpack it first: zcat {name} | plimsoll replay -"
            ))
            .into());
        }
        if (read as u64) < PART {
            return Ok(bytes);
        }
        if before == 0 {
            check_start(&bytes).map_err(|error| wrong(name, error))?;
        }
    }
}

fn too_large(name: &str, zipped: bool, most: u64) -> anyhow::Error {
    let (unpacked, most) = (if zipped { " unpacked" } else { "" }, Bytes(most));
    let why = format!("{name} is larger{unpacked} than {most}, the most that is read");
    BadInput::new(format!("{why}; cut the recording")).into()
}

/// Whether a trace can begin like this.
fn check_start(bytes: &[u8]) -> Result<(), Error> {
    if TraceFormat::of(bytes)? == TraceFormat::Csv {
        let end = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
        Trace::from_csv(&bytes[..end])?;
    }
    Ok(())
}

/// A reader that counts what is taken from it.
struct CountedReader<'c, R> {
    source: R,
    count: &'c Cell<u64>,
}

impl<R: Read> Read for CountedReader<'_, R> {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        let read = self.source.read(to)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn fails(bytes: &[u8], most: u64) -> String {
        format!("{:#}", unpacked("t", bytes, most).unwrap_err())
    }

    #[test]
    fn gzip_is_known_by_its_first_bytes() {
        assert_eq!(unpacked("t", &b"plain"[..], 9).unwrap(), b"plain");
        assert_eq!(unpacked("t", &gzip(b"zipped")[..], 9).unwrap(), b"zipped");
        let two = [gzip(b"one"), gzip(b"two")].concat();
        assert_eq!(unpacked("t", &two[..], 9).unwrap(), b"onetwo");
        assert_eq!(unpacked("t", &b""[..], 9).unwrap(), b"");
        assert_eq!(unpacked("t", &b"x"[..], 9).unwrap(), b"x");
    }

    #[test]
    fn what_unpacks_to_too_much_is_refused() {
        let bomb = gzip(&[0; 100_000]);
        assert!(bomb.len() < 1000);
        assert!(fails(&bomb, 1000).contains("larger unpacked than 1000 B"));
        assert!(fails(&[b'x'; 11], 10).contains("larger than 10 B"));
        assert_eq!(unpacked("t", &[b'x'; 10][..], 10).unwrap().len(), 10);
    }

    #[test]
    fn a_bomb_is_known_before_it_goes_off() {
        let junk = gzip(&vec![0; 8 << 20]);
        assert!(junk.len() < 100_000, "{}", junk.len());
        assert!(fails(&junk, MOST_READ).contains("line 1"), "{}", fails(&junk, MOST_READ));
        let events = "a,1,512,0,1\nf,1,512,0,1\n".repeat(1 << 20);
        let bomb = gzip(format!("op,id,size,stream,t_us\n{events}").as_bytes());
        assert!((bomb.len() as u64) < ALWAYS / MOST_TIMES, "{}", bomb.len());
        let message = fails(&bomb, MOST_READ);
        assert!(message.contains("32 times its size") && message.contains("zcat"), "{message}");
        // Without end, and no trace: it is not read to its end.
        let endless = format!("{:#}", unpacked("t", io::repeat(0), MOST_READ).unwrap_err());
        assert!(endless.contains("line 1"), "{endless}");
    }

    #[test]
    fn a_cut_or_damaged_gzip_says_so() {
        let whole = gzip(b"some text that is long enough");
        for end in [2, 9, whole.len() - 1] {
            assert!(fails(&whole[..end], 100).contains("cut short"), "{end}");
        }
        let mut damaged = whole;
        damaged[12] ^= 0xff;
        assert!(fails(&damaged, 100).contains("cannot unpack t"), "{}", fails(&damaged, 100));
    }
}
