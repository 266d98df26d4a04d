//! How a language model is to be trained, in the words of a command line.

use std::fmt;
use std::str::FromStr;

/// What updates the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Optimizer {
    /// PyTorch's AdamW: two states for each weight, and a copy of all while it runs.
    #[default]
    AdamW,
    /// The same without the copy.
    AdamWFused,
    /// bitsandbytes' AdamW with states of 8 bits.
    AdamW8Bit,
    /// Without momentum.
    Sgd,
    /// PyTorch's Adafactor.
    Adafactor,
}

/// In which type weights are kept and products run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TrainingPrecision {
    /// All in 32 bits.
    Fp32,
    /// All in bfloat16.
    #[default]
    Bf16,
    /// Weights in 32 bits, products in bfloat16 (autocast).
    Amp,
}

/// How weights under adapters are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum BaseDtype {
    /// bfloat16.
    #[default]
    Bf16,
    /// bitsandbytes' 4 bits with double quantization.
    Nf4,
    /// bitsandbytes' 8 bits.
    Int8,
}

/// How several GPUs share the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum TrainingShard {
    /// Each has all; gradients are averaged.
    #[default]
    Ddp,
    /// As [`TrainingShard::Ddp`], with optimizer states split.
    Zero1,
    /// Weights, gradients and states split; layers are gathered as they run.
    Fsdp2,
}

/// The words of each kind.
macro_rules! words {
    ($kind:ident, $what:literal, $($word:literal => $value:ident),+) => {
        impl $kind {
            /// All of them.
            pub const ALL: &'static [$kind] = &[$($kind::$value),+];

            /// As users name it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($kind::$value => $word),+ }
            }
        }

        impl fmt::Display for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $kind {
            type Err = String;

            fn from_str(text: &str) -> Result<Self, String> {
                let found = $kind::ALL.iter().copied().find(|kind| kind.name() == text);
                found.ok_or_else(|| {
                    let names: Vec<&str> = $kind::ALL.iter().map(|kind| kind.name()).collect();
                    format!("{} is one of {}", $what, names.join(", "))
                })
            }
        }
    };
}

words!(Optimizer, "the optimizer", "adamw" => AdamW, "adamw-fused" => AdamWFused,
    "adamw-8bit" => AdamW8Bit, "sgd" => Sgd, "adafactor" => Adafactor);
words!(TrainingPrecision, "the precision", "fp32" => Fp32, "bf16" => Bf16, "amp" => Amp);
words!(BaseDtype, "the base's type", "nf4" => Nf4, "int8" => Int8, "bf16" => Bf16);
words!(TrainingShard, "the way of sharing", "ddp" => Ddp, "zero1" => Zero1, "fsdp2" => Fsdp2);

/// How a model is to be trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrainingRequest {
    /// What updates the weights.
    pub optimizer: Optimizer,
    /// Types of weights and products.
    pub precision: TrainingPrecision,
    /// Whether each layer is run again for its backward pass.
    pub checkpointing: bool,
    /// The rank of adapters beside frozen weights.
    pub lora: Option<u64>,
    /// How the frozen weights are stored.
    pub base_dtype: Option<BaseDtype>,
    /// Batches for each step of the optimizer.
    pub grad_accumulation: u64,
    /// GPUs that share the work.
    pub gpus: u64,
    /// How they share it.
    pub shard: TrainingShard,
}

impl Default for TrainingRequest {
    fn default() -> Self {
        TrainingRequest {
            optimizer: Optimizer::default(),
            precision: TrainingPrecision::default(),
            checkpointing: false,
            lora: None,
            base_dtype: None,
            grad_accumulation: 1,
            gpus: 1,
            shard: TrainingShard::default(),
        }
    }
}

/// What training takes besides weights and activations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrainingTerms {
    /// Gradients of what is trained.
    pub gradient_bytes: u64,
    /// The optimizer's states.
    pub optimizer_bytes: u64,
    /// Of the weights: adapters.
    pub adapter_bytes: u64,
}
