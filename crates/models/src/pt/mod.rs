//! PyTorch checkpoints without Python.
//!
//! What Ultralytics saves is a zip file (`archive`) with a pickle in it that describes the
//! network, module by module, and a file of numbers for each storage of tensors
//! (`storage`). The pickle is read as data: names of classes are compared with those we
//! know, and nothing is ever imported or called. A name that no honest checkpoint has is
//! an error that says so (`allowed_names`).
//!
//! [`to_onnx`] is the whole way: from the bytes of a .pt file to the bytes of an ONNX
//! file, which any engine runs. The second half, from modules to nodes, is
//! [`super::graph`].
//!
//! As Ultralytics does, the averaged weights (`ema`) are taken where the file has them,
//! and all numbers become f32 before anything is computed with them.

mod allowed_names;
mod archive;
mod dtype;
mod file;
mod module;
mod storage;

use std::collections::{BTreeMap, HashSet};
use std::fs::File;

use crate::pickle::{Pickle, PickleLimits, PicklePairs, PickleRef, PickleValue, Policy};

pub(crate) use module::{PtModule, number};
pub(crate) use storage::Array;

use self::archive::CheckpointArchive;
use self::file::CheckpointFile;
use self::module::find;
use self::storage::{Storages, WeightData};
use super::graph::{self, GraphOptions};

/// The largest pickle: YOLO11x has 0.6 MB.
const LARGEST_PICKLE: usize = 64 << 20;
/// The most that is made from a pickle: about 250 MB. YOLO11x has a tenth of the values.
const LIMITS: PickleLimits =
    PickleLimits { nodes: 1 << 21, items: 1 << 23, memo: 1 << 21, stack: 1 << 20 };
/// The most classes.
pub(crate) const MOST_NAMES: usize = 65_536;

/// The classes of networks whose layers are read.
const MODELS: [&str; 6] = [
    "DetectionModel",
    "SegmentationModel",
    "PoseModel",
    "OBBModel",
    "ClassificationModel",
    "RTDETRDetectionModel",
];

/// The tasks of those.
const TASKS: [&str; 5] = ["detect", "segment", "pose", "obb", "classify"];

const LEGACY: &str = "it is in PyTorch's format from before 1.6; open it in a newer PyTorch and \
                      save it again";
const TORCHSCRIPT: &str = "it is TorchScript, a program rather than a tree of modules; give the \
                           checkpoint that it was made from, or export that with Ultralytics \
                           (`yolo export format=onnx`) and give the .onnx file";

pub(crate) type PtResult<T> = Result<T, PtError>;

/// Why a checkpoint was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PtError {
    /// The file is broken, or was made to look like one.
    #[error("not a PyTorch checkpoint, or a damaged one: {0}")]
    Damaged(String),
    /// PyTorch wrote it, in a form that has no tree of modules to read.
    #[error("{0}")]
    Form(String),
    /// The file names something that no honest checkpoint does.
    #[error(
        "it names {0}, which Python would import or call on opening it; nothing of it was run \
         here. No checkpoint of Ultralytics has that: do not open this file in Python unless \
         you trust its author"
    )]
    ForeignName(String),
    /// A module that is not known yet.
    #[error(
        "the module {module} at {} is not supported yet; export it with Ultralytics \
         (`yolo export format=onnx`) and give the .onnx file",
        if place.is_empty() { "the root of the tree" } else { place }
    )]
    Unsupported {
        /// Its class.
        module: String,
        /// Where in the tree it is.
        place: String,
    },
    /// A network for something else.
    #[error("it is for the task `{0}`; detect, segment, pose, obb and classify are read here")]
    Task(String),
    /// Something in the network is not as it should be.
    #[error("{}: {why}", if place.is_empty() { "the network" } else { place })]
    Odd {
        /// Where in the tree.
        place: String,
        /// What is wrong.
        why: String,
    },
    /// WeightData, but no network.
    #[error("{0}")]
    NoModel(String),
    /// More numbers or modules than a file of its size has.
    #[error("it describes far more numbers or modules than a file of its size holds")]
    TooLarge,
    /// The options do not fit the network.
    #[error("{0}")]
    Options(String),
}

/// What a checkpoint says of itself, beside its modules.
#[derive(Debug, Default)]
pub(crate) struct About {
    /// The names of its classes, by number.
    pub(crate) names: BTreeMap<u32, String>,
    /// `version`, `license`, `docs` and `date`, as far as they are there.
    pub(crate) texts: BTreeMap<&'static str, String>,
    /// The shape that it was built from: `yolo11n.yaml`.
    pub(crate) shape: Option<String>,
    /// Channels of the image.
    pub(crate) channels: usize,
}

