//! A decoder in PyTorch: the requests of a prompt and of one token after it, in order.
//!
//! Layers as Transformers has them: a norm in 32 bits, rotary positions, keys and values
//! copied behind the cache, attention, and the MLP. Attention stores no scores, except in older
//! families ([`Scores`]). Models differ in small things (biases, norms of queries, fused
//! matrices) that change little of what lives.

use crate::{LayerCache, Mlp, ModelShape};

use super::super::walk::torch::{CUBLAS, CachedBlockId, Caching, TorchMemory};

/// What attention stores of its scores, a number for each head and each pair of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scores {
    /// Nothing: a fused kernel.
    Fused,
    /// Transformers' own operators: scores, the same with the mask, and what a softmax in 32
    /// bits makes of them in their own type.
    Operators,
    /// PyTorch's own operators, where it finds no fused kernel: nine bytes, which is before and
    /// after the softmax in 32 bits and a byte for what is masked, fit what an H200 held.
    Fallback,
}

impl Scores {
    /// Of a family of Transformers: those that are biased by distance or were never rewritten
    /// have operators of their own. Falcon hands PyTorch's attention one head of keys for all,
    /// where others give each a copy or say that they share; it was seen not to be fused.
    pub(super) fn of(family: &str, one_head_of_keys: bool) -> Scores {
        match family {
            "bloom" | "mpt" | "gptj" | "gpt_neo" | "codegen" => Scores::Operators,
            "falcon" if one_head_of_keys => Scores::Fallback,
            _ => Scores::Fused,
        }
    }
}

/// A decoder and how it is run.
pub(super) struct EagerDecoder<'a> {
    pub(super) shape: &'a ModelShape,
    /// Bytes of an element of what is computed.
    pub(super) element: u64,
    /// What attention stores.
    pub(super) scores: Scores,
    /// Bytes of a token's keys and values in each layer's cache, and of its state.
    pub(super) caches: Vec<EagerCache>,
}

/// What a layer keeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct EagerCache {
    /// Bytes of keys, and of values, for a token.
    pub(super) token: [u64; 2],
    /// The most tokens.
    pub(super) tokens: u64,
    /// A recurrent state.
    pub(super) state: u64,
    /// Elements of keys and of values that are computed for a token.
    widths: [u64; 2],
}

impl EagerCache {
    pub(super) fn new(cache: &LayerCache, token: [u64; 2], tokens: u64, state: u64) -> EagerCache {
        EagerCache { token, tokens, state, widths: [cache.key_width, cache.value_width] }
    }

    /// Of keys and of values, for this many tokens.
    fn bytes(&self, tokens: u64) -> [u64; 2] {
        self.token.map(|token| token.saturating_mul(tokens.min(self.tokens)))
    }

    /// All that it keeps in the end.
    pub(super) fn all(&self) -> u64 {
        let [keys, values] = self.bytes(u64::MAX);
        keys.saturating_add(values).saturating_add(self.state)
    }
}

