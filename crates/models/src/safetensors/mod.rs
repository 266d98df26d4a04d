//! safetensors: weights from the headers of one file or of all shards, and the model's shape
//! from the `config.json` beside them.
//!
//! A file is a length, a header in JSON, and data. Only the header is read, and only sums and
//! sizes of it are kept. It says where every tensor ends, so a truncated download is recognised.
//! Tensors must follow each other without holes or overlaps, as the format demands.
//!
//! The `safetensors` crate has a check of its own, which is not used: its `read_metadata` wants
//! the whole file in one buffer; of two tensors with one name it keeps the last; it has no limit
//! on tensors or extents and keeps all of the header; and its errors do not name the tensor.

mod config;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::fs;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::{Component, Path, PathBuf};

use plimsoll_machine::files;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};

pub use config::HfConfig;

/// The longest header; the format's own limit is 100 MB, and the largest models have 1 MB.
const LONGEST_HEADER: u64 = 32 << 20;
/// The longest `config.json` or index.
const LONGEST_JSON: u64 = 64 << 20;
const MOST_TENSORS: usize = 1 << 20;

/// Why weights cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SafetensorsError {
    /// The bytes cannot be what a writer meant.
    #[error("not a safetensors file, or a damaged one: {0}")]
    Damaged(String),
    /// The header is whole, and the data is not.
    #[error("the file is truncated: it has {have} of {need} bytes; download it again")]
    Truncated {
        /// Bytes that are there.
        have: u64,
        /// Bytes that the header speaks of.
        need: u64,
    },
    /// A shard, or the file that lists them.
    #[error("{}: {why}", path.display())]
    Part {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// The file cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// All tensors, added up.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SafetensorsTensors {
    /// How many there are.
    pub count: u64,
    /// Bytes and elements by type.
    pub by_type: BTreeMap<String, (u64, u64)>,
    /// The largest one.
    pub largest_bytes: u64,
    /// The bytes of each, in the order of the file.
    pub sizes: Vec<u64>,
    /// The length of all files.
    pub file_bytes: u64,
    /// How many files there are.
    pub files: usize,
}

impl SafetensorsTensors {
    /// Bytes of all of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.by_type.values().fold(0, |sum, (bytes, _)| sum.saturating_add(*bytes))
    }

    fn add(&mut self, other: SafetensorsTensors) {
        self.count += other.count;
        self.files += other.files;
        self.file_bytes = self.file_bytes.saturating_add(other.file_bytes);
        self.largest_bytes = self.largest_bytes.max(other.largest_bytes);
        self.sizes.extend(other.sizes);
        for (kind, (bytes, elements)) in other.by_type {
            let sum = self.by_type.entry(kind).or_default();
            *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(elements));
        }
    }

    /// Reads the header of one file.
    ///
    /// # Errors
    /// When it is no such file, damaged or truncated.
    pub fn read(mut file: impl Read + Seek) -> Result<SafetensorsTensors, SafetensorsError> {
        let length = file.seek(SeekFrom::End(0))?;
        file.seek(SeekFrom::Start(0))?;
        let mut bytes = [0; 8];
        if length < 8 {
            return Err(SafetensorsError::Damaged("it ends within its first number".into()));
        }
        file.read_exact(&mut bytes)?;
        let header = u64::from_le_bytes(bytes);
        if header > LONGEST_HEADER {
            let what = format!("a header of {header} bytes; at most {LONGEST_HEADER} are read");
            return Err(SafetensorsError::Damaged(what));
        }
        if length - 8 < header {
            return Err(SafetensorsError::Truncated { have: length, need: header + 8 });
        }
        let reader = BufReader::new(file.take(header));
        let list: HeaderSums = serde_json::from_reader(reader)
            .map_err(|error| SafetensorsError::Damaged(format!("its header: {error}")))?;
        let (mut tensors, mut places) = (list.tensors, list.places);
        places.sort_unstable();
        let end = check_places(&places)?;
        tensors.sizes = places.iter().map(|(start, stop)| stop - start).collect();
        let need = end
            .checked_add(8 + header)
            .ok_or_else(|| SafetensorsError::Damaged("a file beyond counting".into()))?;
        if need > length {
            return Err(SafetensorsError::Truncated { have: length, need });
        }
        if need < length {
            let what = format!("{} bytes behind its last tensor", length - need);
            return Err(SafetensorsError::Damaged(what));
        }
        tensors.file_bytes = length;
        tensors.files = 1;
        Ok(tensors)
    }
}

