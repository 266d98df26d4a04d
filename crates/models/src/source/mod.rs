//! Model files: which one is meant, what is in it, and what it says of itself.
//!
//! Every engine gets the same [`ModelSource`], and [`ModelInfo`] comes from our own reader of the
//! ONNX header. Asking each engine for names and shapes would be shorter and wrong: rten keeps no
//! metadata of ONNX files, and two engines that differ in what they say of one file would make
//! two reports that cannot be compared.

mod info;

use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::graph::GraphOptions;
use crate::onnx::{OnnxError, OnnxGraph, OnnxHeader};
use crate::pt;
use crate::{ModelError, ModelResult};

pub use info::ModelInfo;

/// The largest model file that is read: a protobuf message cannot be larger than 2 GiB.
const LARGEST: u64 = 1 << 31;

/// The extensions that weights are looked for under, the preferred one first.
pub const WEIGHTS: [&str; 3] = ["engine", "onnx", "pt"];

/// Where a model comes from.
#[derive(Clone)]
#[non_exhaustive]
pub enum ModelSource {
    /// A file, or the stem of one: `yolo11n` stands for `yolo11n.engine`, `.onnx` or `.pt`.
    Path(PathBuf),
    /// An ONNX file in memory, with a name for reports.
    Bytes {
        /// What reports call it.
        name: String,
        /// The file's contents.
        bytes: Arc<[u8]>,
    },
}

impl ModelSource {
    /// A file or a stem.
    pub fn path(path: impl Into<PathBuf>) -> ModelSource {
        ModelSource::Path(path.into())
    }

    /// An ONNX file in memory.
    pub fn bytes(name: impl Into<String>, bytes: impl Into<Arc<[u8]>>) -> ModelSource {
        ModelSource::Bytes { name: name.into(), bytes: bytes.into() }
    }

    /// What reports call it.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            ModelSource::Path(path) => path.display().to_string(),
            ModelSource::Bytes { name, .. } => name.clone(),
        }
    }

    /// Reads the model and its header. A stem is resolved, and a format that no engine
    /// here reads is refused by name. A checkpoint becomes a graph for images of 640x640.
    ///
    /// # Errors
    /// [`ModelError`] when there is no such file, it is too large, of another format, or
    /// not an ONNX file at all.
    pub fn read(&self) -> ModelResult<Model> {
        self.read_for(GraphOptions::default().size)
    }

    /// The same, where a checkpoint becomes a graph for images of this many rows and columns.
    ///
    /// # Errors
    /// Those of [`ModelSource::read`], and what is wrong with a checkpoint.
    pub fn read_for(&self, size: (usize, usize)) -> ModelResult<Model> {
        let (name, file) = match self {
            ModelSource::Bytes { name, bytes } => (name.clone(), Arc::clone(bytes)),
            ModelSource::Path(path) => {
                let path = find_weights(path)?;
                refuse_engines(&path)?;
                (path.display().to_string(), read_file(&path)?.into())
            }
        };
        let refuse = |why: String| ModelError { model: name.clone(), why };
        let length = file.len() as u64;
        let bytes = match is_checkpoint(&name, &file) {
            true => pt::to_onnx(&file, &GraphOptions::sized(size))
                .map_err(|why| refuse(why.to_string()))?
                .into(),
            false => file,
        };
        let header = OnnxHeader::parse(&bytes).map_err(|why| refuse(why.to_string()))?;
        Ok(Model { info: info::from_header(header, name, length), bytes })
    }

    /// Whether it can run at a size that is asked for, as far as a graph's header tells. A
    /// checkpoint takes any size, and an engine tells when it is loaded.
    ///
    /// # Errors
    /// [`ModelError`] where its graph has another size. What else is wrong with the file is for
    /// those to say who load it.
    pub fn check_size(&self, size: (usize, usize)) -> ModelResult<()> {
        let first = self.candidates().ok().and_then(|all| all.into_iter().next());
        let graph =
            first.filter(|first| !first.is_engine()).and_then(|first| first.read_for(size).ok());
        graph.map_or(Ok(()), |model| model.info.check_size(Some(size)))
    }

    /// Looks whether there is such a file and its header can be read, before anything is loaded.
    /// Weights are not read: a process that is measured later must not have held them. Of an
    /// engine of TensorRT, whose form only TensorRT knows, only that it is there.
    ///
    /// # Errors
    /// [`ModelError`] when there is no such file, or it is damaged or of another format.
    pub fn check(&self) -> ModelResult<()> {
        self.files().iter().try_for_each(|path| check_header(path))?;
        self.candidates().map(drop)
    }

    /// The files that it may stand for; none of what is in memory.
    #[must_use]
    pub fn files(&self) -> Vec<PathBuf> {
        match self {
            ModelSource::Path(path) => find_all_weights(path).unwrap_or_default(),
            ModelSource::Bytes { .. } => Vec::new(),
        }
    }

    /// The bytes of the file, whatever is in it.
    ///
    /// # Errors
    /// [`ModelError`] when there is no such file or it is too large.
    pub fn read_raw(&self) -> ModelResult<Arc<[u8]>> {
        match self {
            ModelSource::Bytes { bytes, .. } => Ok(Arc::clone(bytes)),
            ModelSource::Path(path) => Ok(read_file(&find_weights(path)?)?.into()),
        }
    }

    /// The files that it may stand for, the preferred one first: several where a stem has
    /// several.
    pub fn candidates(&self) -> ModelResult<Vec<ModelSource>> {
        match self {
            ModelSource::Bytes { .. } => Ok(vec![self.clone()]),
            ModelSource::Path(path) => {
                let found = find_all_weights(path)?;
                Ok(found.into_iter().map(ModelSource::Path).collect())
            }
        }
    }

    /// Whether it is an engine of TensorRT, by its name.
    pub fn is_engine(&self) -> bool {
        matches!(self, ModelSource::Path(path) if is_engine(path))
    }
}