impl EagerDecoder<'_> {
    /// What is reserved for weights of these sizes, and a prompt that leaves room for one token.
    pub(super) fn memory(&self, weights: &[u64]) -> TorchMemory {
        let mut run = EagerRun::default();
        for &bytes in weights {
            run.torch.take(bytes);
        }
        let mut cache: Vec<[EagerTensor; 3]> = Vec::new();
        for kept in &self.caches {
            cache.push([run.take(0), run.take(0), run.take(kept.state)]);
        }
        let prompt = self.shape.context.saturating_sub(1).max(1);
        self.forward(&mut run, &mut cache, prompt, prompt);
        self.forward(&mut run, &mut cache, 1, prompt.saturating_add(1));
        let kept = self.caches.iter().fold(0, |sum: u64, kept| sum.saturating_add(kept.all()));
        TorchMemory {
            reserved: run.torch.reserved(),
            allocated: run.torch.peak(),
            live: run.most.saturating_sub(kept),
            products: CUBLAS.iter().sum(),
            largest_segment: run.torch.largest_segment(),
            ..TorchMemory::default()
        }
    }

    /// `count` tokens at once, after which there are `tokens`.
    fn forward(&self, run: &mut EagerRun, cache: &mut [[EagerTensor; 3]], count: u64, tokens: u64) {
        let embedded = run.take(self.bytes(count, self.shape.hidden));
        let mut x = EagerTensor::default();
        for (kept, cache) in self.caches.iter().zip(cache) {
            let y = self.layer(run, kept, cache, count, tokens);
            run.free([std::mem::replace(&mut x, y)]);
        }
        let logits = run.take(self.shape.vocab.saturating_mul(4));
        run.free([logits, x, embedded]);
    }

    fn layer(
        &self,
        run: &mut EagerRun,
        kept: &EagerCache,
        cache: &mut [EagerTensor; 3],
        count: u64,
        tokens: u64,
    ) -> EagerTensor {
        let shape = self.shape;
        let hidden = self.bytes(count, shape.hidden);
        let heads = self.bytes(count, shape.heads.saturating_mul(shape.head_width()));
        let [key_width, value_width] = kept.widths.map(|width| self.bytes(count, width));

        let normed = run.norm(hidden);
        let mut query = run.take(heads);
        run.first_product();
        let (mut keys, values) = (run.take(key_width), run.take(value_width));
        for turned in [&mut query, &mut keys] {
            let new = run.take(turned.bytes);
            run.free([std::mem::replace(turned, new)]);
        }
        for (place, bytes) in cache.iter_mut().zip(kept.bytes(tokens)) {
            let longer = run.take(bytes);
            run.free([std::mem::replace(place, longer)]);
        }
        run.free([keys, values]);
        let scores = self.scores(run, count, tokens);
        let attended = run.take(heads);
        run.free([query]);
        run.free(scores);
        let projected = run.take(hidden);
        run.free([attended, normed]);
        let residual = run.take(hidden);
        run.free([projected]);

        let normed = run.norm(hidden);
        let wide = shape.intermediate.saturating_mul(shape.experts_used);
        let inner = self.mlp(run, self.bytes(count, wide));
        let down = run.take(hidden);
        run.free([inner, normed]);
        let out = run.take(hidden);
        run.free([down, residual]);
        out
    }

    fn scores(&self, run: &mut EagerRun, count: u64, tokens: u64) -> [EagerTensor; 3] {
        let each = tokens / self.shape.sequences.max(1);
        let numbers = count.saturating_mul(each).saturating_mul(self.shape.heads);
        let (own, wide) = (numbers.saturating_mul(self.element), numbers.saturating_mul(4));
        match self.scores {
            Scores::Fused => Default::default(),
            Scores::Operators => {
                let (scores, masked, shares) = (run.take(own), run.take(own), run.take(wide));
                let narrow = run.take(own);
                run.free([shares]);
                [scores, masked, narrow]
            }
            Scores::Fallback => [run.take(wide), run.take(wide), run.take(numbers)],
        }
    }

    fn mlp(&self, run: &mut EagerRun, wide: u64) -> EagerTensor {
        let first = run.take(wide);
        let activated = run.take(wide);
        run.free([first]);
        if self.shape.mlp == Mlp::Plain {
            return activated;
        }
        let up = run.take(wide);
        let product = run.take(wide);
        run.free([activated, up]);
        product
    }

    fn bytes(&self, tokens: u64, width: u64) -> u64 {
        tokens.saturating_mul(width).saturating_mul(self.element)
    }
}

/// A tensor that lives.
#[derive(Debug, Clone, Copy, Default)]
struct EagerTensor {
    place: Option<CachedBlockId>,
    bytes: u64,
}

/// The allocator, and what lives in it besides weights.
#[derive(Default)]
struct EagerRun {
    torch: Caching,
    live: u64,
    most: u64,
    has_product: bool,
}

