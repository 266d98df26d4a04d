//! Where the H.264 samples of an MP4 file lie, and when each is shown.
//!
//! Our own reader, since the ones at hand panic on files that lie about themselves or build
//! lists of billions of samples. Here every count is checked against the bytes that are
//! there, so that a reader of a 1 MB file never makes more than a few MB of tables. Fragmented
//! files are left to ffmpeg.

use std::io::{Read, Seek, SeekFrom};

/// The boxes that describe a film are small; more than this is refused.
const LARGEST_INDEX: u64 = 256 << 20;

/// One coded picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// Where it begins in the file.
    pub offset: u64,
    /// Bytes.
    pub size: u32,
    /// When it is shown, in ticks from the first picture.
    pub shown: i64,
}

/// A film's first H.264 track.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Track {
    /// Ticks a second.
    pub timescale: u32,
    /// Sequence and picture parameters, each with a start code.
    pub parameters: Vec<u8>,
    /// Bytes of the length before each unit in a sample.
    pub length_bytes: usize,
    /// The samples in the order of decoding.
    pub samples: Vec<Sample>,
}

/// What a file is to us.
#[derive(Debug, PartialEq, Eq)]
pub enum Film {
    /// H.264, to be decoded in here.
    H264(Track),
    /// A video that somebody else must decode, and why.
    Other(&'static str),
}

/// Reads the index of a file.
///
/// # Errors
/// What is wrong with the file, in words.
pub fn read<F: Read + Seek>(file: &mut F) -> Result<Film, String> {
    let Some(index) = find_index(file)? else {
        return Ok(Film::Other("it has no index (moov)"));
    };
    if child(&index, b"mvex").is_some() {
        return Ok(Film::Other("it is fragmented"));
    }
    let tracks: Vec<&[u8]> =
        boxes(&index).filter(|(kind, _)| *kind == b"trak").map(|(_, body)| body).collect();
    for track in &tracks {
        if let Some(film) = h264(track)? {
            return Ok(film);
        }
    }
    Ok(Film::Other("none of its tracks is H.264"))
}

fn find_index<F: Read + Seek>(file: &mut F) -> Result<Option<Vec<u8>>, String> {
    let words = |e: std::io::Error| e.to_string();
    let end = file.seek(SeekFrom::End(0)).map_err(words)?;
    let mut at = 0;
    while at + 8 <= end {
        file.seek(SeekFrom::Start(at)).map_err(words)?;
        let mut head = [0; 16];
        file.read_exact(&mut head[..8]).map_err(words)?;
        let mut size = u64::from(number(&head, 0));
        let mut header = 8;
        if size == 1 && at + 16 <= end {
            file.read_exact(&mut head[8..]).map_err(words)?;
            size = u64::from(number(&head, 8)) << 32 | u64::from(number(&head, 12));
            header = 16;
        } else if size == 0 {
            size = end - at;
        }
        if size < header || size > end - at {
            return Err(format!("a box at byte {at} is larger than the file: it is cut off"));
        }
        if &head[4..8] == b"moov" {
            if size > LARGEST_INDEX {
                return Err(format!("an index of {size} bytes is too large"));
            }
            let mut body = vec![0; (size - header) as usize];
            file.read_exact(&mut body).map_err(words)?;
            return Ok(Some(body));
        }
        at += size;
    }
    Ok(None)
}

/// Four bytes, the highest first; 0 where they are not there.
fn number(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_be_bytes)
}

/// The boxes inside of a box; ends at the first that does not fit.
fn boxes(body: &[u8]) -> impl Iterator<Item = (&[u8; 4], &[u8])> {
    let mut rest = body;
    std::iter::from_fn(move || {
        let size = number(rest, 0) as usize;
        let kind = rest.get(4..8)?.try_into().ok()?;
        let inside = rest.get(8..size)?;
        rest = &rest[size..];
        Some((kind, inside))
    })
}

fn child<'a>(body: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    boxes(body).find(|(k, _)| *k == kind).map(|(_, inside)| inside)
}

/// Whether pictures are shown as they were coded: the track's matrix is that of no turn.
fn is_upright(track: &[u8]) -> bool {
    let Some(header) = child(track, b"tkhd") else { return true };
    let matrix = if header.first() == Some(&1) { 52 } else { 40 };
    let turn = [0, 4, 12, 16].map(|at| number(header, matrix + at));
    turn == [1 << 16, 0, 0, 1 << 16]
}

fn h264(track: &[u8]) -> Result<Option<Film>, String> {
    let Some(media) = child(track, b"mdia") else { return Ok(None) };
    let table = child(media, b"minf").and_then(|m| child(m, b"stbl"));
    let Some(table) = table else { return Ok(None) };
    // A description list: version, count, then the entries, which are boxes.
    let entry = child(table, b"stsd").and_then(|d| d.get(8..)).and_then(|d| boxes(d).next());
    let Some((b"avc1" | b"avc3", entry)) = entry else { return Ok(None) };
    if !is_upright(track) {
        return Ok(Some(Film::Other("its pictures are to be turned")));
    }
    let setup = entry.get(78..).and_then(|inner| child(inner, b"avcC"));
    // Baseline, Main and High; the others have more bits or finer colour.
    if !matches!(setup.and_then(|s| s.get(1)), Some(66 | 77 | 100)) {
        return Ok(Some(Film::Other("its H.264 profile is a rare one")));
    }
    let (length_bytes, parameters) =
        setup.and_then(parameters).ok_or("its H.264 parameters are broken")?;
    let header = child(media, b"mdhd").ok_or("its track has no header")?;
    let timescale = number(header, if header.first() == Some(&1) { 20 } else { 12 });
    if timescale == 0 {
        return Err("its track has no time scale".to_owned());
    }
    let samples = samples(table)?;
    Ok(Some(Film::H264(Track { timescale, parameters, length_bytes, samples })))
}

