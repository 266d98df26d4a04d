//! The engine's own command line for a setting, to paste.

use std::path::Path;

use plimsoll::{Bytes, ElementType};
use plimsoll_models::terms::{Optimizer, Runner, Terms, TrainingPrecision};

use crate::model_flags::ModelFlags;
use crate::shell::{exact, quoted};

/// A model with the settings that fit.
#[derive(Debug)]
pub(super) struct PasteRequest<'a> {
    pub(super) model: &'a Path,
    pub(super) flags: &'a ModelFlags,
    pub(super) engine: Runner,
    pub(super) terms: &'a Terms,
    pub(super) limit: Bytes,
}

impl PasteRequest<'_> {
    /// The command line, or a few lines of Python.
    pub(super) fn text(&self) -> String {
        match self.engine {
            Runner::LlamaCpp => self.llama(),
            Runner::PyTorch if self.terms.context.is_none() => self.ultralytics(),
            Runner::PyTorch if self.flags.train.train => self.trainer(),
            Runner::PyTorch => self.transformers(),
            _ if self.flags.batch == 1 => self.bench(),
            _ => self.onnx_runtime(),
        }
    }

    fn name(&self) -> String {
        quoted(&self.model.display().to_string())
    }

    /// A string of Python.
    fn literal(&self) -> String {
        let text = self.model.display().to_string();
        format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
    }

    fn llama(&self) -> String {
        let flags = self.flags;
        let mut file = self.name();
        let mut first = String::new();
        if let Some(kind) = flags.dtype {
            let kind = kind.to_string().to_uppercase();
            let to = quoted(&format!("{}.{kind}.gguf", stem(self.model)));
            first = format!("llama-quantize --pure {file} {to} {kind}\n");
            file = to;
        }
        let mut line = format!("{first}llama-server -m {file}");
        let mut say = |flag: &str, value: Option<String>| {
            line += &value.map_or_else(String::new, |value| format!(" {flag} {value}"));
        };
        say("-c", self.terms.context.map(|context| context.to_string()));
        let all = self.terms.layers.map_or(999, |layers| layers + 1);
        say("-ngl", Some(flags.gpu_layers.unwrap_or(all).to_string()));
        say("-np", (flags.batch > 1).then(|| flags.batch.to_string()));
        say("-ub", (flags.ubatch != 512).then(|| flags.ubatch.to_string()));
        say("-ctk", flags.kv_dtype.map(|kinds| kinds.keys.to_string()));
        say("-ctv", flags.kv_dtype.map(|kinds| kinds.values.to_string()));
        // Which it is otherwise depends on the version.
        say("-fa", Some(if flags.flash_attn { "on" } else { "off" }.to_string()));
        let switches = [
            (flags.swa_full, " --swa-full"),
            (flags.batch > 1 && !flags.no_kv_unified, " --kv-unified"),
        ];
        line + &switches.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect::<String>()
    }

    fn transformers(&self) -> String {
        let kind = self.terms.weights.first().and_then(|part| part.kind.parse().ok());
        let kind = match self.flags.dtype.or(kind) {
            Some(ElementType::F32) => "torch.float32",
            Some(ElementType::Bf16) => "torch.bfloat16",
            _ => "torch.float16",
        };
        let (batch, each) = (self.flags.batch, self.terms.context.unwrap_or(0));
        format!(
            "model = AutoModelForCausalLM.from_pretrained({}, dtype={kind}).cuda().eval()\n\
             model.generate(input_ids, max_length={each})  # input_ids: {batch} × up to {each} tokens",
            self.literal()
        )
    }

    /// The arguments of Transformers' trainer.
    fn trainer(&self) -> String {
        let train = &self.flags.train;
        let precision = train.precision.unwrap_or_default();
        let optimizer = match train.optimizer.unwrap_or_default() {
            Optimizer::AdamWFused => "adamw_torch_fused",
            Optimizer::AdamW8Bit => "adamw_bnb_8bit",
            Optimizer::Sgd => "sgd",
            Optimizer::Adafactor => "adafactor",
            _ => "adamw_torch",
        };
        let kind = if precision == TrainingPrecision::Bf16 { "bfloat16" } else { "float32" };
        let mut arguments = format!(
            "per_device_train_batch_size={}, gradient_accumulation_steps={}, optim=\"{optimizer}\"",
            self.flags.batch,
            train.grad_accumulation.unwrap_or(1)
        );
        for (on, word) in [
            (precision == TrainingPrecision::Amp, ", bf16=True"),
            (train.checkpointing, ", gradient_checkpointing=True"),
        ] {
            arguments += if on { word } else { "" };
        }
        let each = self.terms.context.unwrap_or(0);
        format!(
            "model = AutoModelForCausalLM.from_pretrained({}, dtype=torch.{kind})\n\
             TrainingArguments({arguments})  # of sequences of {each} tokens",
            self.literal()
        )
    }

    fn ultralytics(&self) -> String {
        let side = self.terms.open_image.map_or(640, |(rows, columns)| rows.max(columns));
        let batch = self.flags.batch;
        let model = self.literal();
        if self.flags.train.train {
            return format!(
                "YOLO({model}).train(data=data, imgsz={side}, batch={batch}, device=0)"
            );
        }
        let half = if self.flags.dtype == Some(ElementType::F16) { ", half=True" } else { "" };
        format!("YOLO({model}).predict(source, imgsz={side}, batch={batch}{half}, device=0)")
    }

    fn bench(&self) -> String {
        let mut line = format!("plimsoll bench {} --engine {}", self.name(), self.engine.name());
        if let Some((rows, _)) = self.flags.imgsz {
            line += &format!(" --imgsz {rows}");
        }
        line + &format!(" --device cuda:0 --gpu-mem-limit {}", exact(self.limit))
    }

    fn onnx_runtime(&self) -> String {
        format!(
            "session = onnxruntime.InferenceSession({}, providers=[\"CUDAExecutionProvider\"])\n\
             session.run(None, inputs)  # {} images or sequences at once",
            self.literal(),
            self.flags.batch
        )
    }
}

/// A path without its last extension.
fn stem(path: &Path) -> String {
    path.with_extension("").display().to_string()
}
