//! What can be varied of a model: its values in order, and the flags of each.

use plimsoll::ElementType;
use plimsoll_models::terms::{Runner, Terms};

use super::answer::FitValue;
use super::vary::VaryFlag;
use crate::model_flags::ModelFlags;
use crate::outcome::BadInput;

/// llama.cpp rounds contexts up to it.
const TOKENS: u64 = 256;
/// The strides of detectors ask for it.
const PIXELS: u64 = 32;
/// Contexts end here where the model does not say what it was trained for.
const MOST_TOKENS: u64 = 1 << 20;
/// Images end here unless the user says otherwise.
const MOST_PIXELS: u64 = 4096;
/// As the flag --batch has it.
const MOST_BATCH: u64 = 65_536;

/// Types that llama.cpp quantises to, in the order of their size.
const QUANTISED: [ElementType; 6] = [
    ElementType::Q2K,
    ElementType::Q3K,
    ElementType::Q4K,
    ElementType::Q5K,
    ElementType::Q6K,
    ElementType::Q8_0,
];

/// What the types of the file are called as a value.
const OWN: &str = "own";

/// What is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SettingKind {
    Batch,
    Context,
    Image,
    GpuLayers,
    Dtype,
}

/// The values of a setting, the smallest first.
#[derive(Debug)]
pub(super) struct SettingRow {
    kind: SettingKind,
    /// Numbers from `low` on, `step` apart, and at last `high`.
    low: u64,
    high: u64,
    step: u64,
    /// Types of weights; none for those that the file has.
    types: Vec<Option<ElementType>>,
    pub(super) count: u64,
    /// Tokens of each sequence, where batches are varied and the flag counts those of all.
    tokens: Option<u64>,
    /// Why there is no larger value.
    pub(super) end: String,
}

impl SettingRow {
    /// The values that a flag allows for a model, of which the terms for its own settings are known.
    pub(super) fn of(
        vary: &VaryFlag,
        step: Option<u64>,
        engine: Runner,
        terms: &Terms,
    ) -> Result<SettingRow, BadInput> {
        let kind = kind(&vary.name)?;
        check(kind, terms)?;
        if kind == SettingKind::Dtype && (vary.ends.is_some() || step.is_some()) {
            let why = "types are no numbers: leave the values and --step out, and all types that the file can have are tried";
            return Err(BadInput::new(why));
        }
        let (low, high, usual_step, end) = match kind {
            SettingKind::Batch => (1, MOST_BATCH, 1, "no larger batch was considered".to_string()),
            SettingKind::Context => match terms.trained_context {
                Some(trained) => {
                    let end = format!("the model was trained for {trained} tokens");
                    (TOKENS.min(trained), trained, TOKENS, end)
                }
                None => (TOKENS, MOST_TOKENS, TOKENS, "no longer context was considered".into()),
            },
            SettingKind::Image => {
                (PIXELS, MOST_PIXELS, PIXELS, "no larger image was considered".to_string())
            }
            SettingKind::GpuLayers => {
                let all = terms.layers.unwrap_or(0) + 1;
                // Nothing but the output matrix is the layer after the last.
                (0, all, 1, "that is all of them, and the output matrix".to_string())
            }
            SettingKind::Dtype => return Ok(SettingRow::types(engine, terms)),
        };
        let end = if vary.ends.is_some() { "larger values were not asked for".into() } else { end };
        let (low, high) = vary.ends.unwrap_or((low, high));
        let step = step.unwrap_or(usual_step);
        let count = (high - low).div_ceil(step) + 1;
        let is_shared = kind == SettingKind::Batch && engine != Runner::PyTorch;
        let tokens = terms.context.filter(|_| is_shared);
        Ok(SettingRow { kind, low, high, step, types: Vec::new(), count, tokens, end })
    }

