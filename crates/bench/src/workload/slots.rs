//! Resolves a plan: which slots run, with which weights, from which source.
//!
//! The rules, in this order:
//!
//! 1. no model and no source (or only drawn scenes): the embedded demo;
//! 2. a mode says which slots run; without one it is dual when two sources are given;
//! 3. otherwise the one source feeds every slot that has weights;
//! 4. a slot that the mode excludes or that has no weights is skipped, with the reason.
//!
//! A plan with rows has no slots: each row is a model on an engine, all of them run, and all see
//! the frames of the same sources. What is a slot elsewhere in this module is then a row.

use std::path::Path;

use plimsoll_infer::source::synthetic::{SceneKind, demo};
use plimsoll_infer::source::{self, Spec};
use plimsoll_infer::{EngineChoice, EngineKind, ModelSource};

use super::BenchError;
use super::accuracy::SlotTruth;
use super::plan::{BenchPlan, RowPlan, SlotMode};
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

/// A slot or a row of a plan.
#[derive(Debug)]
pub(super) struct ResolvedSlot {
    pub(super) assignment: Assignment,
    pub(super) engine: EngineChoice,
    /// The name of a row; `None` for a slot.
    pub(super) row: Option<String>,
}

impl ResolvedSlot {
    pub(super) fn weights(&self) -> Option<&ModelSource> {
        self.assignment.weights()
    }
}

/// Sources that are read one after the other, and the slots that they feed.
#[derive(Debug, Clone)]
pub(super) struct Input {
    pub(super) specs: Vec<String>,
    pub(super) scenes: SceneKind,
    pub(super) slots: Vec<usize>,
    pub(super) live: bool,
}

/// A plan with every default resolved.
#[derive(Debug)]
pub(super) struct ResolvedPlan {
    /// Which slots run; `None` for rows.
    pub(super) mode: Option<SlotMode>,
    pub(super) slots: Vec<ResolvedSlot>,
    /// One input, or two that are paired.
    pub(super) inputs: Vec<Input>,
    /// What is known about the frames of each input.
    pub(super) truths: Vec<Option<SlotTruth>>,
}

impl ResolvedPlan {
    pub(super) fn paired(&self) -> bool {
        self.inputs.len() == 2
    }

    /// What is known about the frames of a slot.
    pub(super) fn truth(&self, slot: usize) -> Option<&SlotTruth> {
        let at = self.inputs.iter().position(|input| input.slots.contains(&slot))?;
        self.truths.get(at)?.as_ref()
    }

    /// How the report names the form of the run.
    pub(super) fn mode_name(&self) -> &'static str {
        self.mode.map_or("rows", SlotMode::name)
    }

    /// How many slots or rows run.
    pub(super) fn running(&self) -> usize {
        self.slots.iter().filter(|slot| slot.weights().is_some()).count()
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
    if !plan.rows.is_empty() {
        return resolve_rows(plan);
    }
    let demo = is_demo(plan);
    let mode = mode(plan, demo);
    let resolved = |slot| ResolvedSlot {
        assignment: assign(plan, mode, demo, slot),
        engine: plan.engine,
        row: None,
    };
    let slots: Vec<ResolvedSlot> = (0..2).map(resolved).collect();
    check(plan, &slots)?;
    let running: Vec<usize> = (0..2).filter(|&slot| slots[slot].weights().is_some()).collect();
    let inputs = match running.is_empty() {
        true => Vec::new(),
        false => inputs(plan, mode, demo, &running)?,
    };
    let truths = SlotTruth::resolve(plan, demo, &inputs)?;
    Ok(ResolvedPlan { mode: Some(mode), slots, inputs, truths })
}

/// Checks everything that can be checked before anything starts.
fn check(plan: &BenchPlan, slots: &[ResolvedSlot]) -> Result<(), BenchError> {
    check_files(plan, slots)?;
    check_sizes(plan, slots)?;
    check_outputs(plan)
}

