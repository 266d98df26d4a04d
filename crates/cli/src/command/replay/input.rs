//! Reading a trace: a file or stdin, gzipped or not.
//!
//! Gzip is known by its first bytes and not by a name, which stdin does not have. What
//! comes out of it is bounded: a few KiB can unpack to more than any machine holds.

use std::fs::File;
use std::io::{self, BufReader, Cursor, ErrorKind, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;
use plimsoll::trace::{Format, Trace};
use plimsoll::{Bytes, Error};

use crate::outcome::{BadInput, OrBadInput};

/// The most that is read, unpacked: a hundred million events as csv.
const MOST_READ: u64 = 4 << 30;
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The name that messages use, and the trace.
pub(super) fn read(path: &Path, device: Option<usize>) -> anyhow::Result<(String, Trace)> {
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
    match (Format::of(bytes)?, device) {
        (Format::Snapshot, device) => Trace::from_snapshot(bytes, device),
        (Format::Csv, None) => Trace::from_csv(bytes),
        (Format::Csv, Some(device)) => Err(Error::Config {
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
    let zipped = start == GZIP;
    let whole = Cursor::new(start).chain(source);
    let mut bytes = Vec::new();
    if zipped {
        let result =
            MultiGzDecoder::new(BufReader::new(whole)).take(most + 1).read_to_end(&mut bytes);
        result.or_bad_input(|| format!("cannot unpack {name}")).map_err(|error| {
            match error.downcast_ref::<io::Error>().map(io::Error::kind) {
                Some(ErrorKind::UnexpectedEof) => {
                    BadInput::new(format!("{name}: the gzip is cut short; copy it again")).into()
                }
                _ => error,
            }
        })?;
    } else {
        whole.take(most + 1).read_to_end(&mut bytes).or_bad_input(cannot_read)?;
    }
    if bytes.len() as u64 > most {
        let unpacked = if zipped { " unpacked" } else { "" };
        let message = format!(
            "{name} is larger{unpacked} than {}, the most that is read; cut the recording",
            Bytes(most)
        );
        return Err(BadInput::new(message).into());
    }
    Ok(bytes)
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
