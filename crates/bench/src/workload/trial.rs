//! Tries an untrusted model elsewhere before it is loaded here.
//!
//! A graph can make an engine overflow its stack, allocate without end, or never return, and the
//! process in which that happens cannot catch it. So the program that starts a run provides
//! something that tries a model in another process first
//! ([`BenchPlan::trial`](super::BenchPlan::trial)). A model that fails there fails its slot, and
//! the others go on. Trials run before anything is measured, so that they are in no figure.
//! Embedded models are trusted.

use std::fmt::Debug;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use plimsoll_infer::{EngineChoice, EngineKind, ModelSource};

use super::plan::BenchPlan;
use super::progress::BenchProgress;
use super::slots::{ResolvedPlan, ResolvedSlot};
use crate::record::model::label;

/// Tries models in another process.
pub trait Trial: Debug + Send + Sync {
    /// Loads these weights with an engine as the plan says and runs them once; ends early when `stop` is set.
    ///
    /// # Errors
    /// Why they must not be loaded in this process. An error of the engine is not a reason: the
    /// engine will report it here as well.
    fn attempt(
        &self,
        weights: &Path,
        engine: EngineChoice,
        plan: &BenchPlan,
        stop: &AtomicBool,
    ) -> Result<(), String>;
}

/// Why the model must not be loaded, for each slot.
pub(super) fn refusals(
    plan: &BenchPlan,
    layout: &ResolvedPlan,
    progress: &mut dyn BenchProgress,
    stop: &AtomicBool,
) -> Vec<Option<String>> {
    let attempt = |(number, slot): (usize, &ResolvedSlot)| {
        let trial = plan.trial.as_ref()?;
        let ModelSource::Path(path) = slot.weights()? else { return None };
        if slot.engine == EngineChoice::Kind(EngineKind::Echo) {
            return None;
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        let name = slot.row.clone().unwrap_or_else(|| label(number, name.as_deref()));
        progress.trying(&name, path);
        trial.attempt(path, slot.engine, plan, stop).err()
    };
    layout.slots.iter().enumerate().map(attempt).collect()
}
