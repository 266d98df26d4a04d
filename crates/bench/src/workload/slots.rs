//! Resolves a plan: which slots run, with which weights, from which source.
//!
//! The rules, in this order:
//!
//! 1. no model and no source (or only drawn scenes): the embedded demo;
//! 2. a mode says which slots run; without one it is dual when two sources are given;
//! 3. otherwise the one source feeds every slot that has weights;
//! 4. a slot that the mode excludes or that has no weights is skipped, with the reason.

use plimsoll_infer::source::synthetic::{SceneKind, demo};
use plimsoll_infer::source::{self, Spec};
use plimsoll_infer::{EngineChoice, EngineKind, ModelSource};

use super::BenchError;
use super::plan::{BenchPlan, SlotMode};
use crate::report::files::check_name;

/// Whether a slot runs.
#[derive(Debug)]
pub(super) enum Assignment {
    /// It runs these weights.
    Run(ModelSource),
    /// It does not run, and why.
    Skip(String),
}

impl Assignment {
    pub(super) fn weights(&self) -> Option<&ModelSource> {
        match self {
            Assignment::Run(weights) => Some(weights),
            Assignment::Skip(_) => None,
        }
    }
}

/// A source and the slots that it feeds.
#[derive(Debug, Clone)]
pub(super) struct Input {
    pub(super) spec: String,
    pub(super) scenes: SceneKind,
    pub(super) slots: Vec<usize>,
    pub(super) live: bool,
}

/// A plan with every default resolved.
#[derive(Debug)]
pub(super) struct ResolvedPlan {
    pub(super) mode: SlotMode,
    pub(super) slots: [Assignment; 2],
    /// One input, or two that are paired.
    pub(super) inputs: Vec<Input>,
}

impl ResolvedPlan {
    pub(super) fn paired(&self) -> bool {
        self.inputs.len() == 2
    }
}

/// The kind of scenes for a slot.
pub(super) fn scenes(slot: usize) -> SceneKind {
    if slot == 0 { SceneKind::Rgb } else { SceneKind::Thermal }
}

const FLAGS: [(&str, &str); 2] = [("--model0", "--rgb-source"), ("--model1", "--thermal-source")];

/// Resolves a plan.
///
/// # Errors
/// [`BenchError::Plan`] for everything that can be checked before anything starts: flags,
/// missing files, headers that cannot be read.
pub(super) fn resolve(plan: &BenchPlan) -> Result<ResolvedPlan, BenchError> {
    plan.check()?;
    let demo = is_demo(plan);
    let mode = mode(plan, demo);
    let slots = [0, 1].map(|slot| assign(plan, mode, demo, slot));
    check_files(plan, &slots)?;
    check_sizes(plan, &slots)?;
    check_outputs(plan)?;
    let running: Vec<usize> = (0..2).filter(|&slot| slots[slot].weights().is_some()).collect();
    let inputs = match running.is_empty() {
        true => Vec::new(),
        false => inputs(plan, mode, demo, &running)?,
    };
    Ok(ResolvedPlan { mode, slots, inputs })
}

/// Checks that the models can run at the size that the user wants.
fn check_sizes(plan: &BenchPlan, slots: &[Assignment; 2]) -> Result<(), BenchError> {
    let Some(size) = plan.image() else { return Ok(()) };
    let all = slots.iter().filter_map(Assignment::weights);
    let refused = all.map(|weights| weights.check_size(size)).find_map(Result::err);
    refused.map_or(Ok(()), |error| Err(BenchError::Plan(error.to_string())))
}

/// Checks that every file exists and has the right format.
fn check_files(plan: &BenchPlan, slots: &[Assignment; 2]) -> Result<(), BenchError> {
    let wrong = |error: plimsoll_infer::InferError| BenchError::Plan(error.to_string());
    for spec in given(plan) {
        // Also where no slot reads it, because the user named it.
        source::check(spec, SceneKind::Rgb).map_err(wrong)?;
    }
    if let Some(library) = plan.library.as_ref().filter(|library| !library.is_file()) {
        return Err(BenchError::Plan(format!(
            "--library {}: there is no such file",
            library.display()
        )));
    }
    if plan.engine == EngineChoice::Kind(EngineKind::Echo) {
        // It replaces any model, also one that does not exist.
        return Ok(());
    }
    slots.iter().filter_map(Assignment::weights).try_for_each(|weights| match weights {
        ModelSource::Path(_) => weights.check().map_err(|error| wrong(error.into())),
        _ => Ok(()),
    })
}

