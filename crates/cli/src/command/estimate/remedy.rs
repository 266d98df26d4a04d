//! What would make a file fit: commands to run, each of which was computed to fit.
//!
//! Single changes, in the order of what they cost: flash attention costs nothing, a smaller
//! cache little, a smaller batch or image, fewer bits or a shorter context more, layers left
//! on the host time. Where none is enough alone, some are tried together.

use std::ops::Range;
use std::path::Path;

use plimsoll::{Bytes, CacheTypes, ElementType};
use plimsoll_models::search::largest_fitting;
use plimsoll_models::terms::Terms;

use super::advice::{Advice, TYPES};
use crate::model_flags::ModelFlags;
use crate::shell::{exact, quoted};

const STEP: u64 = 256;
/// Images are cut in these steps, as detectors' strides ask for it.
const PIXELS: u64 = 32;

/// Changes with which it fits; empty where none was found.
pub(super) fn what_fits(
    model: &Path,
    args: &ModelFlags,
    terms: &Terms,
    limit: Bytes,
) -> Vec<Advice> {
    let search = RemedySearch { model, args, terms, limit };
    let mut found: Vec<Advice> =
        search.alone().into_iter().filter_map(|args| search.checked(&args)).collect();
    if found.is_empty() {
        found = search.together().into_iter().filter_map(|args| search.checked(&args)).collect();
        found.truncate(2);
    }
    found
}

struct RemedySearch<'a> {
    model: &'a Path,
    args: &'a ModelFlags,
    terms: &'a Terms,
    limit: Bytes,
}

