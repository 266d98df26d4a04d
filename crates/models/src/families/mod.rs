//! Model families: what engines know of a family and its files do not say.
//!
//! # To add a family of language models
//!
//! Most need nothing: a file with the usual keys is estimated from its own numbers, and what is
//! missing is named in the estimate's notes. A family needs a line here
//!
//! 1. in [`gguf`], by its `general.architecture`, when its layers are windowed, recurrent or
//!    without a cache in a pattern that the header does not give;
//! 2. in [`huggingface`], by its `model_type`, when its MLP is not gated or it has biases;
//! 3. in [`style`], by its `model_type`, when its layers in Transformers do not run like Llama's;
//! 4. in [`attention`], by its `model_type`, which attention Transformers runs: until it is there, the upper
//!    end of its range has stored scores.
//!
//! A key that other families do not have is read in `gguf::layers` or `safetensors::config`. A
//! test in `gguf/tests.rs` or `safetensors/tests.rs` with a small header of the family shows the
//! bytes that each layer keeps; the figures come from the engine's own log.
//!
//! Whether its estimates count as checked is for [`checked`]: rows of it go into the grid of
//! `scripts/estimates-gpu`.
//!
//! Detectors in .pt files are not here: `graph/mod.rs` says how to add one.

pub(crate) mod attention;
pub(crate) mod checked;
pub(crate) mod gguf;
pub(crate) mod huggingface;
pub(crate) mod style;
