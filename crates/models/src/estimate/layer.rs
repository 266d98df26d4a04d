//! Variants of a layer: which matrices it has, and which of them have a bias.

use std::fmt;
use std::str::FromStr;

use plimsoll_machine::error::{Error, Result};

/// The feed-forward part of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Mlp {
    /// Three matrices: gate, up and down (Llama, Mistral, Qwen, Gemma).
    #[default]
    Gated,
    /// Two matrices: up and down (GPT-2, Pythia, Phi, Falcon).
    Plain,
}

impl fmt::Display for Mlp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Mlp::Gated => "gated",
            Mlp::Plain => "plain",
        })
    }
}

impl FromStr for Mlp {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text.trim().to_ascii_lowercase().as_str() {
            "gated" => Ok(Mlp::Gated),
            "plain" => Ok(Mlp::Plain),
            _ => Err(Error::Config {
                field: "mlp",
                value: format!("{text:?}"),
                range: "gated or plain",
            }),
        }
    }
}

/// Which matrices have a bias beside them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Biases {
    /// None (Llama, Mistral).
    #[default]
    None,
    /// Query, key and value (Qwen 2).
    Attention,
    /// Every matrix of a layer, and every norm (GPT-2, Pythia, Phi).
    All,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mlp_is_named_as_flags_name_it() {
        assert_eq!("Plain".parse::<Mlp>(), Ok(Mlp::Plain));
        assert_eq!(Mlp::Gated.to_string(), "gated");
        assert!("none".parse::<Mlp>().is_err());
    }
}