impl RemedySearch<'_> {
    fn fits(&self, args: &ModelFlags) -> bool {
        args.terms(self.model).is_ok_and(|terms| terms.most_bytes() <= self.limit.get())
    }

    fn checked(&self, args: &ModelFlags) -> Option<Advice> {
        let terms = args.terms(self.model).ok()?;
        (terms.most_bytes() <= self.limit.get()).then(|| Advice {
            change: self.change(args),
            total_bytes: terms.total_bytes,
            command: self.command(args),
        })
    }

    fn alone(&self) -> Vec<ModelFlags> {
        let mut candidates = Vec::new();
        candidates.extend(self.with_flash(self.args));
        candidates.extend(self.smaller_cache(self.args));
        candidates.extend(self.with_windows());
        candidates.extend(self.smaller_batch());
        candidates.extend(self.smaller_image());
        candidates.extend(self.fewer_bits(self.args).into_iter().take(TYPES));
        candidates.extend(self.shorter(self.args));
        candidates.extend(self.fewer_layers());
        candidates
    }

    fn together(&self) -> Vec<ModelFlags> {
        let lean = self.with_flash(self.args).unwrap_or_else(|| self.args.clone());
        let lean = ModelFlags {
            kv_dtype: self.is_language().then_some(ElementType::Q8_0.into()).or(lean.kv_dtype),
            ..lean
        };
        let small = ModelFlags { dtype: Some(ElementType::Q4_0), ..lean.clone() };
        let mut candidates = Vec::new();
        candidates.extend(self.fewer_bits(&lean).into_iter().take(1));
        candidates.extend(self.shorter(&lean));
        candidates.extend(self.shorter(&small));
        candidates
    }

    fn is_language(&self) -> bool {
        self.terms.context.is_some()
    }

    fn with_flash(&self, args: &ModelFlags) -> Option<ModelFlags> {
        (self.is_language() && !args.flash_attn && self.terms.compute.is_some())
            .then(|| ModelFlags { flash_attn: true, ..args.clone() })
    }

    /// With caches as large as the windows.
    fn with_windows(&self) -> Option<ModelFlags> {
        self.args.swa_full.then(|| ModelFlags { swa_full: false, ..self.args.clone() })
    }

    /// With flash attention, without which engines refuse quantised values.
    fn smaller_cache(&self, args: &ModelFlags) -> Option<ModelFlags> {
        let now: CacheTypes = self.terms.kv_dtype.as_deref()?.parse().ok()?;
        let smaller = |kinds: &CacheTypes| kinds.bytes_for(STEP) < now.bytes_for(STEP);
        [ElementType::Q8_0, ElementType::Q4_0]
            .into_iter()
            .map(CacheTypes::from)
            .filter(smaller)
            .map(|kinds| ModelFlags { kv_dtype: Some(kinds), flash_attn: true, ..args.clone() })
            .find(|candidate| self.fits(candidate))
    }

    fn smaller_batch(&self) -> Option<ModelFlags> {
        let mut batch = self.args.batch;
        while batch > 1 {
            batch /= 2;
            let candidate = ModelFlags { batch, ..self.args.clone() };
            if self.fits(&candidate) {
                return Some(candidate);
            }
        }
        None
    }

    fn smaller_image(&self) -> Option<ModelFlags> {
        let (rows, columns) = self.terms.open_image?;
        let sizes = (1..rows.max(columns).div_ceil(PIXELS)).rev();
        let at = |steps: u64| {
            let side = |n: u64| (n.min(steps * PIXELS)).max(PIXELS);
            ModelFlags { imgsz: Some((side(rows), side(columns))), ..self.args.clone() }
        };
        sizes.step_by(2).map(at).find(|candidate| self.fits(candidate))
    }

    /// The types below the present one with which it fits, the largest first.
    fn fewer_bits(&self, args: &ModelFlags) -> Vec<ModelFlags> {
        let graph = self.terms.peak.is_some();
        let ladder: &[ElementType] = if graph {
            &[ElementType::F16]
        } else {
            &[
                ElementType::F16,
                ElementType::Q8_0,
                ElementType::Q6K,
                ElementType::Q5K,
                ElementType::Q4K,
                ElementType::Q3K,
                ElementType::Q2K,
            ]
        };
        let smaller = |kind: &&ElementType| {
            let args = ModelFlags { dtype: Some(**kind), ..args.clone() };
            args.terms(self.model).is_ok_and(|terms| terms.weights_bytes < self.terms.weights_bytes)
        };
        ladder
            .iter()
            .filter(smaller)
            .map(|&kind| ModelFlags { dtype: Some(kind), ..args.clone() })
            .filter(|candidate| self.fits(candidate))
            .collect()
    }

    /// The longest context below the present one with which it fits.
    fn shorter(&self, args: &ModelFlags) -> Option<ModelFlags> {
        let context = self.terms.context?;
        let at = |steps: u64| ModelFlags { context: Some(steps * STEP), ..args.clone() };
        self.most(1..context.div_ceil(STEP), at)
    }

    /// The most layers on the device with which it fits.
    fn fewer_layers(&self) -> Option<ModelFlags> {
        if self.terms.format != "GGUF" {
            return None;
        }
        let layers = self.args.gpu_layers.unwrap_or(u64::MAX).min(self.terms.layers?);
        let at = |layers: u64| ModelFlags { gpu_layers: Some(layers), ..self.args.clone() };
        self.most(1..layers, at)
    }

    /// The flags of the largest number with which it fits.
    fn most(&self, numbers: Range<u64>, at: impl Fn(u64) -> ModelFlags) -> Option<ModelFlags> {
        let count = numbers.end.saturating_sub(numbers.start);
        let bytes = |place: u64| {
            at(numbers.start + place).terms(self.model).map(|terms| terms.most_bytes())
        };
        let place = largest_fitting(count, self.limit.get(), bytes).ok()??;
        Some(at(numbers.start + place))
    }

    /// What was changed, in words.
    fn change(&self, to: &ModelFlags) -> String {
        let from = self.args;
        let mut parts = Vec::new();
        if let Some(kind) = to.dtype.filter(|_| from.dtype != to.dtype) {
            parts.push(format!("{kind} weights"));
        }
        if let Some(kind) = to.kv_dtype.filter(|_| from.kv_dtype != to.kv_dtype) {
            parts.push(format!("a {kind} cache"));
        }
        if let Some(context) = to.context.filter(|_| from.context != to.context) {
            parts.push(format!("{context} tokens of context"));
        }
        if from.flash_attn != to.flash_attn {
            parts.push("flash attention".to_string());
        }
        if from.swa_full != to.swa_full {
            parts.push("no --swa-full".to_string());
        }
        if from.batch != to.batch {
            parts.push(format!("a batch of {}", to.batch));
        }
        if let Some((rows, columns)) = to.imgsz.filter(|_| from.imgsz != to.imgsz) {
            parts.push(format!("images of {rows}x{columns}"));
        }
        if let Some(layers) = to.gpu_layers.filter(|_| from.gpu_layers != to.gpu_layers) {
            parts.push(format!("{layers} layers on the device"));
        }
        parts.join(", ")
    }

    /// The command line that says the same, defaults left out.
    fn command(&self, args: &ModelFlags) -> String {
        let mut line = format!("plimsoll estimate {}", quoted(&self.model.display().to_string()));
        let mut say = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                line += &format!(" --{flag} {value}");
            }
        };
        let image = args.imgsz.map(|(rows, columns)| {
            if rows == columns { rows.to_string() } else { format!("{rows}x{columns}") }
        });
        say("imgsz", image);
        say("batch", (args.batch != 1).then(|| args.batch.to_string()));
        say("context", args.context.map(|n| n.to_string()));
        say("dtype", args.dtype.map(|kind| kind.to_string()));
        say("kv-dtype", args.kv_dtype.map(|kind| kind.to_string()));
        say("ubatch", (args.ubatch != 512).then(|| args.ubatch.to_string()));
        say("gpu-layers", args.gpu_layers.map(|n| n.to_string()));
        for (place, n) in &args.input {
            say("input", Some(quoted(&format!("{place}={n}"))));
        }
        say("engine", args.engine.map(|engine| engine.name().to_string()));
        say("device", args.device.map(|device| device.to_string()));
        say("limit", Some(exact(self.limit)));
        line += &args.train.words();
        let flags = [
            (args.flash_attn, " --flash-attn"),
            (args.swa_full, " --swa-full"),
            (args.no_kv_unified, " --no-kv-unified"),
        ];
        line + &flags.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect::<String>()
    }
}
