//! The engine's own command line for a setting, to paste.

use std::path::{Path, PathBuf};

use plimsoll::{Bytes, ElementType};
use plimsoll_models::terms::{Optimizer, Runner, Terms, TrainingPrecision, WeightsOfType};

use crate::model_flags::ModelFlags;
use crate::shell::{exact, quoted};

/// The input of the graphs that `plimsoll export` writes.
const INPUT: &str = "images";

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
    /// The command line, or a few lines of Python; none where neither takes the setting.
    pub(super) fn text(&self) -> Option<String> {
        Some(match self.engine {
            Runner::LlamaCpp => self.llama(),
            Runner::PyTorch if self.terms.context.is_none() => self.ultralytics(),
            Runner::PyTorch if self.flags.train.train => self.trainer(),
            Runner::PyTorch => self.transformers(),
            Runner::TensorRt => return self.tensorrt(),
            _ if self.flags.batch == 1 => self.bench(&self.name()),
            Runner::Ort => self.onnx_runtime(),
            _ => return None,
        })
    }

    /// The model's extension is this one.
    fn is(&self, extension: &str) -> bool {
        self.model.extension().is_some_and(|own| own.eq_ignore_ascii_case(extension))
    }

    fn name(&self) -> String {
        quoted(&self.model.display().to_string())
    }

    fn literal(&self) -> String {
        literal(self.model)
    }

    fn llama(&self) -> String {
        let flags = self.flags;
        let mut file = self.name();
        let mut first = String::new();
        if self.terms.format != "GGUF" {
            let to = quoted(&format!("{}.gguf", stem(self.model)));
            first = format!("convert_hf_to_gguf.py {file} --outfile {to}\n");
            file = to;
        }
        if let Some(kind) = flags.dtype {
            let kind = kind.to_string().to_uppercase();
            let to = quoted(&format!("{}.{kind}.gguf", stem(self.model)));
            let again = if self.is_quantized() { " --allow-requantize" } else { "" };
            first += &format!("llama-quantize --pure{again} {file} {to} {kind}\n");
            file = to;
        }
        let mut line = format!("{first}llama-server -m {file}");
        let mut say = |flag: &str, value: Option<String>| {
            line += &value.map_or_else(String::new, |value| format!(" {flag} {value}"));
        };
        say("-c", self.terms.context.map(|context| context.to_string()));
        let all = self.terms.layers.map_or(999, |layers| layers + 1);
        let on_gpu = if self.flags.is_on_cpu() { 0 } else { flags.gpu_layers.unwrap_or(all) };
        say("-ngl", Some(on_gpu.to_string()));
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

    /// Whether it is a GGUF file that was quantized before.
    fn is_quantized(&self) -> bool {
        let own = ModelFlags { dtype: None, ..self.flags.clone() };
        let is_whole = |part: &WeightsOfType| ["f32", "f16", "bf16"].contains(&&*part.kind);
        let terms = own.terms(self.model).ok().filter(|terms| terms.format == "GGUF");
        terms.is_some_and(|terms| !terms.weights.iter().all(is_whole))
    }

    fn transformers(&self) -> String {
        let kind = self.terms.weights.first().and_then(|part| part.kind.parse().ok());
        let kind = match self.flags.dtype.or(kind) {
            Some(ElementType::F32) => "torch.float32",
            Some(ElementType::Bf16) => "torch.bfloat16",
            _ => "torch.float16",
        };
        let (batch, each) = (self.flags.batch, self.terms.context.unwrap_or(0));
        let place = if self.flags.is_on_cpu() { "" } else { ".cuda()" };
        let folder = self.model.parent().filter(|folder| !folder.as_os_str().is_empty());
        let model = match self.model.file_name().filter(|_| self.is("gguf")) {
            Some(name) => {
                let folder = literal(folder.unwrap_or(Path::new(".")));
                format!("{folder}, gguf_file={}", literal(Path::new(name)))
            }
            None => self.literal(),
        };
        format!(
            "model = AutoModelForCausalLM.from_pretrained({model}, dtype={kind}){place}.eval()\n\
             model.generate(input_ids, max_length={each})  # input_ids: {batch} × up to {each} tokens"
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
        let device = if self.flags.is_on_cpu() { "\"cpu\"" } else { "0" };
        format!("YOLO({model}).predict(source, imgsz={side}, batch={batch}{half}, device={device})")
    }

    /// The lines that build an engine, which alone `bench` takes, and run it; for several images at once those
    /// that build it, where the name of its input is known.
    fn tensorrt(&self) -> Option<String> {
        let engine = quoted(&self.model.with_extension("engine").display().to_string());
        let is_half = self.flags.dtype == Some(ElementType::F16);
        let (batch, (rows, columns)) =
            (self.flags.batch, self.terms.open_image.unwrap_or((640, 640)));
        if batch == 1 {
            let size =
                if self.is("pt") { format!(" --imgsz {rows}x{columns}") } else { String::new() };
            let half = if is_half { " --half" } else { "" };
            let build = format!("plimsoll export {} --to {engine}{size}{half}", self.name());
            return Some(format!("{build}\n{}", self.bench(&engine)));
        }
        let (export, graph) = self.exported();
        let half = if is_half { " --fp16" } else { "" };
        let graph = quoted(&graph.display().to_string());
        self.is("pt").then(|| {
            format!(
                "{export}trtexec --onnx={graph} --saveEngine={engine} --shapes={INPUT}:{batch}x3x{rows}x{columns}{half}"
            )
        })
    }

    /// The line that writes a checkpoint as a graph with an open batch, and the graph; a graph is there already.
    fn exported(&self) -> (String, PathBuf) {
        if !self.is("pt") {
            return (String::new(), self.model.to_path_buf());
        }
        let to = self.model.with_extension("onnx");
        let name = quoted(&to.display().to_string());
        (format!("plimsoll export {} --to {name} --dynamic\n", self.name()), to)
    }

    fn bench(&self, model: &str) -> String {
        let mut line = format!("plimsoll bench {model} --engine {}", self.engine.name());
        // An engine has its size.
        if let Some((rows, _)) = self.flags.imgsz.filter(|_| self.engine != Runner::TensorRt) {
            line += &format!(" --imgsz {rows}");
        }
        let device = if self.flags.is_on_cpu() { "cpu" } else { "cuda:0" };
        line + &format!(" --device {device} --gpu-mem-limit {}", exact(self.limit))
    }

    fn onnx_runtime(&self) -> String {
        let provider = if self.flags.is_on_cpu() { "CPU" } else { "CUDA" };
        let (first, graph) = self.exported();
        let model = literal(&graph);
        format!(
            "{first}session = onnxruntime.InferenceSession({model}, providers=[\"{provider}ExecutionProvider\"])\n\
             session.run(None, inputs)  # {} images or sequences at once",
            self.flags.batch
        )
    }
}

/// A path as a string of Python.
fn literal(path: &Path) -> String {
    let text = path.display().to_string();
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// A path without its last extension.
fn stem(path: &Path) -> String {
    path.with_extension("").display().to_string()
}