/// Turns the bytes of a .pt file into those of an ONNX file.
///
/// ```no_run
/// use plimsoll_models::{GraphOptions, pt};
///
/// let checkpoint = std::fs::read("yolo11n.pt")?;
/// let onnx = pt::to_onnx(&checkpoint, &GraphOptions::default())?;
/// std::fs::write("yolo11n.onnx", onnx)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`PtError`], which names the module and its place, or what a hostile file tried.
pub fn to_onnx(file: &[u8], options: &GraphOptions) -> PtResult<Vec<u8>> {
    read(&CheckpointFile::Memory(file), WeightData::All, |pickle, storages| {
        convert(pickle, storages, options)
    })
}

/// What a checkpoint has, without what is in its weights.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outline {
    /// A network, as an ONNX file whose weights have shapes alone.
    Graph(Vec<u8>),
    /// Weights without a network: bytes and elements by type.
    Weights(BTreeMap<&'static str, (u64, u64)>),
}

/// The same graph without what is in its weights, of which only shapes are needed to tell what
/// it takes: of the file the directory and the pickle are read, and numbers that are few.
///
/// # Errors
/// As [`to_onnx`]; checksums of weights are not looked at.
pub(crate) fn outline(file: File, options: &GraphOptions) -> PtResult<Outline> {
    let source = CheckpointFile::disk(file).map_err(|why| PtError::Damaged(why.to_string()))?;
    read(&source, WeightData::Few, |pickle, storages| match convert(pickle, storages, options) {
        Err(PtError::NoModel(why)) => {
            let weights = weights(pickle.root(), storages);
            weights.map(Outline::Weights).ok_or(PtError::NoModel(why))
        }
        result => result.map(Outline::Graph),
    })
}

/// The tensors of a state_dict, or of one among other things; each storage counts once.
fn weights(
    root: PickleRef<'_>,
    storages: &Storages<'_>,
) -> Option<BTreeMap<&'static str, (u64, u64)>> {
    let (mut seen, mut sums) = (HashSet::new(), BTreeMap::<_, (u64, u64)>::new());
    for (_, value) in state_dict(root)? {
        let Some((key, kind, bytes, elements)) = storages.stored(value) else { continue };
        if seen.insert(key) {
            let sum = sums.entry(kind).or_default();
            *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(elements));
        }
    }
    (!sums.is_empty()).then_some(sums)
}

fn read<T>(
    file: &CheckpointFile<'_>,
    weights: WeightData,
    then: impl FnOnce(&Pickle<'_>, &Storages<'_>) -> PtResult<T>,
) -> PtResult<T> {
    let damaged = |why: std::borrow::Cow<'static, str>| PtError::Damaged(why.into_owned());
    let start = file.bytes(0, file.len().min(2)).map_err(damaged)?;
    if *start != *b"PK" {
        return Err(not_a_zip(&start));
    }
    let archive = CheckpointArchive::open(file).map_err(damaged)?;
    let folder = folder(&archive)?;
    // By this PyTorch itself tells it, and reads the pickle by no means of Python's.
    if archive.size(&format!("{folder}constants.pkl")).is_some() {
        return Err(PtError::Form(TORCHSCRIPT.into()));
    }
    let name = format!("{folder}data.pkl");
    if archive.size(&name).is_some_and(|size| size > LARGEST_PICKLE) {
        return Err(damaged("its data.pkl is far larger than that of any network".into()));
    }
    let pickle = archive.read(&name);
    let pickle = pickle.ok_or_else(|| damaged("no data.pkl in it".into()))?.map_err(damaged)?;
    let (pickle, read) = Pickle::parse_partly(&pickle, Policy::Inert, LIMITS);
    let allowed_names::ForeignNames { hostile, own } = allowed_names::foreign_names(&pickle);
    if let Some(name) = hostile {
        return Err(PtError::ForeignName(name));
    }
    // What is broken was obeyed by Python up to there, names and all.
    read.map_err(|fault| match &own {
        Some(name) => PtError::ForeignName(name.clone()),
        None => PtError::Damaged(fault.to_string()),
    })?;
    let storages = Storages::new(&archive, folder, file.len(), weights)?;
    match (then(&pickle, &storages), own) {
        // A module of somebody's own: its place helps more than its name alone.
        (Err(error @ PtError::Unsupported { .. }), _) => Err(error),
        (_, Some(name)) => Err(PtError::ForeignName(name)),
        (result, None) => result,
    }
}

fn convert(
    pickle: &Pickle<'_>,
    storages: &Storages<'_>,
    options: &GraphOptions,
) -> PtResult<Vec<u8>> {
    let root = pickle.root();
    let model = network(root).ok_or_else(|| no_model(root))?;
    let model = PtModule::new(model, storages)?;
    let about = about(root, &model);
    let known =
        |class: &str| MODELS.iter().any(|model| class == format!("ultralytics.nn.tasks.{model}"));
    if !known(&model.class.to_string()) {
        return Err(match task(&model) {
            Some(task) if !TASKS.contains(&&*task) => PtError::Task(task),
            _ => model.unsupported(),
        });
    }
    graph::from_modules(&model.child("model")?, &about, options)
}