fn check_outputs(plan: &BenchPlan) -> Result<(), BenchError> {
    plan.limit_request()?;
    plan.run_name.as_deref().map_or(Ok(()), check_name)?;
    let runs = &plan.output_dir;
    if runs.exists() && !runs.is_dir() {
        return Err(BenchError::Plan(format!("--output-dir {} is not a folder", runs.display())));
    }
    let Some(path) = &plan.detections else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let why = match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => format!("there is no folder {}", folder.display()),
        None if path.is_dir() => "it is a folder".to_string(),
        None => return Ok(()),
    };
    Err(BenchError::Plan(format!("cannot write --detections {}: {why}", path.display())))
}

fn given(plan: &BenchPlan) -> impl Iterator<Item = &String> {
    plan.source.iter().chain(plan.sources.iter().flatten())
}

/// Whether the embedded detectors run. They were trained on synthetic scenes, and are the default
/// where the user names no model.
fn is_demo(plan: &BenchPlan) -> bool {
    let drawn = |spec: &String| spec == "synthetic" || spec.starts_with("synthetic:");
    plan.models.iter().all(Option::is_none) && given(plan).all(drawn)
}

fn mode(plan: &BenchPlan, demo: bool) -> SlotMode {
    let both = |a: bool, b: bool| match (a, b) {
        (true, false) => SlotMode::Rgb,
        (false, true) => SlotMode::Thermal,
        _ => SlotMode::Dual,
    };
    let [rgb, thermal] = plan.sources.each_ref().map(Option::is_some);
    plan.mode.unwrap_or_else(|| match (&plan.source, demo) {
        (None, _) if rgb || thermal => both(rgb, thermal),
        (None, true) => SlotMode::Dual,
        (Some(spec), true) if spec.contains("thermal") => SlotMode::Thermal,
        (Some(_), true) => SlotMode::Rgb,
        _ => both(plan.models[0].is_some(), plan.models[1].is_some()),
    })
}

fn assign(plan: &BenchPlan, mode: SlotMode, demo: bool, slot: usize) -> Assignment {
    if !mode.has(slot) {
        let why = match (plan.mode, &plan.models[slot]) {
            (None, None) => format!("no weights were given ({})", FLAGS[slot].0),
            _ => format!("mode {} excludes it", mode.name()),
        };
        return Assignment::Skip(why);
    }
    match &plan.models[slot] {
        Some(path) => Assignment::Run(ModelSource::path(path)),
        None if demo => {
            let kind = scenes(slot);
            Assignment::Run(ModelSource::bytes(demo::model_name(kind), demo::model(kind)))
        }
        None => Assignment::Skip(format!("no weights were given ({})", FLAGS[slot].0)),
    }
}

fn inputs(
    plan: &BenchPlan,
    mode: SlotMode,
    demo: bool,
    running: &[usize],
) -> Result<Vec<Input>, BenchError> {
    if let Some(spec) = &plan.source {
        if plan.mode == Some(SlotMode::Dual) {
            let text = "dual mode takes two sources: --rgb-source and --thermal-source";
            return Err(BenchError::Plan(text.to_string()));
        }
        return Ok(vec![input(spec, scenes(running[0]), running)?]);
    }
    let mut found = Vec::new();
    for &slot in running {
        let spec = match &plan.sources[slot] {
            Some(spec) => spec.as_str(),
            None if demo => "synthetic",
            None => return Err(BenchError::Plan(missing(mode, slot))),
        };
        found.push(input(spec, scenes(slot), &[slot])?);
    }
    Ok(found)
}

fn missing(mode: SlotMode, slot: usize) -> String {
    let flag = match mode {
        SlotMode::Dual => FLAGS[slot].1,
        _ => "--source",
    };
    let forms = "image_dir=D, video=F, camera=N, rtsp://…, gst='PIPELINE' or synthetic";
    format!("mode {} needs {flag}: {forms}", mode.name())
}

fn input(spec: &str, scenes: SceneKind, slots: &[usize]) -> Result<Input, BenchError> {
    let parsed = Spec::parse(spec, scenes).map_err(|error| BenchError::Plan(error.to_string()))?;
    Ok(Input { spec: spec.to_string(), scenes, slots: slots.to_vec(), live: parsed.is_live() })
}