    /// Types up to that of the file, or below it and the file as it is: more bits would add nothing.
    fn types(engine: Runner, terms: &Terms) -> SettingRow {
        let elements: u64 = terms.weights.iter().map(|part| part.elements).sum();
        let own = terms.weights.first().and_then(|part| part.kind.parse::<ElementType>().ok());
        let half =
            if own == Some(ElementType::Bf16) { ElementType::Bf16 } else { ElementType::F16 };
        let quantised: &[ElementType] = if engine == Runner::LlamaCpp { &QUANTISED } else { &[] };
        let all = quantised.iter().copied().chain([half, ElementType::F32]);
        let pure = all.map(|kind| (kind, kind.bytes_for(elements).get()));
        // llama.cpp runs a GGUF file as it is, whatever types it has.
        let as_it_is = engine == Runner::LlamaCpp && terms.format == "GGUF";
        let most = terms.weights_bytes;
        // Norms beside the weights make no mix.
        let of_note = terms.weights.iter().filter(|part| part.bytes > most / 100).count();
        let is_there = |kind| as_it_is && of_note == 1 && own == Some(kind);
        let types: Vec<_> = pure
            .filter(|(kind, bytes)| *bytes <= most - u64::from(as_it_is) && !is_there(*kind))
            .map(|(kind, _)| Some(kind))
            .chain(as_it_is.then_some(None))
            .collect();
        SettingRow {
            kind: SettingKind::Dtype,
            low: 0,
            high: types.len() as u64,
            step: 1,
            count: types.len() as u64,
            types,
            tokens: None,
            end: "the file has no more bits than that".to_string(),
        }
    }

    /// The value at a place.
    pub(super) fn value(&self, place: u64) -> FitValue {
        match usize::try_from(place).ok().and_then(|place| self.types.get(place)) {
            Some(Some(kind)) => FitValue::Name(kind.to_string()),
            Some(None) => FitValue::Name(OWN.to_string()),
            None => FitValue::Number(self.number(place)),
        }
    }

    fn number(&self, place: u64) -> u64 {
        self.low.saturating_add(place.saturating_mul(self.step)).min(self.high)
    }

    /// The flags with the value at a place.
    pub(super) fn flags(&self, base: &ModelFlags, place: u64) -> ModelFlags {
        let mut flags = base.clone();
        let number = self.number(place);
        match self.kind {
            SettingKind::Batch => {
                flags.batch = number;
                let all = self.tokens.map(|tokens| tokens.saturating_mul(number));
                flags.context = all.or(flags.context);
            }
            SettingKind::Context => flags.context = Some(number),
            SettingKind::Image => flags.imgsz = Some((number, number)),
            SettingKind::GpuLayers => flags.gpu_layers = Some(number),
            SettingKind::Dtype => {
                let kind = usize::try_from(place).ok().and_then(|at| self.types.get(at));
                flags.dtype = kind.copied().flatten();
            }
        }
        flags
    }
}

fn kind(name: &str) -> Result<SettingKind, BadInput> {
    Ok(match name {
        "batch" | "parallel" => SettingKind::Batch,
        "context" => SettingKind::Context,
        "imgsz" => SettingKind::Image,
        "gpu-layers" => SettingKind::GpuLayers,
        "dtype" => SettingKind::Dtype,
        other => {
            return Err(BadInput::new(format!(
                "a model has no {other} to vary; it has batch, context, imgsz, gpu-layers and dtype"
            )));
        }
    })
}

/// Whether a model has the setting at all.
fn check(kind: SettingKind, terms: &Terms) -> Result<(), BadInput> {
    let is_language = terms.context.is_some();
    let why = match kind {
        SettingKind::Batch if !is_language && !terms.open_batch => {
            "the file fixes the batch; export it with a batch that is open (`plimsoll export --dynamic`)"
        }
        SettingKind::Context if !is_language => "only language models have a context to vary",
        SettingKind::Image if is_language => "a language model has no images",
        SettingKind::Image if terms.open_image.is_none() => {
            "the file fixes the size of its images; export it with a size that is open (`plimsoll export --dynamic`)"
        }
        SettingKind::GpuLayers if terms.format != "GGUF" || terms.layers.is_none() => {
            "only GGUF files of language models can leave layers on the host"
        }
        _ => return Ok(()),
    };
    Err(BadInput::new(why))
}