fn parameters(setup: &[u8]) -> Option<(usize, Vec<u8>)> {
    let length_bytes = usize::from(setup.get(4)? & 3) + 1;
    let mut units = Vec::new();
    let mut at = 6;
    let mut left = usize::from(setup.get(5)? & 31);
    for kind in 0..2 {
        if kind == 1 {
            left = usize::from(*setup.get(at)?);
            at += 1;
        }
        for _ in 0..left {
            let size = usize::from(u16::from_be_bytes(setup.get(at..at + 2)?.try_into().ok()?));
            units.extend_from_slice(&[0, 0, 0, 1]);
            units.extend_from_slice(setup.get(at + 2..at + 2 + size)?);
            at += 2 + size;
        }
    }
    Some((length_bytes, units))
}

/// A table's entries of `width` numbers each, as many as it says and really has.
fn entries<'a>(
    table: &'a [u8],
    kind: &[u8; 4],
    width: usize,
) -> Option<impl Iterator<Item = &'a [u8]>> {
    let body = child(table, kind)?;
    let count = number(body, 4) as usize;
    Some(body.get(8..)?.chunks_exact(width * 4).take(count))
}

fn samples(table: &[u8]) -> Result<Vec<Sample>, String> {
    let sizes = sizes(table).ok_or("its table of sizes is broken")?;
    let offsets = offsets(table, &sizes).ok_or("its table of places is broken")?;
    let mut samples: Vec<Sample> = sizes
        .iter()
        .zip(offsets)
        .map(|(&size, offset)| Sample { offset, size, shown: 0 })
        .collect();
    let steps = entries(table, b"stts", 2).ok_or("its table of times is broken")?;
    let mut decoded = 0_i64;
    let mut times = steps.flat_map(|e| std::iter::repeat_n(number(e, 4), number(e, 0) as usize));
    let mut shifts = entries(table, b"ctts", 2).map(|shifts| {
        shifts.flat_map(|e| std::iter::repeat_n(number(e, 4) as i32, number(e, 0) as usize))
    });
    let mut step = 0;
    for sample in &mut samples {
        let shift = shifts.as_mut().and_then(Iterator::next).unwrap_or(0);
        sample.shown = decoded.saturating_add(i64::from(shift));
        step = times.next().unwrap_or(step);
        decoded = decoded.saturating_add(i64::from(step));
    }
    let first = samples.iter().map(|s| s.shown).min().unwrap_or(0);
    for sample in &mut samples {
        sample.shown = sample.shown.saturating_sub(first);
    }
    Ok(samples)
}

fn sizes(table: &[u8]) -> Option<Vec<u32>> {
    let body = child(table, b"stsz")?;
    let (same, count) = (number(body, 4), number(body, 8) as usize);
    if same != 0 {
        // H.264 pictures of one size are possible, but more of them than this are a lie.
        return (count < 1 << 20).then(|| vec![same; count]);
    }
    let sizes: Vec<u32> =
        body.get(12..)?.chunks_exact(4).take(count).map(|e| number(e, 0)).collect();
    (sizes.len() == count).then_some(sizes)
}

/// Samples lie in chunks: a table says where each chunk begins, another how many samples the
/// chunks from a number on have.
fn offsets(table: &[u8], sizes: &[u32]) -> Option<Vec<u64>> {
    let narrow = entries(table, b"stco", 1)
        .map(|places| places.map(|e| u64::from(number(e, 0))).collect::<Vec<_>>());
    let wide = || {
        entries(table, b"co64", 2).map(|places| {
            places.map(|e| u64::from(number(e, 0)) << 32 | u64::from(number(e, 4))).collect()
        })
    };
    let chunks = narrow.or_else(wide)?;
    let runs: Vec<(usize, usize)> = entries(table, b"stsc", 3)?
        .map(|e| (number(e, 0) as usize, number(e, 4) as usize))
        .collect();
    let mut offsets = Vec::with_capacity(sizes.len());
    let mut run = 0;
    for (i, &chunk) in chunks.iter().enumerate() {
        while runs.get(run + 1).is_some_and(|&(first, _)| i + 1 >= first) {
            run += 1;
        }
        let mut at = chunk;
        for _ in 0..runs.get(run)?.1 {
            let Some(&size) = sizes.get(offsets.len()) else { return Some(offsets) };
            offsets.push(at);
            at = at.saturating_add(u64::from(size));
        }
    }
    (offsets.len() == sizes.len()).then_some(offsets)
}
