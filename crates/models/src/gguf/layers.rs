//! What each layer keeps, from the numbers of the header.
//!
//! The header gives widths, windows and states, for all layers or as a list with one entry for
//! each; which layers look through the window, and which are recurrent, is for some families
//! not in the file but known to the engine. Those facts about llama.cpp (seen in its sources of
//! August 2026) stand here as tables, by the name of the architecture. A file with a list of
//! its own always wins over the table.

use crate::{Bytes, LayerCache, ModelShape};

use super::GgufError;
use super::read::{Header, Tensors, Value};

/// Layers in a model, at most; a hostile header could ask for billions.
const MOST_LAYERS: u64 = 4096;
/// Widths and counts above this are no model's.
const MOST: u64 = 1 << 40;

/// Which layers look back through a window, where the file has no list: every layer but the
/// last of a period (`false`) or the first of it (`true`).
const WINDOWED: [(&str, Option<u64>, u64, bool); 17] = [
    ("gemma2", Some(4096), 2, false),
    ("gemma3", None, 6, false),
    ("gemma3n", None, 5, false),
    ("cohere2", None, 4, false),
    ("cohere2moe", None, 4, true),
    ("llama4", Some(8192), 4, false),
    ("gpt-oss", None, 2, false),
    ("exaone4", Some(4096), 4, false),
    ("exaone-moe", Some(128), 4, false),
    ("olmo2", None, 4, false),
    ("smallthinker", None, 4, true),
    ("afmoe", None, 4, false),
    ("plamo3", None, 8, false),
    ("mellum", None, 4, false),
    ("laguna", None, 4, true),
    ("lfm2", None, 0, false),
    ("muse-glimmer", None, 4, false),
];

/// Families that keep a state in every layer and no cache.
const RECURRENT: [&str; 6] = ["mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"];

/// Families that are recurrent where a layer has no key-value heads.
const HYBRID: [&str; 10] = [
    "jamba",
    "plamo2",
    "granitehybrid",
    "lfm2",
    "lfm2moe",
    "nemotron_h",
    "nemotron_h_moe",
    "kimi-linear",
    "kimi-k3",
    "bailingmoe3",
];

/// Families that are recurrent in all layers but every fourth, unless the file says otherwise.
const INTERVAL: [&str; 4] = ["qwen3next", "qwen35", "qwen35moe", "minimax-01"];

/// Families that see the whole input at once and keep nothing.
const ENCODERS: [&str; 15] = [
    "bert",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "eurobert",
    "gemma-embedding",
    "dream",
    "llada",
    "llada-moe",
    "rnd1",
    "t5encoder",
    "wavtokenizer-dec",
];

/// A model as its header describes it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Model {
    /// The family: `llama`, `gemma3`, …
    pub architecture: String,
    /// What it calls itself.
    pub name: Option<String>,
    /// Its tensors.
    pub tensors: Tensors,
    /// The length of the file, or of all parts.
    pub file_bytes: u64,
    /// The context that it was trained for.
    pub trained_context: Option<u64>,
    /// Its shape with what each layer keeps, for the context, types and micro-batch to be set;
    /// `None` where the file is no language model and has weights alone.
    pub shape: Option<ModelShape>,
    /// What the estimate leaves out or takes for granted.
    pub notes: Vec<String>,
}

impl Model {
    /// What a header means.
    ///
    /// # Errors
    /// [`GgufError::Key`] where a number that is needed is missing or cannot be.
    pub fn new(header: &Header) -> Result<Model, GgufError> {
        let architecture = header.text("general.architecture").unwrap_or("unknown").to_string();
        let keys = Keys { header, architecture: &architecture };
        let mut notes = Vec::new();
        let shape = match keys.number("block_count")? {
            Some(_) => Some(Reading::new(&keys)?.shape(&mut notes)?),
            None => {
                notes.push(format!(
                    "the header of this {architecture} file has no block_count: only weights are counted"
                ));
                None
            }
        };
        Ok(Model {
            name: header.text("general.name").map(str::to_string),
            tensors: header.tensors.clone(),
            file_bytes: header.file_bytes,
            trained_context: keys.number("context_length")?,
            shape,
            notes,
            architecture,
        })
    }
}

/// The keys of one architecture.
struct Keys<'a> {
    header: &'a Header,
    architecture: &'a str,
}

