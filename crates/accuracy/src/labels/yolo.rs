//! YOLO's data.yaml: the names of the classes, and where pictures and text files are.
//!
//! A text file stands beside its picture, or in a folder `labels` where the picture's path has
//! `images`. A picture without one is a picture with nothing in it, as in Ultralytics.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use super::yaml::{self, YamlNode};
use super::yolo_line::{self, YoloRows};
use super::{ImagePlace, LabelledImage, LabelsError};
use crate::object::LabelClass;

/// The parts of a data set, in the order in which a picture is looked for.
const SPLITS: [&str; 3] = ["val", "test", "train"];
/// The largest text file, and list of pictures.
const LARGEST_TEXT: u64 = 64 << 20;
/// The most classes.
const MOST_CLASSES: usize = 1 << 20;

/// What data.yaml says.
#[derive(Debug, PartialEq)]
pub(super) struct DataYaml {
    pub(super) names: Vec<String>,
    keypoints: Option<[usize; 2]>,
    root: Option<String>,
    /// Folders, or text files with names of pictures.
    places: Vec<String>,
}

impl DataYaml {
    pub(super) fn parse(text: &str) -> Result<DataYaml, LabelsError> {
        let data = yaml::parse(text)?;
        let wrong = |key: &str, why: &str| LabelsError::new(format!("key {key}"), why);
        let names = data.get("names").and_then(names).ok_or_else(|| {
            wrong("names", "it must be a list of the classes' names, or a map from 0 on")
        })?;
        let keypoints =
            match data.get("kpt_shape") {
                None => None,
                Some(shape) => Some(keypoints(shape).ok_or_else(|| {
                    wrong("kpt_shape", "it must be [number of keypoints, 2 or 3]")
                })?),
            };
        let mut places = Vec::new();
        for value in SPLITS.iter().filter_map(|split| data.get(split)) {
            match value {
                YamlNode::Text(place) => places.push(place.clone()),
                YamlNode::List(all) => {
                    places.extend(all.iter().filter_map(|place| place.text().map(str::to_owned)));
                }
                YamlNode::Map(_) => {}
            }
        }
        places.retain(|place| !place.is_empty() && place != "null" && place != "~");
        let root = data.get("path").and_then(YamlNode::text).map(str::to_owned);
        Ok(DataYaml { names, keypoints, root, places })
    }
}

/// Names as a list, or as a map from their numbers.
fn names(value: &YamlNode) -> Option<Vec<String>> {
    let text = |node: &YamlNode| node.text().map(str::to_owned);
    match value {
        YamlNode::Text(_) => None,
        YamlNode::List(list) => list.iter().map(text).collect(),
        YamlNode::Map(pairs) => {
            let mut all = vec![None; pairs.len().min(MOST_CLASSES)];
            for (key, name) in pairs {
                let at: usize = key.parse().ok()?;
                *all.get_mut(at)? = Some(text(name)?);
            }
            all.into_iter().collect()
        }
    }
}

fn keypoints(shape: &YamlNode) -> Option<[usize; 2]> {
    let YamlNode::List(list) = shape else { return None };
    let numbers: Option<Vec<usize>> =
        list.iter().map(|node| node.text().and_then(|text| text.trim().parse().ok())).collect();
    match numbers?.as_slice() {
        &[count @ 1..=1000, dims @ 2..=3] => Some([count, dims]),
        _ => None,
    }
}

/// Where text files are.
#[derive(Debug)]
enum YoloPlace {
    /// In a folder; the pictures are in another, or the same.
    Folder { pictures: PathBuf, texts: PathBuf },
    /// By the name of the picture without its ending.
    Listed(HashMap<String, PathBuf>),
}

/// The labels of a YOLO data set.
#[derive(Debug)]
pub(super) struct YoloLabels {
    rows: YoloRows,
    places: Vec<YoloPlace>,
}

