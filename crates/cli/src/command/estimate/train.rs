//! Flags for training.

use plimsoll_models::terms::{
    BaseDtype, Optimizer, Runner, TrainingPrecision, TrainingRequest, TrainingShard,
};

use crate::outcome::BadInput;

/// How a model is to be trained.
#[derive(Debug, Clone, Default, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Training (--engine pytorch)")]
pub(super) struct TrainArgs {
    /// Estimate training steps instead of running the model
    #[arg(long)]
    pub(super) train: bool,
    /// What updates the weights: adamw, adamw-fused, adamw-8bit, sgd or adafactor
    #[arg(long, value_name = "NAME", requires = "train", value_parser = str::parse::<Optimizer>)]
    pub(super) optimizer: Option<Optimizer>,
    /// Types of weights and products: fp32, bf16, or amp (32-bit weights under autocast)
    #[arg(long, value_name = "NAME", requires = "train", value_parser = str::parse::<TrainingPrecision>)]
    pub(super) precision: Option<TrainingPrecision>,
    /// Each layer is run again for its backward pass
    #[arg(long, requires = "train")]
    pub(super) checkpointing: bool,
    /// Only adapters of this rank are trained, on every linear layer but the output matrix
    #[arg(long, value_name = "RANK", requires = "train", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    pub(super) lora: Option<u64>,
    /// How the weights under adapters are stored: nf4, int8 or bf16
    #[arg(long, value_name = "TYPE", requires = "lora", value_parser = str::parse::<BaseDtype>)]
    pub(super) base_dtype: Option<BaseDtype>,
    /// Batches for each step of the optimizer
    #[arg(long, value_name = "N", requires = "train", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(super) grad_accumulation: Option<u64>,
    /// GPUs that share the work; the answer is what each holds
    #[arg(long, value_name = "N", requires = "train", value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    pub(super) gpus: Option<u64>,
    /// How they share it: ddp, zero1 or fsdp2
    #[arg(long, value_name = "NAME", requires = "gpus", value_parser = str::parse::<TrainingShard>)]
    pub(super) shard: Option<TrainingShard>,
}

impl TrainArgs {
    /// The same as the library takes it; nothing where nothing is trained.
    pub(super) fn request(&self) -> Option<TrainingRequest> {
        let mut request = TrainingRequest::default();
        request.optimizer = self.optimizer.unwrap_or_default();
        request.precision = self.precision.unwrap_or_default();
        request.checkpointing = self.checkpointing;
        request.lora = self.lora;
        request.base_dtype = self.base_dtype;
        request.grad_accumulation = self.grad_accumulation.unwrap_or(1);
        request.gpus = self.gpus.unwrap_or(1);
        request.shard = self.shard.unwrap_or_default();
        self.train.then_some(request)
    }

    /// Training is estimated for PyTorch on a GPU alone.
    pub(super) fn check(&self, engine: Option<Runner>) -> Result<(), BadInput> {
        if self.train && engine != Some(Runner::PyTorch) {
            return Err(BadInput::new(
                "--train is estimated for PyTorch: give --engine pytorch, too",
            ));
        }
        Ok(())
    }

    /// The flags that say the same.
    pub(super) fn words(&self) -> String {
        let mut line = String::new();
        let mut say = |flag: &str, value: Option<String>| {
            if let Some(value) = value {
                line += &format!(" --{flag} {value}");
            }
        };
        say("optimizer", self.optimizer.map(|kind| kind.to_string()));
        say("precision", self.precision.map(|kind| kind.to_string()));
        say("lora", self.lora.map(|rank| rank.to_string()));
        say("base-dtype", self.base_dtype.map(|kind| kind.to_string()));
        say("grad-accumulation", self.grad_accumulation.map(|n| n.to_string()));
        say("gpus", self.gpus.map(|n| n.to_string()));
        say("shard", self.shard.map(|kind| kind.to_string()));
        let flags = [(self.train, " --train"), (self.checkpointing, " --checkpointing")];
        line + &flags.iter().filter(|(set, _)| *set).map(|(_, word)| *word).collect::<String>()
    }
}