/// Reads the weights that a path means: a file, all shards of a model where the file is one of
/// them or lists them, or what is in a folder.
///
/// # Errors
/// When a file is missing, damaged or truncated.
pub fn open(path: &Path) -> Result<(SafetensorsTensors, Option<HfConfig>), SafetensorsError> {
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new("")) };
    let files = match index_of(path, folder)? {
        Some(shards) => shards,
        None if path.is_dir() => vec![only_file(path)?],
        None => vec![path.to_path_buf()],
    };
    let mut tensors = SafetensorsTensors::default();
    for file in files {
        let part = |why: String| SafetensorsError::Part { path: file.clone(), why };
        let opened = files::open(&file).map_err(|error| part(error.to_string()))?;
        tensors.add(SafetensorsTensors::read(opened).map_err(|error| part(error.to_string()))?);
    }
    let config = folder.join("config.json");
    let config = match read_json(&config) {
        Ok(text) => Some(
            HfConfig::parse(&text).map_err(|why| SafetensorsError::Part { path: config, why })?,
        ),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(SafetensorsError::Part { path: config, why: error.to_string() }),
    };
    Ok((tensors, config))
}

fn only_file(folder: &Path) -> Result<PathBuf, SafetensorsError> {
    let mut found: Vec<PathBuf> = fs::read_dir(folder)?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .filter(|path| path.extension().is_some_and(|extension| extension == "safetensors"))
        .take(2)
        .collect();
    let path = folder.to_path_buf();
    match (found.pop(), found.is_empty()) {
        (Some(file), true) => Ok(file),
        (Some(_), false) => {
            let why = "several safetensors files and no index of them; name one".to_string();
            Err(SafetensorsError::Part { path, why })
        }
        (None, _) => Err(SafetensorsError::Part { path, why: "no safetensors file in it".into() }),
    }
}

/// The shards that an index lists, where the path is one, or is a shard beside one.
fn index_of(path: &Path, folder: &Path) -> Result<Option<Vec<PathBuf>>, SafetensorsError> {
    const SUFFIX: &str = ".safetensors.index.json";
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let index = if name.ends_with(SUFFIX) {
        path.to_path_buf()
    } else {
        // model-00001-of-00004.safetensors is listed in model.safetensors.index.json.
        let stem = name.rsplit_once("-of-").and_then(|(front, _)| front.rsplit_once('-'));
        let stem = if path.is_dir() { Some("model") } else { stem.map(|(stem, _)| stem) };
        match stem {
            Some(stem) => folder.join(format!("{stem}{SUFFIX}")),
            None => return Ok(None),
        }
    };
    let part = |why: String| SafetensorsError::Part { path: index.clone(), why };
    let text = match read_json(&index) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound && path.is_dir() => return Ok(None),
        Err(error) => return Err(part(format!("{error}; it lists the shards of the model"))),
    };
    let list: ShardIndex = serde_json::from_str(&text).map_err(|error| part(error.to_string()))?;
    let files: Vec<PathBuf> = list.files.iter().map(|name| folder.join(name)).collect();
    if files.is_empty() {
        return Err(part("it lists no shard".into()));
    }
    Ok(Some(files))
}

fn read_json(path: &Path) -> io::Result<String> {
    let bytes = files::read(path, LONGEST_JSON)?;
    String::from_utf8(bytes).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
}

/// No holes and no overlaps; gives the end of the data.
fn check_places(places: &[(u64, u64)]) -> Result<u64, SafetensorsError> {
    let mut end = 0;
    for &(start, stop) in places {
        if start < end {
            return Err(SafetensorsError::Damaged("tensors that overlap".into()));
        }
        if start > end {
            return Err(SafetensorsError::Damaged("a hole between tensors".into()));
        }
        end = stop;
    }
    Ok(end)
}