impl Keys<'_> {
    fn value(&self, key: &str) -> Option<&Value> {
        self.header.values.get(&format!("{}.{key}", self.architecture))
    }

    fn number(&self, key: &str) -> Result<Option<u64>, GgufError> {
        match self.value(key) {
            Some(Value::Number(n)) => bounded(key, *n).map(Some),
            // A list where one number is expected: the largest.
            Some(Value::Numbers(list)) => {
                bounded(key, list.iter().copied().max().unwrap_or(0)).map(Some)
            }
            None | Some(Value::Skipped(_)) => Ok(None),
            Some(_) => Err(wrong(key, "is no number")),
        }
    }

    fn or_zero(&self, key: &str) -> Result<u64, GgufError> {
        Ok(self.number(key)?.unwrap_or(0))
    }

    fn needed(&self, key: &str) -> Result<u64, GgufError> {
        self.number(key)?.ok_or_else(|| wrong(key, "is missing"))
    }

    /// One number for each layer: a list, or the same for all.
    fn per_layer(&self, key: &str, layers: usize) -> Result<Option<Vec<u64>>, GgufError> {
        match self.value(key) {
            None => Ok(None),
            Some(Value::Number(n)) => Ok(Some(vec![bounded(key, *n)?; layers])),
            Some(Value::Numbers(list)) if list.len() >= layers => list
                .iter()
                .take(layers)
                .map(|&n| bounded(key, n))
                .collect::<Result<_, _>>()
                .map(Some),
            Some(Value::Numbers(list)) => {
                Err(wrong(key, &format!("has {} entries for {layers} layers", list.len())))
            }
            Some(_) => Err(wrong(key, "is no number and no list of numbers")),
        }
    }
}

fn bounded(key: &str, n: i64) -> Result<u64, GgufError> {
    u64::try_from(n)
        .ok()
        .filter(|&n| n <= MOST)
        .ok_or_else(|| wrong(key, &format!("is {n}, which no model has")))
}

fn wrong(key: &str, why: &str) -> GgufError {
    GgufError::Key { key: key.to_string(), why: why.to_string() }
}

/// The numbers of a header that decide what layers keep.
struct Reading<'a> {
    keys: &'a Keys<'a>,
    layers: usize,
    hidden: u64,
    heads: Vec<u64>,
    kv_heads: Vec<u64>,
    inner: Vec<u64>,
}

impl<'a> Reading<'a> {
    fn new(keys: &'a Keys<'a>) -> Result<Reading<'a>, GgufError> {
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
        Reading { keys, layers, hidden, heads, kv_heads, inner }.looped()
    }

    /// A model that goes through its layers several times keeps a cache for every time.
    fn looped(mut self) -> Result<Reading<'a>, GgufError> {
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

    fn shape(&self, notes: &mut Vec<String>) -> Result<ModelShape, GgufError> {
        let keys = self.keys;
        let tensors = &keys.header.tensors;
        let listed = match keys.header.values.get("tokenizer.ggml.tokens") {
            Some(Value::Skipped(n)) => Some(*n),
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
        if self.is(&ENCODERS) || self.keys.number("attention.causal")? == Some(0) {
            return Ok(vec![LayerCache::none(); self.layers]);
        }
        if self.is(&["deepseek4", "minimax-m3", "dots3note"]) {
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
        let known = WINDOWED.iter().find(|row| row.0 == self.keys.architecture);
        let stated = self.keys.number("attention.sliding_window")?;
        let said = stated.filter(|&n| n > 0);
        let window = match (self.keys.architecture, known) {
            // It attends within chunks of this size, unless the file says that it has none.
            ("llama4", Some(row)) => row.1.filter(|_| stated != Some(0)),
            // The small ones of the family have no windows.
            ("exaone4", Some(_)) if self.layers != 64 => None,
            ("smallthinker", Some(_)) => said.map(|_| 4096),
            (_, Some(row)) => said.or(row.1),
            (_, None) => said,
        };
        let Some(window) = window else { return Ok(vec![None; self.layers]) };
        if let Some(Value::Numbers(_)) = self.keys.value(key) {
            let list = self.keys.per_layer(key, self.layers)?.unwrap_or_default();
            return Ok(list.into_iter().map(|n| (n != 0).then_some(window)).collect());
        }
        // A window that the engine does not use for this family: the whole context is kept.
        let Some(&(_, _, usual, first_is_full)) = known else { return Ok(vec![None; self.layers]) };
        let period = self.keys.number(key)?.unwrap_or(usual);
        let is_windowed = |layer: u64| match (layer.checked_rem(period), first_is_full) {
            (None, _) => true,
            (Some(place), true) => place != 0,
            (Some(place), false) => place < period - 1,
        };
        Ok((0..self.layers as u64).map(|n| is_windowed(n).then_some(window)).collect())
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
        if let Some(Value::Numbers(_)) = self.keys.value(key) {
            let list = self.keys.per_layer(key, self.layers)?.unwrap_or_default();
            return Ok(list.into_iter().map(|n| n != 0).collect());
        }
        if self.is(&RECURRENT) || self.is(&["falcon-h1"]) {
            return Ok(vec![true; self.layers]);
        }
        if self.is(&INTERVAL) {
            let interval = self.keys.number("full_attention_interval")?.unwrap_or(4).max(1);
            return Ok((1..=self.layers as u64).map(|n| !n.is_multiple_of(interval)).collect());
        }
        let without_heads = |layer: usize| {
            let mlp_alone = self.is(&["nemotron_h", "nemotron_h_moe"]) && self.inner[layer] > 0;
            self.is(&HYBRID) && self.kv_heads[layer] == 0 && !mlp_alone
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
