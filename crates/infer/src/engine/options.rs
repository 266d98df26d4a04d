//! The options of an engine: kind, device, limit.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use plimsoll::Bytes;

use super::EchoOptions;
use crate::error::InferError;
use plimsoll_models::GraphOptions;

/// The engines, as users name them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EngineKind {
    /// Pure Rust on the CPU; always available.
    Rten,
    /// ONNX Runtime, found at run time.
    Ort,
    /// Engines of TensorRT (.engine), run directly.
    Tensorrt,
    /// Fixed answers after fixed times, for tests.
    Echo,
}

impl EngineKind {
    /// Every engine.
    pub const ALL: [EngineKind; 4] =
        [EngineKind::Rten, EngineKind::Ort, EngineKind::Tensorrt, EngineKind::Echo];

    /// As users name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            EngineKind::Rten => "rten",
            EngineKind::Ort => "ort",
            EngineKind::Tensorrt => "tensorrt",
            EngineKind::Echo => "echo",
        }
    }

    /// Whether it runs on the CPU only.
    #[must_use]
    pub fn is_host_only(self) -> bool {
        matches!(self, EngineKind::Rten | EngineKind::Echo)
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for EngineKind {
    type Err = InferError;

    fn from_str(text: &str) -> Result<Self, InferError> {
        let why = "the engines are auto, rten, ort, tensorrt and echo";
        EngineKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            InferError::Unavailable { what: format!("engine {text}"), why: why.to_string() }
        })
    }
}

/// An engine, or whichever is fastest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EngineChoice {
    /// The fastest that works.
    #[default]
    Auto,
    /// This one.
    Kind(EngineKind),
}

impl EngineChoice {
    /// Whether an engine was chosen that runs on the CPU only.
    #[must_use]
    pub fn is_host_only(self) -> bool {
        matches!(self, EngineChoice::Kind(kind) if kind.is_host_only())
    }
}

impl From<EngineKind> for EngineChoice {
    fn from(kind: EngineKind) -> Self {
        EngineChoice::Kind(kind)
    }
}

impl fmt::Display for EngineChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineChoice::Auto => f.pad("auto"),
            EngineChoice::Kind(kind) => kind.fmt(f),
        }
    }
}

impl FromStr for EngineChoice {
    type Err = InferError;

    fn from_str(text: &str) -> Result<Self, InferError> {
        if text == "auto" { Ok(EngineChoice::Auto) } else { text.parse().map(EngineChoice::Kind) }
    }
}

/// Where a model should run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum EngineDevice {
    /// A GPU where the engine reaches one, else the CPU.
    #[default]
    Auto,
    /// The CPU; `host` is another word for it.
    Cpu,
    /// A CUDA device by its number.
    Cuda(u32),
}

impl fmt::Display for EngineDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EngineDevice::Auto => f.pad("auto"),
            EngineDevice::Cpu => f.pad("cpu"),
            EngineDevice::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

impl FromStr for EngineDevice {
    type Err = InferError;

    fn from_str(text: &str) -> Result<Self, InferError> {
        let number = |digits: &str| digits.parse().ok().filter(|&n: &u32| n < 1 << 16);
        match text {
            "auto" => Some(EngineDevice::Auto),
            "cpu" | "host" => Some(EngineDevice::Cpu),
            "cuda" => Some(EngineDevice::Cuda(0)),
            _ => text.strip_prefix("cuda:").and_then(number).map(EngineDevice::Cuda),
        }
        .ok_or_else(|| InferError::Unavailable {
            what: format!("device {text}"),
            why: "engines run on auto, cpu and cuda:N".into(),
        })
    }
}

/// How a model should run. [`EngineInfo::fallbacks`](super::EngineInfo::fallbacks) lists what an
/// engine does differently.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Where to run.
    pub device: EngineDevice,
    /// Threads on the CPU; `None` leaves it to the engine.
    pub threads: Option<usize>,
    /// The limit for the engine's memory on a GPU.
    pub memory_limit: Option<Bytes>,
    /// The file of ONNX Runtime's library, or of our shim for TensorRT (recognised by its
    /// name); no other place is searched then.
    pub library: Option<PathBuf>,
    /// A fallback is an error.
    pub strict: bool,
    /// Ask ONNX Runtime for its TensorRT provider before CUDA.
    pub tensorrt: bool,
    /// Capture the work on a GPU in a CUDA graph and replay it, where the model allows.
    pub cuda_graph: bool,
    /// Rows and columns to run at; a model that has another size is an error. `None` runs at the
    /// size that the model has, or at 640x640 where it takes any.
    pub input_size: Option<(usize, usize)>,
    /// What the `echo` engine answers.
    pub echo: EchoOptions,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            device: EngineDevice::Auto,
            threads: None,
            memory_limit: None,
            library: None,
            strict: false,
            tensorrt: false,
            cuda_graph: true,
            input_size: None,
            echo: EchoOptions::default(),
        }
    }
}

impl EngineOptions {
    /// Rows and columns for a model that takes any.
    #[must_use]
    pub fn open_size(&self) -> (usize, usize) {
        self.input_size.unwrap_or(GraphOptions::default().size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_as_they_are_written() {
        for text in ["auto", "rten", "ort", "tensorrt", "echo"] {
            assert_eq!(text.parse::<EngineChoice>().expect("known").to_string(), text);
        }
        for text in ["auto", "cpu", "cuda:0", "cuda:3"] {
            assert_eq!(text.parse::<EngineDevice>().expect("known").to_string(), text);
        }
        assert_eq!("host".parse::<EngineDevice>().expect("known"), EngineDevice::Cpu);
    }

    #[test]
    fn strangers_are_refused_with_the_choices() {
        let error = "onnx".parse::<EngineChoice>().expect_err("unknown").to_string();
        assert!(error.contains("rten"), "{error}");
        for text in ["cuda:", "cuda:-1", "cuda:99999", "gpu", ""] {
            assert!(text.parse::<EngineDevice>().is_err(), "{text}");
        }
    }
}
