//! A model of a stranger's is tried before it is loaded here.
//!
//! What a graph does to an engine (a stack that overflows, memory without end, a run that never
//! returns) cannot be caught in the process that it happens in. Who starts a run says who tries
//! a model elsewhere first ([`BenchPlan::trial`](super::BenchPlan::trial)); a model that did not come
//! through fails its slot, and the other slot goes on. It is done before anything is measured:
//! what a trial takes of the machine is in no figure. Embedded models are our own.

use std::fmt::Debug;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use plimsoll_infer::{EngineChoice, EngineKind, ModelSource};

use super::plan::BenchPlan;
use super::progress::BenchProgress;
use super::slots::ResolvedPlan;
use crate::record::model::label;

/// Tries models where that can do no harm.
pub trait Trial: Debug + Send + Sync {
    /// Loads these weights as the plan says and runs them once; ends early when `stop` is set.
    ///
    /// # Errors
    /// Why they must not be loaded in this process. What the engine itself refuses is no
    /// reason: it will say so here as well.
    fn attempt(&self, weights: &Path, plan: &BenchPlan, stop: &AtomicBool) -> Result<(), String>;
}

/// Why a slot's model must not be loaded, of both slots.
pub(super) fn refusals(
    plan: &BenchPlan,
    layout: &ResolvedPlan,
    progress: &mut dyn BenchProgress,
    stop: &AtomicBool,
) -> [Option<String>; 2] {
    [0, 1].map(|slot| {
        let trial = plan.trial.as_ref()?;
        let ModelSource::Path(path) = layout.slots[slot].weights()? else { return None };
        if plan.engine == EngineChoice::Kind(EngineKind::Echo) {
            return None;
        }
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        progress.trying(&label(slot, name.as_deref()), path);
        trial.attempt(path, plan, stop).err()
    })
}