/// Resolves a plan that has rows.
fn resolve_rows(plan: &BenchPlan) -> Result<ResolvedPlan, BenchError> {
    let slots: Vec<ResolvedSlot> = (plan.rows.iter().zip(row_names(&plan.rows)))
        .map(|(row, name)| ResolvedSlot {
            assignment: Assignment::Run(row.weights.clone()),
            engine: row.engine,
            row: Some(name),
        })
        .collect();
    check(plan, &slots)?;
    let scenes = SceneKind::Rgb;
    let specs = match plan.row_sources.is_empty() {
        true => vec!["synthetic".to_string()],
        false => plan.row_sources.clone(),
    };
    let wrong = |error: plimsoll_infer::InferError| BenchError::Plan(error.to_string());
    let parsed = specs.iter().map(|spec| Spec::parse(spec, scenes).map_err(wrong));
    let parsed: Vec<Spec> = parsed.collect::<Result<_, _>>()?;
    let live = parsed.iter().any(Spec::is_live);
    if live && specs.len() > 1 {
        let text = "a camera, stream or pipeline must be the only source: it does not end";
        return Err(BenchError::Plan(text.to_string()));
    }
    let rows = (0..slots.len()).collect();
    let inputs = vec![Input { specs, scenes, slots: rows, live }];
    let truths = SlotTruth::resolve(plan, false, &inputs)?;
    Ok(ResolvedPlan { mode: None, slots, inputs, truths })
}

/// The names of rows, each different: the file with as much of its path as tells it from the
/// others, the engine where there are several, and a number where nothing else differs.
fn row_names(rows: &[RowPlan]) -> Vec<String> {
    let paths: Vec<String> = rows.iter().map(|row| row.weights.name()).collect();
    let engines = rows.iter().any(|row| row.engine != rows[0].engine);
    let mut names: Vec<String> = Vec::new();
    for (row, path) in rows.iter().zip(&paths) {
        let mut name = short_path(path, &paths);
        if engines {
            name = format!("{name}, {}", row.engine);
        }
        let same = |taken: &&String| **taken == name || taken.starts_with(&format!("{name} #"));
        let before = names.iter().filter(same).count();
        names.push(if before > 0 { format!("{name} #{}", before + 1) } else { name });
    }
    names
}

/// The last parts of a path that no other path ends with.
fn short_path(path: &str, all: &[String]) -> String {
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
    let ends = |from: usize| parts[from..].join("/");
    let unique = |from: &usize| {
        let end = ends(*from);
        let others = all.iter().filter(|other| *other != path);
        !others.clone().any(|other| *other == end || other.ends_with(&format!("/{end}")))
    };
    (0..parts.len()).rev().find(unique).map_or_else(|| path.to_string(), ends)
}

/// Checks that the models can run at the size that the user wants.
fn check_sizes(plan: &BenchPlan, slots: &[ResolvedSlot]) -> Result<(), BenchError> {
    let Some(size) = plan.image() else { return Ok(()) };
    let all = slots.iter().filter_map(ResolvedSlot::weights);
    let refused = all.map(|weights| weights.check_size(size)).find_map(Result::err);
    refused.map_or(Ok(()), |error| Err(BenchError::Plan(error.to_string())))
}

/// Checks that every file exists and has the right format.
fn check_files(plan: &BenchPlan, slots: &[ResolvedSlot]) -> Result<(), BenchError> {
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
    // Echo replaces any model, also one that does not exist.
    let real = slots.iter().filter(|slot| slot.engine != EngineChoice::Kind(EngineKind::Echo));
    real.filter_map(ResolvedSlot::weights).try_for_each(|weights| match weights {
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
    let detections = plan.detections.iter().map(|path| ("--detections", path));
    let predictions = plan.predictions.iter().map(|path| ("--predictions", path));
    detections.chain(predictions).try_for_each(|(flag, path)| check_output(flag, path))
}

/// Checks that a file can be made.
fn check_output(flag: &str, path: &Path) -> Result<(), BenchError> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let why = match folder.filter(|folder| !folder.is_dir()) {
        Some(folder) => format!("there is no folder {}", folder.display()),
        None if path.is_dir() => "it is a folder".to_string(),
        None => return Ok(()),
    };
    Err(BenchError::Plan(format!("cannot write {flag} {}: {why}", path.display())))
}

fn given(plan: &BenchPlan) -> impl Iterator<Item = &String> {
    plan.source.iter().chain(plan.sources.iter().flatten()).chain(&plan.row_sources)
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
    Ok(Input {
        specs: vec![spec.to_string()],
        scenes,
        slots: slots.to_vec(),
        live: parsed.is_live(),
    })
}