/// Bits of an element; `None` for a type that is not known.
#[must_use]
pub fn bits(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" | "C64" => 64,
        "F32" | "I32" | "U32" => 32,
        "F16" | "BF16" | "I16" | "U16" => 16,
        "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "F8_E4M3FNUZ" | "F8_E5M2FNUZ" | "I8" | "U8"
        | "BOOL" => 8,
        "F6_E2M3" | "F6_E3M2" => 6,
        "F4" => 4,
        _ => return None,
    })
}

#[derive(serde::Deserialize)]
struct TensorEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl TensorEntry {
    /// Adds it up, or says what is wrong with it.
    fn count(self, list: &mut HeaderSums) -> Result<(), String> {
        let (start, end) = self.data_offsets;
        let bytes = end.checked_sub(start).ok_or("an end before its start")?;
        if self.shape.len() > 64 {
            return Err("too many extents".into());
        }
        let elements = self.shape.iter().try_fold(1u64, |all, &n| all.checked_mul(n));
        let elements = elements.ok_or("extents beyond counting")?;
        let bits = bits(&self.dtype).ok_or_else(|| format!("the unknown type {:?}", self.dtype))?;
        // Elements smaller than a byte must fill whole bytes.
        let needed = elements.checked_mul(bits).filter(|all| all.is_multiple_of(8));
        if needed.map(|all| all / 8) != Some(bytes) {
            return Err(format!("{bytes} bytes for {elements} elements of {}", self.dtype));
        }
        list.places.push((start, end));
        list.tensors.count += 1;
        list.tensors.largest_bytes = list.tensors.largest_bytes.max(bytes);
        let sum = list.tensors.by_type.entry(self.dtype.to_ascii_lowercase()).or_default();
        *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(elements));
        Ok(())
    }
}

/// A header, summed up while it is read.
#[derive(Default)]
struct HeaderSums {
    tensors: SafetensorsTensors,
    places: Vec<(u64, u64)>,
    names: HashSet<String>,
}

impl<'de> Deserialize<'de> for HeaderSums {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<HeaderSums, D::Error> {
        struct Sum;
        impl<'de> Visitor<'de> for Sum {
            type Value = HeaderSums;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with an entry for each tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<HeaderSums, A::Error> {
                let mut list = HeaderSums::default();
                while let Some(name) = map.next_key::<String>()? {
                    if name == "__metadata__" {
                        // Texts alone, so that nothing in it can be nested.
                        map.next_value::<BTreeMap<String, String>>()?;
                        continue;
                    }
                    if list.places.len() >= MOST_TENSORS {
                        return Err(A::Error::custom(format!("more tensors than {MOST_TENSORS}")));
                    }
                    let entry = map.next_value::<TensorEntry>()?;
                    let short: String = name.chars().take(80).collect();
                    if !list.names.insert(name) {
                        return Err(A::Error::custom(format!("two tensors named {short}")));
                    }
                    entry
                        .count(&mut list)
                        .map_err(|why| A::Error::custom(format!("tensor {short}: {why}")))?;
                }
                Ok(list)
            }
        }
        deserializer.deserialize_map(Sum)
    }
}

/// The files that an index names.
struct ShardIndex {
    files: BTreeSet<String>,
}

impl<'de> Deserialize<'de> for ShardIndex {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ShardIndex, D::Error> {
        #[derive(serde::Deserialize)]
        struct IndexFile {
            weight_map: BTreeMap<String, String>,
        }
        let whole = IndexFile::deserialize(deserializer)?;
        let files: BTreeSet<String> = whole.weight_map.into_values().collect();
        // An index names files in its own folder, and none elsewhere.
        let elsewhere = |name: &&String| {
            Path::new(name).components().any(|part| !matches!(part, Component::Normal(_)))
        };
        if let Some(name) = files.iter().find(elsewhere) {
            return Err(D::Error::custom(format!("the shard {name:?} is outside of the folder")));
        }
        Ok(ShardIndex { files })
    }
}

#[cfg(test)]
mod tests;
