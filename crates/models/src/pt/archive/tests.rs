//! Valid zip files, and forged ones.

use std::io::Write;

use flate2::write::DeflateEncoder;
use flate2::{Compression, Crc};

use super::*;

fn crc(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

/// One entry of a zip file to be written.
#[derive(Clone)]
pub(in super::super) struct Part {
    pub(in super::super) name: String,
    pub(in super::super) data: Vec<u8>,
    pub(in super::super) deflate: bool,
}

/// A zip file with these entries.
pub(in super::super) fn write(parts: &[Part]) -> Vec<u8> {
    let (mut file, mut directory) = (Vec::new(), Vec::new());
    for part in parts {
        let offset = file.len() as u32;
        let packed = match part.deflate {
            true => {
                let mut encoder = DeflateEncoder::new(Vec::new(), Compression::fast());
                encoder.write_all(&part.data).unwrap();
                encoder.finish().unwrap()
            }
            false => part.data.clone(),
        };
        let method: u16 = if part.deflate { 8 } else { 0 };
        let mut common = Vec::new();
        common.extend_from_slice(&[20, 0, 0, 8]);
        common.extend_from_slice(&method.to_le_bytes());
        common.extend_from_slice(&[0; 4]);
        for number in [crc(&part.data), packed.len() as u32, part.data.len() as u32] {
            common.extend_from_slice(&number.to_le_bytes());
        }
        common.extend_from_slice(&(part.name.len() as u16).to_le_bytes());
        common.extend_from_slice(&[0, 0]);
        file.extend_from_slice(b"PK\x03\x04");
        file.extend_from_slice(&common);
        file.extend_from_slice(part.name.as_bytes());
        file.extend_from_slice(&packed);
        directory.extend_from_slice(b"PK\x01\x02\x14\x00");
        directory.extend_from_slice(&common);
        directory.extend_from_slice(&[0; 10]);
        directory.extend_from_slice(&offset.to_le_bytes());
        directory.extend_from_slice(part.name.as_bytes());
    }
    let start = file.len() as u32;
    file.extend_from_slice(&directory);
    let count = (parts.len() as u16).to_le_bytes();
    file.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    file.extend_from_slice(&[count, count].concat());
    file.extend_from_slice(&(directory.len() as u32).to_le_bytes());
    file.extend_from_slice(&start.to_le_bytes());
    file.extend_from_slice(&[0, 0]);
    file
}

pub(in super::super) fn part(name: &str, data: &[u8]) -> Part {
    Part { name: name.into(), data: data.into(), deflate: false }
}

fn two() -> Vec<u8> {
    write(&[part("a/one", b"first"), part("a/two", b"second")])
}

fn patched(mut file: Vec<u8>, signature: &[u8; 4], at: usize, bytes: &[u8]) -> Vec<u8> {
    let place = file.windows(4).rposition(|window| window == signature).unwrap();
    file[place + at..place + at + bytes.len()].copy_from_slice(bytes);
    file
}

fn why(file: &[u8]) -> String {
    let source = CheckpointFile::Memory(file);
    let archive = match CheckpointArchive::open(&source) {
        Ok(archive) => archive,
        Err(why) => return why.into_owned(),
    };
    let names: Vec<&str> = archive.names().collect();
    let failed = names.into_iter().find_map(|name| archive.read(name).unwrap().err());
    failed.map_or_else(|| "nothing is wrong".into(), Cow::into_owned)
}

#[test]
fn entries_are_read_stored_or_packed() {
    let mut packed = part("a/packed", &[7; 5000]);
    packed.deflate = true;
    let file = write(&[part("a/one", b"first"), packed, part("a/none", b"")]);
    let source = CheckpointFile::Memory(&file);
    let archive = CheckpointArchive::open(&source).unwrap();
    assert_eq!(&*archive.read("a/one").unwrap().unwrap(), b"first");
    assert_eq!(&*archive.read("a/packed").unwrap().unwrap(), [7; 5000]);
    assert_eq!(&*archive.read("a/packed").unwrap().unwrap(), [7; 5000], "a second time");
    assert!(archive.read("a/none").unwrap().unwrap().is_empty());
    assert!(archive.read("a/other").is_none());
    let mut on_disk = tempfile::tempfile().unwrap();
    on_disk.write_all(&file).unwrap();
    let on_disk = CheckpointFile::disk(on_disk).unwrap();
    let other = CheckpointArchive::open(&on_disk).unwrap();
    for name in archive.names() {
        assert_eq!(*other.read(name).unwrap().unwrap(), *archive.read(name).unwrap().unwrap());
        assert_eq!(other.size(name), archive.size(name));
    }
    assert_eq!(other.names().count(), archive.names().count());
    let mut remark = file.clone();
    let end = remark.len();
    remark[end - 2] = 3;
    remark.extend_from_slice(b"PK!");
    assert_eq!(why(&remark), "nothing is wrong");
}

#[test]
fn wide_offsets_are_read() {
    let file = two();
    // The same end, written wide: the record, its locator, the narrow record full of ones.
    let (body, end) = file.split_at(file.len() - 22);
    let number = |at: usize| u64::from(u32::from_le_bytes(end[at..at + 4].try_into().unwrap()));
    let mut wide = body.to_vec();
    let record = wide.len() as u64;
    wide.extend_from_slice(b"PK\x06\x06");
    for value in [44, 0, 0, 2, 2, number(12), number(16)] {
        match value {
            44 => wide.extend_from_slice(&44u64.to_le_bytes()),
            0 if wide.len() as u64 == record + 12 => wide.extend_from_slice(&[0; 4]),
            0 => wide.extend_from_slice(&[0; 8]),
            value => wide.extend_from_slice(&value.to_le_bytes()),
        }
    }
    wide.extend_from_slice(b"PK\x06\x07\0\0\0\0");
    wide.extend_from_slice(&record.to_le_bytes());
    wide.extend_from_slice(&[1, 0, 0, 0]);
    wide.extend_from_slice(b"PK\x05\x06\0\0\0\0");
    wide.extend_from_slice(&[0xff; 12]);
    wide.extend_from_slice(&[0, 0]);
    let source = CheckpointFile::Memory(&wide);
    let archive = CheckpointArchive::open(&source).unwrap();
    assert_eq!(&*archive.read("a/two").unwrap().unwrap(), b"second");
}

#[test]
fn tricks_are_refused_by_name() {
    for (file, word) in [
        (Vec::new(), "too short"),
        (vec![0; 100], "no zip directory"),
        (patched(two(), b"PK\x01\x02", 8, &[1]), "encrypted"),
        (patched(two(), b"PK\x01\x02", 10, &[9]), "packed in a way"),
        (patched(two(), b"PK\x01\x02", 16, &[0; 4]), "checksum"),
        (patched(two(), b"PK\x01\x02", 20, &[0xf0; 4]), "past the end"),
        (patched(two(), b"PK\x01\x02", 24, &[0xf0; 4]), "cannot be"),
        (patched(two(), b"PK\x01\x02", 42, &[0; 4]), "not where the directory says"),
        (patched(two(), b"PK\x05\x06", 8, &[0xfe; 4]), "entries"),
        (patched(two(), b"PK\x05\x06", 16, &[0xf0; 4]), "outside the file"),
        (patched(two(), b"PK\x05\x06", 4, &[1]), "in several"),
        (write(&[part("a", b"1"), part("a", b"2")]), "two entries"),
    ] {
        let why = why(&file);
        assert!(why.contains(word), "{word}: {why}");
    }
}

#[test]
fn entries_over_each_other_are_refused() {
    // The first entry is made to reach over the second one's header.
    let mut file = two();
    let central = file.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    file[central + 20] = 12;
    file[central + 24] = 12;
    assert!(why(&file).contains("over each other"), "{}", why(&file));
}

#[test]
fn what_unpacks_without_end_is_refused_before_it_does() {
    let mut bomb = part("a/bomb", &vec![0; 80 << 20]);
    bomb.deflate = true;
    assert!(why(&write(&[bomb])).contains("too large"));
    // A size that is not the true one.
    let mut short = part("a/short", &[1; 5000]);
    short.deflate = true;
    let file = patched(write(&[short]), b"PK\x01\x02", 24, &4999u32.to_le_bytes());
    assert!(why(&file).contains("cannot be unpacked"), "{}", why(&file));
}

#[test]
fn other_end_records_are_not_tried() {
    // A directory whose last entry is damaged, with many end records before it that lead back
    // to it: a reader that tries each of them takes minutes.
    let many: Vec<Part> = (0..5000).map(|n| part(&format!("a/{n}"), b"")).collect();
    let file = patched(write(&many), b"PK\x01\x02", 0, b"PK??");
    let end = file[file.len() - 22..].to_vec();
    let mut repeated = file.clone();
    repeated.extend(end.repeat(20_000));
    let begun = std::time::Instant::now();
    assert!(why(&repeated).contains("directory"), "{}", why(&repeated));
    assert!(begun.elapsed().as_secs() < 20, "{:?}", begun.elapsed());
    // One in the comment would be taken before the true one.
    let mut remark = two();
    let at = remark.len() - 2;
    remark[at] = 22;
    remark.extend_from_slice(&end);
    assert!(why(&remark).contains("directory"), "{}", why(&remark));
}
