//! What each layer keeps, from the numbers of the header: widths, windows and states, for all
//! layers or as a list with one entry for each. What the file does not say of a family is in
//! [`families`].

use crate::families::gguf as families;
use crate::{Bytes, LayerCache, ModelShape};

use super::GgufError;
use super::keys::{GgufKeys, wrong};
use super::read::GgufValue;

/// Layers in a model, at most; a hostile header could ask for billions.
const MOST_LAYERS: u64 = 4096;

/// The numbers of a header that decide what layers keep.
pub(super) struct LayerNumbers<'a> {
    keys: &'a GgufKeys<'a>,
    layers: usize,
    hidden: u64,
    heads: Vec<u64>,
    kv_heads: Vec<u64>,
    inner: Vec<u64>,
}

impl<'a> LayerNumbers<'a> {
    pub(super) fn new(keys: &'a GgufKeys<'a>) -> Result<LayerNumbers<'a>, GgufError> {
        let all = keys.needed("block_count")?;
        // Layers that guess further tokens are loaded and not run.
        let layers = all.saturating_sub(keys.or_zero("nextn_predict_layers")?);
        if layers == 0 || layers > MOST_LAYERS {
            return Err(wrong(
                "block_count",
                &format!("leaves {layers} layers; 1 to {MOST_LAYERS} can be"),
            ));
        }
        let layers = usize::try_from(layers).unwrap_or(0);
        let per_layer = |key| keys.per_layer(key, layers);
        let heads = per_layer("attention.head_count")?.unwrap_or_else(|| vec![0; layers]);
        let kv_heads = per_layer("attention.head_count_kv")?.unwrap_or_else(|| heads.clone());
        let inner = per_layer("feed_forward_length")?.unwrap_or_else(|| vec![0; layers]);
        let hidden = keys.needed("embedding_length")?;
        LayerNumbers { keys, layers, hidden, heads, kv_heads, inner }.looped()
    }

    /// A model that goes through its layers several times keeps a cache for every time.
    fn looped(mut self) -> Result<LayerNumbers<'a>, GgufError> {
        let loops = self.keys.number("num_loops")?.unwrap_or(1).max(1);
        let layers = loops.saturating_mul(self.layers as u64);
        if layers > MOST_LAYERS {
            return Err(wrong("num_loops", &format!("makes {layers} layers of them")));
        }
        let loops = usize::try_from(loops).unwrap_or(1);
        for list in [&mut self.heads, &mut self.kv_heads, &mut self.inner] {
            *list = list.repeat(loops);
        }
        self.layers *= loops;
        Ok(self)
    }

    fn is(&self, families: &[&str]) -> bool {
        families.contains(&self.keys.architecture)
    }

    pub(super) fn shape(&self, notes: &mut Vec<String>) -> Result<ModelShape, GgufError> {
        let keys = self.keys;
        let tensors = &keys.header.tensors;
        let listed = match keys.header.values.get("tokenizer.ggml.tokens") {
            Some(GgufValue::Skipped(n)) => Some(*n),
            _ => None,
        };
        let vocab = tensors.vocab.or(keys.number("vocab_size")?).or(listed).unwrap_or(1);
        let most = |list: &[u64]| list.iter().copied().max().unwrap_or(0).max(1);
        let experts = keys.or_zero("expert_count")?.max(1);
        let used = keys.or_zero("expert_used_count")?.clamp(1, experts);
        let inner = match keys.or_zero("expert_feed_forward_length")? {
            inner if experts > 1 && inner > 0 => inner,
            _ => most(&self.inner),
        };
        let heads = most(&self.heads);
        let head_width = self.head_width("attention.key_length")?.max(1);
        let shape =
            ModelShape::new(self.hidden.max(1), inner, self.layers as u64, vocab.max(1), heads)
                .with_kv_heads(most(&self.kv_heads))
                .with_head_dim(head_width)
                .with_experts(experts, used)
                .with_tied_embeddings(tensors.output_bytes == 0)
                .with_fused_qkv(tensors.fused_qkv)
                .with_mlp(if tensors.gated {
                    crate::estimate::Mlp::Gated
                } else {
                    crate::estimate::Mlp::Plain
                })
                .with_parallel_residual(keys.or_zero("use_parallel_residual")? > 0)
                .with_caches(self.caches(notes)?);
        Ok(shape)
    }

    fn head_width(&self, key: &str) -> Result<u64, GgufError> {
        let heads = self.heads.iter().copied().find(|&n| n > 0).unwrap_or(0);
        let usual = self.hidden.checked_div(heads).unwrap_or(0);
        Ok(self.keys.number(key)?.unwrap_or(usual))
    }

    fn caches(&self, notes: &mut Vec<String>) -> Result<Vec<LayerCache>, GgufError> {
        if self.is(&families::ENCODERS) || self.keys.number("attention.causal")? == Some(0) {
            return Ok(vec![LayerCache::none(); self.layers]);
        }
        if self.is(&families::COMPRESSED_BLOCKS) {
            notes.push(format!(
                "{} keeps compressed blocks beside its cache: they are not counted",
                self.keys.architecture
            ));
        }
        let keys = self.keys;
        let (key, value) =
            (self.head_width("attention.key_length")?, self.head_width("attention.value_length")?);
        let key_swa = keys.number("attention.key_length_swa")?.unwrap_or(key);
        let value_swa = keys.number("attention.value_length_swa")?.unwrap_or(value);
        // One compressed vector a token for keys and values together.
        let compressed = keys.or_zero("attention.key_length_mla")? > 0;
        let indexer = keys.or_zero("attention.indexer.key_length")?;
        let indexed = self.indexed()?;
        let windows = self.windows()?;
        let recurrent = self.recurrent()?;
        let state = Bytes(self.state_elements()?.saturating_mul(4));
        let own_caches = self.layers_with_own_cache()?;
        let both = self.is(&["falcon-h1"]);
        let cache = |layer: usize| {
            if recurrent[layer] && !both {
                return LayerCache::state(state);
            }
            if layer >= own_caches || self.kv_heads[layer] == 0 {
                return LayerCache::none();
            }
            let (key, value) =
                if windows[layer].is_some() { (key_swa, value_swa) } else { (key, value) };
            let heads = self.kv_heads[layer];
            let values = if compressed { 0 } else { heads.saturating_mul(value) };
            let indexer = if indexed[layer] { indexer } else { 0 };
            let mut cache =
                LayerCache::full(heads.saturating_mul(key).saturating_add(indexer), values);
            cache.window = windows[layer];
            if both {
                cache.state_bytes = state;
            }
            cache
        };
        Ok((0..self.layers).map(cache).collect())
    }

    /// How far each layer looks back; `None` is the whole context.
    fn windows(&self) -> Result<Vec<Option<u64>>, GgufError> {
        let key = "attention.sliding_window_pattern";
        let known = families::WINDOWED.iter().find(|row| row.family == self.keys.architecture);
        let stated = self.keys.number("attention.sliding_window")?;
        let window = match known {
            Some(family) => family.window(stated, self.layers),
            None => stated.filter(|&tokens| tokens > 0),
        };
        let Some(window) = window else { return Ok(vec![None; self.layers]) };
        if let Some(GgufValue::Numbers(_)) = self.keys.value(key) {
            let list = self.keys.per_layer(key, self.layers)?.unwrap_or_default();
            return Ok(list.into_iter().map(|n| (n != 0).then_some(window)).collect());
        }
        // A window that the engine does not use for this family: the whole context is kept.
        let Some(family) = known else { return Ok(vec![None; self.layers]) };
        let period = self.keys.number(key)?.unwrap_or(family.period);
        let windowed = |layer| family.is_windowed(layer, period).then_some(window);
        Ok((0..self.layers as u64).map(windowed).collect())
    }

    /// Which layers have an index of their keys beside the cache: all, unless the file has a list.
    fn indexed(&self) -> Result<Vec<bool>, GgufError> {
        let list = self.keys.per_layer("attention.indexer.types", self.layers)?;
        Ok(list.map_or_else(
            || vec![true; self.layers],
            |list| list.into_iter().map(|n| n != 0).collect(),
        ))
    }

    /// Which layers keep a state and no cache.
    fn recurrent(&self) -> Result<Vec<bool>, GgufError> {
        let key = "attention.recurrent_layers";
        if let Some(GgufValue::Numbers(_)) = self.keys.value(key) {
            let list = self.keys.per_layer(key, self.layers)?.unwrap_or_default();
            return Ok(list.into_iter().map(|n| n != 0).collect());
        }
        if self.is(&families::RECURRENT) || self.is(&["falcon-h1"]) {
            return Ok(vec![true; self.layers]);
        }
        if self.is(&families::INTERVAL) {
            let interval = self.keys.number("full_attention_interval")?.unwrap_or(4).max(1);
            return Ok((1..=self.layers as u64).map(|n| !n.is_multiple_of(interval)).collect());
        }
        let without_heads = |layer: usize| {
            let mlp_alone = self.is(&["nemotron_h", "nemotron_h_moe"]) && self.inner[layer] > 0;
            self.is(&families::HYBRID) && self.kv_heads[layer] == 0 && !mlp_alone
        };
        Ok((0..self.layers).map(without_heads).collect())
    }

    /// Elements of a recurrent layer's state: what its convolution looks back on, and what it
    /// sums up.
    fn state_elements(&self) -> Result<u64, GgufError> {
        let number = |key| self.keys.or_zero(key);
        let heads = self.heads.iter().copied().max().unwrap_or(0);
        let wkv = number("wkv.head_size")?;
        if wkv > 0 {
            let shifts = self.keys.number("token_shift_count")?.unwrap_or(2);
            return Ok(self.hidden.saturating_mul(shifts.saturating_add(wkv)));
        }
        let (kernel, inner) = (number("ssm.conv_kernel")?, number("ssm.inner_size")?);
        let (state, groups) = (number("ssm.state_size")?, number("ssm.group_count")?);
        let short = number("shortconv.l_cache")?;
        let kda = number("kda.head_dim")?;
        if kda > 0 {
            let back = if kernel > 0 { kernel - 1 } else { 3 };
            let inner = heads.saturating_mul(kda);
            return Ok(inner.saturating_mul(back.saturating_mul(3).saturating_add(kda)));
        }
        if self.is(&["minimax-01"]) {
            let width = self.head_width("attention.key_length")?;
            return Ok(heads.saturating_mul(width).saturating_mul(width));
        }
        let looked_back = if short > 0 {
            self.hidden.saturating_mul(short - 1)
        } else {
            let groups = groups.saturating_mul(state).saturating_mul(2);
            kernel.saturating_sub(1).saturating_mul(inner.saturating_add(groups))
        };
        Ok(looked_back.saturating_add(state.saturating_mul(inner)))
    }

    /// Layers from this one on use the cache of an earlier one.
    fn layers_with_own_cache(&self) -> Result<usize, GgufError> {
        let shared = match self.keys.number("attention.shared_kv_layers")? {
            Some(shared) => usize::try_from(shared).unwrap_or(usize::MAX),
            None if self.is(&["gemma3n"]) => self.layers.saturating_sub(20),
            None => 0,
        };
        Ok(self.layers.saturating_sub(shared))
    }
}