fn is_engine(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "engine" || extension == "plan")
}

/// By its name, or by the zip file that it begins with, as no ONNX file does.
fn is_checkpoint(name: &str, file: &[u8]) -> bool {
    let extension = Path::new(name).extension().and_then(|extension| extension.to_str());
    matches!(extension, Some("pt" | "pth")) || file.starts_with(b"PK\x03\x04")
}

impl fmt::Debug for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelSource::Path(path) => f.debug_tuple("Path").field(path).finish(),
            ModelSource::Bytes { name, bytes } => {
                f.debug_struct("Bytes").field("name", name).field("len", &bytes.len()).finish()
            }
        }
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> Self {
        ModelSource::Path(path)
    }
}

impl From<&Path> for ModelSource {
    fn from(path: &Path) -> Self {
        ModelSource::Path(path.to_path_buf())
    }
}

/// A model file that was read, with what it says of itself.
#[derive(Clone)]
#[non_exhaustive]
pub struct Model {
    /// What it says of itself.
    pub info: ModelInfo,
    /// The file's contents.
    pub bytes: Arc<[u8]>,
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model").field("info", &self.info).finish_non_exhaustive()
    }
}

/// What a graph holds beyond its header is for those to judge who load it.
fn check_header(path: &Path) -> ModelResult<()> {
    let refuse = |why: String| Err(ModelError { model: path.display().to_string(), why });
    let file = match plimsoll_machine::files::open(path) {
        Ok(file) => file,
        Err(error) => return refuse(error.to_string()),
    };
    let mut start = Vec::new();
    if let Err(error) = (&file).take(4).read_to_end(&mut start) {
        return refuse(error.to_string());
    }
    if is_engine(path) {
        return Ok(());
    }
    if is_checkpoint(&path.display().to_string(), &start) {
        let outline = pt::outline(file, &GraphOptions::default());
        return outline.map(drop).or_else(|why| refuse(why.to_string()));
    }
    match OnnxGraph::open(path) {
        Ok(_) | Err(OnnxError::Wrong(_) | OnnxError::TooMuch { .. }) => Ok(()),
        Err(why) => refuse(why.to_string()),
    }
}