impl EagerRun {
    fn take(&mut self, bytes: u64) -> EagerTensor {
        self.live = self.live.saturating_add(bytes);
        self.most = self.most.max(self.live);
        EagerTensor { place: self.torch.take(bytes), bytes }
    }

    fn free<const N: usize>(&mut self, tensors: [EagerTensor; N]) {
        for tensor in tensors {
            self.live = self.live.saturating_sub(tensor.bytes);
            self.torch.free(tensor.place);
        }
    }

    /// In 32 bits inside: the input so, its squares, what is scaled, and that in its own type.
    fn norm(&mut self, bytes: u64) -> EagerTensor {
        let wide = bytes.saturating_mul(2);
        let (input, squares) = (self.take(wide), self.take(wide));
        self.free([squares]);
        let scaled = self.take(wide);
        self.free([input]);
        let narrow = self.take(bytes);
        self.free([scaled]);
        let normed = self.take(bytes);
        self.free([narrow]);
        normed
    }

    fn first_product(&mut self) {
        if !std::mem::replace(&mut self.has_product, true) {
            for bytes in CUBLAS {
                self.torch.take(bytes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two layers, 1,024 wide with an MLP of four times that, 16-bit, and this many tokens.
    fn memory(context: u64, mlp: Mlp) -> TorchMemory {
        of(context, mlp, Scores::Fused)
    }

    fn of(context: u64, mlp: Mlp, scores: Scores) -> TorchMemory {
        let shape = ModelShape::new(1024, 4096, 2, 1000, 8).with_context(context).with_mlp(mlp);
        let cache = LayerCache::full(1024, 1024);
        let kept = EagerCache::new(&cache, [2048; 2], context, 0);
        EagerDecoder { shape: &shape, element: 2, scores, caches: vec![kept; 2] }.memory(&[])
    }

    #[test]
    fn what_lives_at_the_mlp_is_four_vectors_and_the_wide_ones() {
        // The embedded prompt, the layer's input, the residual and its norm, each 1,024 wide;
        // and 4,096 wide three times, or twice.
        let token = 2 * 1024;
        for (mlp, wide) in [(Mlp::Gated, 3), (Mlp::Plain, 2)] {
            assert_eq!(memory(4097, mlp).live, 4096 * token * (4 + wide * 4) - 4 * token, "{mlp}");
        }
    }

    #[test]
    fn scores_grow_with_the_square_of_the_prompt() {
        assert_eq!(Scores::of("bloom", false), Scores::Operators);
        assert_eq!(Scores::of("falcon", true), Scores::Fallback);
        let fused = [("falcon", false), ("llama", true)];
        assert!(fused.iter().all(|(name, one)| Scores::of(name, *one) == Scores::Fused));
        let (token, square) = (2 * 1024, 4096 * 4096);
        assert_eq!(memory(4097, Mlp::Plain).live, 4096 * token * 12 - 4 * token);
        // 8 heads; scores, masked, in 32 bits, and what is used: ten bytes; or twice in 32 bits
        // and a mask: nine. Beside them the prompt, the layer's input, its norm and the
        // queries, in place of all of the MLP.
        for (scores, bytes) in [(Scores::Operators, 10), (Scores::Fallback, 9)] {
            let held = of(4097, Mlp::Plain, scores);
            let attended = if scores == Scores::Fallback { 4096 * token } else { 0 };
            assert_eq!(held.live - attended, 8 * square * bytes + 4096 * token * 4 - 4 * token);
        }
    }

    #[test]
    fn products_are_counted_once_and_segments_are_whole() {
        let small = memory(2, Mlp::Gated);
        assert_eq!(small.products, 33 << 20);
        // All of one token is small: 32 MiB for cuBLAS, and its sister among the rest.
        assert_eq!(small.reserved, (32 + 2) << 20);
        let large = memory(4097, Mlp::Gated);
        assert!(large.reserved > large.live + large.products && large.allocated < large.reserved);
    }
}