impl YoloLabels {
    pub(super) fn parse(
        bytes: &[u8],
        path: &Path,
        frames: Option<&Path>,
    ) -> Result<(Vec<LabelClass>, YoloLabels), LabelsError> {
        let wrong = |why: &str| LabelsError::new("", why).of(path);
        let text = std::str::from_utf8(bytes).map_err(|_| wrong("it is not text (UTF-8)"))?;
        let data = DataYaml::parse(text).map_err(|error| error.of(path))?;
        let mut places = Vec::new();
        for place in &data.places {
            let Some(found) = existing(path, data.root.as_deref(), place) else { continue };
            places.push(YoloPlace::at(&found)?);
        }
        if places.is_empty() {
            let listed = data.places.join(", ");
            let why = format!("none of its folders exists: {listed}; set `path` to their folder");
            return Err(wrong(&why));
        }
        let same = |a: &Path, b: &Path| match (a.canonicalize(), b.canonicalize()) {
            (Ok(a), Ok(b)) => a == b,
            _ => false,
        };
        places.sort_by_key(|place| match (place, frames) {
            (YoloPlace::Folder { pictures, .. }, Some(frames)) => !same(pictures, frames),
            _ => true,
        });
        let rows = YoloRows { classes: data.names.len(), keypoints: data.keypoints };
        let classes = data.names.into_iter().zip(0..).map(|(name, id)| LabelClass { id, name });
        Ok((classes.collect(), YoloLabels { rows, places }))
    }

    pub(super) fn find(&self, file: &str) -> Option<ImagePlace> {
        let stem = stem(file);
        let text = self.places.iter().find_map(|place| match place {
            YoloPlace::Folder { texts, .. } => {
                Some(texts.join(format!("{stem}.txt"))).filter(|text| text.is_file())
            }
            YoloPlace::Listed(all) => all.get(stem).filter(|text| text.is_file()).cloned(),
        });
        let empty = || {
            self.places.iter().find_map(|place| match place {
                YoloPlace::Folder { pictures, .. } => {
                    Some(pictures.join(file)).filter(|picture| picture.is_file())
                }
                YoloPlace::Listed(all) => all.get(stem).cloned(),
            })
        };
        text.map(ImagePlace::Text).or_else(|| empty().map(ImagePlace::Empty))
    }

    pub(super) fn image(
        &self,
        file: &Path,
        size: (u32, u32),
    ) -> Result<LabelledImage, LabelsError> {
        let text = read_text(file)?;
        let objects =
            yolo_line::objects(&text, &self.rows, size).map_err(|error| error.of(file))?;
        Ok(LabelledImage { id: None, objects })
    }
}

impl YoloPlace {
    /// A folder of pictures, or a list of pictures.
    fn at(found: &Path) -> Result<YoloPlace, LabelsError> {
        if found.is_dir() {
            let texts = beside(found);
            return Ok(YoloPlace::Folder { pictures: found.to_path_buf(), texts });
        }
        let folder = found.parent().unwrap_or(Path::new(""));
        let listed = read_text(found)?;
        let entries = listed.lines().map(str::trim).filter(|line| !line.is_empty()).map(|line| {
            let picture = folder.join(line.strip_prefix("./").unwrap_or(line));
            let name = picture.file_name().map(|name| name.to_string_lossy().into_owned());
            let stem = stem(name.as_deref().unwrap_or_default()).to_owned();
            let texts = beside(picture.parent().unwrap_or(Path::new("")));
            (stem.clone(), texts.join(format!("{stem}.txt")))
        });
        Ok(YoloPlace::Listed(entries.collect()))
    }
}

/// The first place that exists: from the file's folder or the current one, below `path` or not.
fn existing(yaml: &Path, root: Option<&str>, place: &str) -> Option<PathBuf> {
    let folder = yaml.parent().unwrap_or(Path::new(""));
    let mut roots = Vec::new();
    if let Some(root) = root {
        roots.extend([folder.join(root), PathBuf::from(root)]);
    }
    roots.push(folder.to_path_buf());
    // Some exporters write `../` for a folder beside the file.
    let places = [Some(place), place.strip_prefix("../")];
    let all = roots.iter().flat_map(|root| places.iter().flatten().map(move |at| root.join(at)));
    all.into_iter().find(|path| path.exists())
}

/// The folder of the text files for a folder of pictures: the last `images` of the path becomes
/// `labels`.
fn beside(pictures: &Path) -> PathBuf {
    let parts: Vec<Component<'_>> = pictures.components().collect();
    match parts.iter().rposition(|part| part.as_os_str() == "images") {
        None => pictures.to_path_buf(),
        Some(at) => {
            let before: PathBuf = parts[..at].iter().collect();
            parts[at + 1..].iter().fold(before.join("labels"), |path, part| path.join(part))
        }
    }
}

fn stem(file: &str) -> &str {
    file.rsplit_once('.').map_or(file, |(stem, _)| stem)
}

fn read_text(path: &Path) -> Result<String, LabelsError> {
    let bytes = plimsoll_machine::files::read(path, LARGEST_TEXT)
        .map_err(|error| LabelsError::new("", error.to_string()).of(path))?;
    String::from_utf8(bytes).map_err(|_| LabelsError::new("", "it is not text (UTF-8)").of(path))
}