/// The file that a path or a stem stands for: the path itself where it is a file, else
/// the first of `.engine`, `.onnx` and `.pt` that exists beside it.
///
/// # Errors
/// [`ModelError`] that names every file that was looked for.
pub fn find_weights(stem: &Path) -> ModelResult<PathBuf> {
    find_all_weights(stem).map(|mut found| found.swap_remove(0))
}

/// All of them, at least one.
fn find_all_weights(stem: &Path) -> ModelResult<Vec<PathBuf>> {
    if stem.is_file() {
        return Ok(vec![stem.to_path_buf()]);
    }
    let known = stem.extension().is_some_and(|ext| WEIGHTS.iter().any(|&known| ext == known));
    let mut tried = vec![stem.display().to_string()];
    let mut found = Vec::new();
    if !known {
        for extension in WEIGHTS {
            // Appended, not replaced: the stem of `v1.2` is `v1.2`, not `v1`.
            let mut name = stem.as_os_str().to_os_string();
            name.push(".");
            name.push(extension);
            let path = PathBuf::from(name);
            tried.push(path.display().to_string());
            found.extend(path.is_file().then_some(path));
        }
    }
    if !found.is_empty() {
        return Ok(found);
    }
    let why = match stem.exists() {
        true => "no regular file".to_string(),
        false => format!("no such file; looked for {}", tried.join(", ")),
    };
    Err(ModelError { model: stem.display().to_string(), why })
}

/// An engine holds no graph that others could run.
fn refuse_engines(path: &Path) -> ModelResult<()> {
    if !is_engine(path) {
        return Ok(());
    }
    Err(ModelError {
        model: path.display().to_string(),
        why: "an engine of TensorRT, which nothing but `--engine tensorrt` runs; give the .onnx \
              or .pt file that it was built from"
            .into(),
    })
}

fn read_file(path: &Path) -> ModelResult<Vec<u8>> {
    let refuse = |why: String| ModelError { model: path.display().to_string(), why };
    let size = fs::metadata(path).map_err(|error| refuse(error.to_string()))?.len();
    if size > LARGEST {
        return Err(refuse(format!("{size} bytes; files of at most {LARGEST} are read")));
    }
    plimsoll_machine::files::read(path, LARGEST).map_err(|error| refuse(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stem_prefers_engine_then_onnx_then_pt() {
        let dir = tempfile::tempdir().expect("a directory");
        let stem = dir.path().join("yolo11n.v2");
        let error = find_weights(&stem).expect_err("nothing there").to_string();
        for extension in WEIGHTS {
            assert!(error.contains(&format!("yolo11n.v2.{extension}")), "{error}");
        }
        for extension in ["pt", "onnx", "engine"] {
            let path = dir.path().join(format!("yolo11n.v2.{extension}"));
            fs::write(&path, b"x").expect("written");
            assert_eq!(find_weights(&stem).expect("found"), path);
        }
        let named = dir.path().join("yolo11n.v2.pt");
        assert_eq!(find_weights(&named).expect("found"), named, "a full name is taken as it is");
    }

    #[test]
    fn a_full_name_that_is_missing_is_not_taken_for_a_stem() {
        let error = find_weights(Path::new("nowhere/a.onnx")).expect_err("missing").to_string();
        assert!(!error.contains(".onnx.pt"), "{error}");
    }

    #[test]
    fn what_is_no_graph_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().expect("a directory");
        for (file, word) in [("a.pt", "checkpoint"), ("a.engine", "TensorRT")] {
            let path = dir.path().join(file);
            fs::write(&path, b"x").expect("written");
            let error = ModelSource::path(path).read().expect_err("refused").to_string();
            assert!(error.contains(word), "{error}");
        }
    }
}
