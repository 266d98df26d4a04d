//! A decoder in PyTorch: the requests of a prompt and some tokens after it, or of training steps,
//! in order.
//!
//! ```text
//! layers (decoder, attention) ─→ operators ─→ tape ─→ caching allocator
//! ```
//!
//! Layers are as Transformers has them. What differs between families is a
//! [`DecoderStyle`](crate::families::style::DecoderStyle): causes such as a norm in 32 bits,
//! an activation function in Python, keys that heads share, a window, experts. Which attention
//! runs follows from these and from the type (`attention`).

mod attention;
mod decoder;
mod inner;
mod job;
mod loaded;
mod operators;
mod ops;
mod shares;
mod tape;
#[cfg(test)]
mod tests;
mod train;

use self::decoder::{EagerPass, KeptPair};
use self::tape::EagerTape;
use super::super::walk::torch::{CUBLAS, TorchMemory};
use crate::LayerCache;
use crate::families::attention::{AttentionKind, OtherAttention};
use crate::families::style::DecoderStyle;

pub(crate) use self::decoder::EagerDecoder;
pub(crate) use self::job::{EagerAdapters, EagerBase, EagerJob};
pub(crate) use self::train::EagerTraining;

/// Numbers of weights in a layer.
const LAYER_WEIGHTS: usize = 16;
/// Where the numbers of adapters begin.
const ADAPTERS: usize = 1 << 24;
/// Tokens that are generated after a prompt.
const NEW_TOKENS: u64 = 8;

/// What a layer keeps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EagerCache {
    /// Elements of keys and of values for a token.
    pub(crate) widths: [u64; 2],
    /// How many tokens it looks back.
    pub(crate) window: Option<u64>,
    /// A recurrent state of all sequences.
    pub(crate) state: u64,
}

impl EagerCache {
    pub(crate) fn new(cache: &LayerCache, sequences: u64) -> EagerCache {
        EagerCache {
            widths: [cache.key_width, cache.value_width],
            window: cache.window,
            state: cache.state_bytes.saturating_mul(sequences).get(),
        }
    }

    /// Tokens of each sequence that memory is held for after a pass: of a prompt all, as what is
    /// kept of it is a view.
    fn held(&self, pass: EagerPass) -> u64 {
        match self.window {
            Some(window) if pass.count == 1 => window.min(pass.tokens),
            _ => pass.tokens,
        }
    }

    /// All that it keeps of this many tokens of each sequence in the end.
    pub(crate) fn bytes(&self, sequences: u64, tokens: u64, width: u64) -> u64 {
        let tokens = self.held(EagerPass { count: 1, tokens }).saturating_mul(sequences);
        let [keys, values] = self.widths;
        let token = keys.saturating_add(values).saturating_mul(width);
        token.saturating_mul(tokens).saturating_add(self.state)
    }
}

impl EagerDecoder<'_> {
    /// What is reserved for weights of these sizes, and a prompt that leaves room for some tokens.
    pub(crate) fn memory(&self, weights: &[u64]) -> TorchMemory {
        let mut tape = EagerTape::within(self.room);
        for &bytes in weights {
            tape.settle(bytes);
        }
        let states: Vec<_> = self.caches.iter().map(|kept| tape.take(kept.state)).collect();
        let mut kept: Vec<KeptPair> = vec![None; self.caches.len()];
        let new = NEW_TOKENS.min(self.tokens / 2).max(1);
        let prompt = self.tokens.saturating_sub(new).max(1);
        self.generate(&mut tape, EagerPass { count: prompt, tokens: prompt }, &mut kept);
        for done in 1..new {
            let tokens = prompt.saturating_add(done);
            let count = if self.caches() { 1 } else { tokens };
            self.generate(&mut tape, EagerPass { count, tokens }, &mut kept);
        }
        drop(states);
        let held = tape.figures();
        let kept = self.caches.iter().filter(|_| self.caches()).fold(0, |sum: u64, kept| {
            sum.saturating_add(kept.bytes(self.batch, self.tokens, self.width()))
        });
        TorchMemory { live: held.live.saturating_sub(kept), products: CUBLAS.iter().sum(), ..held }
    }

    /// The same decoder with other attention.
    pub(crate) fn with(&self, other: OtherAttention) -> Self {
        let attention = AttentionKind::Operators(other.scores);
        EagerDecoder { style: DecoderStyle { attention, ..self.style }, ..self.clone() }
    }

    fn generate(&self, tape: &mut EagerTape<'_>, pass: EagerPass, kept: &mut [KeptPair]) {
        let (mut x, embedded) = self.embedding(tape, pass);
        let shared = self.shared(tape, pass);
        let mut last = None;
        for (layer, kept) in kept.iter_mut().enumerate() {
            (x, last) = self.layer(tape, (layer, pass), &x, &shared, kept);
        }
        drop(last);
        let x = tape.norm(&self.job, self.normed(), &x);
        drop((embedded, shared));
        let numbers = self.batch.saturating_mul(self.shape.vocab);
        let logits = tape.tensor(numbers, self.width());
        drop(x);
        let wide = tape.tensor(numbers, 4);
        drop((logits, wide));
    }
}