/// The network: under a key, or saved bare. An object with fields, where weights alone are a
/// dict with tensors in it.
fn network(root: PickleRef<'_>) -> Option<PickleRef<'_>> {
    let model = ["ema", "model"].into_iter().find_map(|key| find(root, key)).unwrap_or(root);
    let (PickleValue::Object(made) | PickleValue::Call(made)) = model.value() else { return None };
    (made.state().is_some() && made.pairs().next().is_none()).then_some(model)
}

/// What else begins a file that is called .pt.
fn not_a_zip(file: &[u8]) -> PtError {
    match file {
        [] => PtError::Damaged("the file is empty".into()),
        // The two ways in which torch.save wrote before 1.6.
        [0x80, ..] => PtError::Form(LEGACY.into()),
        _ => PtError::Damaged("it is not a zip file".into()),
    }
}

/// The folder of everything: the one with data.pkl in it, `archive/` as a rule.
fn folder<'s>(archive: &'s CheckpointArchive<'_>) -> PtResult<&'s str> {
    let mut folders = archive.names().filter_map(|name| {
        let folder = name.strip_suffix("data.pkl")?;
        (folder.is_empty() || folder.ends_with('/')).then_some(folder)
    });
    match (folders.next(), folders.next()) {
        (Some(folder), None) => Ok(folder),
        (None, _) => Err(PtError::Damaged("a zip file without a data.pkl".into())),
        _ => Err(PtError::Damaged("a zip file with more than one data.pkl".into())),
    }
}

/// The keys that weights alone are saved under, where they are not saved bare.
const STATE_DICTS: [&str; 4] = ["ema", "model", "state_dict", "model_state_dict"];

/// What may be a state_dict: tensors by name.
fn state_dict(root: PickleRef<'_>) -> Option<PicklePairs<'_>> {
    let inner = STATE_DICTS.into_iter().find_map(|key| find(root, key)?.pairs());
    inner.or_else(|| root.pairs())
}

fn no_model(root: PickleRef<'_>) -> PtError {
    let is_weight = |name: &str| name.ends_with(".weight") || name.ends_with(".bias");
    let named = |(key, _): (PickleRef<'_>, _)| key.as_str().is_some_and(is_weight);
    if state_dict(root).into_iter().flatten().take(64).any(named) {
        let why = "weights alone (a state_dict), without the network that they are for; save the \
                   model itself with Ultralytics";
        return PtError::NoModel(why.into());
    }
    PtError::NoModel(match root.value() {
        PickleValue::Dict(pairs) => {
            let keys: Vec<&str> = pairs.filter_map(|(key, _)| key.as_str()).take(6).collect();
            format!("no network under `model` or `ema`; its keys are {keys:?}")
        }
        _ => format!("{} where a checkpoint of Ultralytics has a dict", called(root)),
    })
}

/// What a value is, by its class where it has one.
fn called(value: PickleRef<'_>) -> String {
    if let PickleValue::Call(made) | PickleValue::Object(made) = value.value()
        && let PickleValue::Global { module, name } = made.callable().value()
    {
        return allowed_names::full(module, name);
    }
    value.kind().to_string()
}

/// The task that a model says it is for.
fn task(model: &PtModule<'_>) -> Option<String> {
    let stated = model.field("task").and_then(PickleRef::as_str);
    stated.map(|task| task.chars().take(40).collect())
}

fn about(root: PickleRef<'_>, model: &PtModule<'_>) -> About {
    let mut about = About { names: names(model), channels: 3, ..About::default() };
    for key in ["version", "license", "docs", "date"] {
        if let Some(text) = find(root, key).and_then(PickleRef::as_str) {
            about.texts.insert(key, text.chars().take(400).collect());
        }
    }
    if let Some(yaml) = model.field("yaml") {
        let shape = find(yaml, "yaml_file").and_then(PickleRef::as_str);
        about.shape = shape.map(|shape| shape.chars().take(200).collect());
        let channels = ["channels", "ch"].into_iter().find_map(|key| find(yaml, key)?.as_u64());
        about.channels = channels.and_then(|n| usize::try_from(n).ok()).unwrap_or(3);
    }
    about
}

/// A dict of numbers and names, or a list of names.
fn names(model: &PtModule<'_>) -> BTreeMap<u32, String> {
    let text = |value: PickleRef<'_>| value.as_str().map(str::to_string);
    let Some(names) = model.field("names") else { return BTreeMap::new() };
    match names.value() {
        PickleValue::Dict(pairs) => pairs
            .take(MOST_NAMES)
            .filter_map(|(key, name)| Some((u32::try_from(key.as_u64()?).ok()?, text(name)?)))
            .collect(),
        PickleValue::List(items) | PickleValue::Tuple(items) => (0..)
            .zip(items.take(MOST_NAMES))
            .filter_map(|(n, name)| Some((n, text(name)?)))
            .collect(),
        _ => BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests;
