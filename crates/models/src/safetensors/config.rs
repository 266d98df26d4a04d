//! `config.json`: a language model's shape in the words of Hugging Face.

use crate::families::huggingface as families;
use crate::families::style::{DecoderStyle, LatentStyle, NormPlaces};
use crate::{Bytes, LayerCache, ModelShape};
use serde_json::{Map, Value};

const MOST_LAYERS: u64 = 4096;
const MOST: u64 = 1 << 40;
/// Python's words for numbers that JSON does not have.
const NO_NUMBERS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// What a `config.json` says of a model.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct HfConfig {
    /// `llama`, `qwen2`, …
    pub model_type: String,
    /// The context that it was trained for.
    pub trained_context: Option<u64>,
    /// Its shape with what each layer keeps; `None` for a model that is no decoder.
    pub shape: Option<ModelShape>,
    /// What the estimate leaves out or takes for granted.
    pub notes: Vec<String>,
    /// How Transformers runs it.
    pub(crate) style: DecoderStyle,
}

impl HfConfig {
    /// Reads a `config.json`.
    ///
    /// # Errors
    /// A sentence, when it is no JSON or a number in it cannot be.
    pub fn parse(text: &str) -> Result<HfConfig, String> {
        let value: Value =
            serde_json::from_str(&with_quoted_numbers(text)).map_err(|error| error.to_string())?;
        let outer = value.as_object().ok_or("it is no object")?;
        // Models that also see keep the language part inside.
        let inner = ["text_config", "llm_config", "language_config"]
            .iter()
            .find_map(|key| outer.get(*key)?.as_object());
        let keys = ConfigKeys { map: inner.unwrap_or(outer), outer };
        let model_type = keys.text("model_type").unwrap_or("unknown").to_string();
        let mut notes = Vec::new();
        if inner.is_some() && outer.contains_key("vision_config") {
            notes.push("activations of the part that sees images are not counted".to_string());
        }
        let shape = match keys.first(&["num_hidden_layers", "n_layer", "num_layers", "n_layers"])? {
            Some(layers) if keys.first(&["vocab_size"])?.is_some() => {
                Some(keys.shape(layers, &model_type, &mut notes)?)
            }
            _ => {
                notes.push(
                    "its config.json describes no language model: only weights are counted".into(),
                );
                None
            }
        };
        let trained_context =
            keys.first(&["max_position_embeddings", "n_positions", "max_seq_len"])?;
        let style = keys.style(&model_type)?;
        Ok(HfConfig { model_type, trained_context, shape, notes, style })
    }
}

/// A text in which numbers that JSON has no word for are strings: Python writes and reads them as words.
fn with_quoted_numbers(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_string = false;
    while let Some(first) = rest.chars().next() {
        let word = NO_NUMBERS.iter().find(|word| !in_string && rest.starts_with(**word));
        let taken = match (word, first) {
            (Some(word), _) => word.len(),
            // What is escaped ends no string.
            (None, '\\') => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            _ => first.len_utf8(),
        };
        in_string ^= first == '"';
        let (piece, behind) = rest.split_at(taken);
        let mark = if word.is_some() { "\"" } else { "" };
        quoted.extend([mark, piece, mark]);
        rest = behind;
    }
    quoted
}

struct ConfigKeys<'a> {
    map: &'a Map<String, Value>,
    outer: &'a Map<String, Value>,
}

impl ConfigKeys<'_> {
    fn text(&self, key: &str) -> Option<&str> {
        self.map.get(key).or_else(|| self.outer.get(key))?.as_str()
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.map.get(key).or_else(|| self.outer.get(key))?.as_bool()
    }

    fn number(&self, key: &str) -> Result<Option<u64>, String> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let wrong = || format!("{key} is {value}, which no model has");
                value.as_u64().filter(|&n| n <= MOST).ok_or_else(wrong).map(Some)
            }
        }
    }

    fn first(&self, keys: &[&str]) -> Result<Option<u64>, String> {
        for key in keys {
            if let Some(n) = self.number(key)? {
                return Ok(Some(n));
            }
        }
        Ok(None)
    }

    fn needed(&self, keys: &[&str]) -> Result<u64, String> {
        self.first(keys)?.ok_or_else(|| format!("{} is missing", keys[0]))
    }

    fn shape(
        &self,
        layers: u64,
        kind: &str,
        notes: &mut Vec<String>,
    ) -> Result<ModelShape, String> {
        if layers == 0 || layers > MOST_LAYERS {
            return Err(format!("num_hidden_layers is {layers}; 1 to {MOST_LAYERS} can be"));
        }
        let hidden = self.needed(&["hidden_size", "n_embd", "d_model"])?;
        let vocab = self.needed(&["vocab_size"])?;
        let heads = self
            .first(&["num_attention_heads", "n_head", "n_heads", "num_heads"])?
            .unwrap_or(1)
            .max(1);
        let kv_heads = self.first(&["num_key_value_heads"])?.unwrap_or_else(|| {
            // Falcon and BigCode: one for all, where the newer way of several is not used.
            let one = self.flag("multi_query") == Some(true);
            let newer = self.flag("new_decoder_architecture") == Some(true);
            if one && !newer { 1 } else { heads }
        });
        let width = self.first(&["head_dim"])?.or_else(|| hidden.checked_div(heads)).unwrap_or(1);
        let inner = self.first(&["intermediate_size", "n_inner", "ffn_dim"])?;
        let experts = self.first(&["num_local_experts", "num_experts", "n_routed_experts"])?;
        let used = self.first(&["num_experts_per_tok"])?;
        let experts = experts.unwrap_or(1).max(1);
        let inner = match self.first(&["moe_intermediate_size"])? {
            Some(n) if experts > 1 => n,
            _ => inner.unwrap_or(hidden.saturating_mul(4)),
        };
        let tied = self.flag("tie_word_embeddings").unwrap_or_else(|| families::is_tied(kind));
        Ok(ModelShape::new(hidden.max(1), inner.max(1), layers, vocab.max(1), heads)
            .with_kv_heads(kv_heads.max(1))
            .with_head_dim(width.max(1))
            .with_experts(experts, used.unwrap_or(experts).clamp(1, experts))
            .with_tied_embeddings(tied)
            .with_biases(families::biases(kind))
            .with_mlp(families::mlp(kind))
            .with_caches(self.caches((layers, kind), kv_heads, width, notes)?))
    }

    /// How Transformers runs it.
    fn style(&self, kind: &str) -> Result<DecoderStyle, String> {
        let mut style = DecoderStyle::of(kind);
        let named = ["activation_function", "hidden_act", "hidden_activation", "activation"];
        let named = named.iter().find_map(|key| self.text(key));
        style.activation = families::activation(named, kind);
        let number = |keys: &[&str]| -> Result<u64, String> { Ok(self.first(keys)?.unwrap_or(0)) };
        let heads = number(&["num_attention_heads", "n_head", "n_heads", "num_heads"])?.max(1);
        let hidden = number(&["hidden_size", "n_embd", "d_model"])?;
        let head = self.first(&["head_dim"])?.unwrap_or(hidden / heads);
        let share = ["partial_rotary_factor", "rotary_pct"]
            .iter()
            .find_map(|key| self.map.get(*key)?.as_f64());
        let share = share.unwrap_or_else(|| families::turned_share(kind)).clamp(0.0, 1.0);
        style.turned = match self.first(&["rotary_dim"])? {
            Some(turned) => turned,
            None if share < 1.0 => (head as f64 * share) as u64,
            None => 0,
        };
        if let (Some(rank), Some(plain)) =
            (self.first(&["kv_lora_rank"])?, self.first(&["qk_nope_head_dim"])?)
        {
            style.latent = Some(LatentStyle {
                rank,
                query_rank: number(&["q_lora_rank"])?,
                plain,
                turned: number(&["qk_rope_head_dim"])?,
                value: self.first(&["v_head_dim"])?.unwrap_or(plain),
            });
        }
        let capped = self.map.get("final_logit_softcapping");
        style.caps_logits = capped.map_or(kind == "gemma2", |cap| !cap.is_null());
        let capped = self.map.get("attn_logit_softcapping");
        style.caps_scores = capped.map_or(style.caps_scores, |cap| !cap.is_null());
        style.embedded_width = number(&["word_embed_proj_dim"])?;
        if kind == "opt" && self.flag("do_layer_norm_before") == Some(false) {
            style.places = NormPlaces::Behind;
        }
        let each = number(&["moe_intermediate_size"])?;
        style.shared_width = match self.first(&["shared_expert_intermediate_size"])? {
            Some(wide) => wide,
            None => number(&["n_shared_experts"])?.saturating_mul(each),
        };
        // Where training wrote `false`, `generate` keeps a cache all the same: it can only be added.
        style.keeps_cache |= self.flag("use_cache") == Some(true);
        style.dense_layers = number(&["first_k_dense_replace"])?;
        style.dense_width = number(&["intermediate_size"])?;
        let expand = self.first(&["mamba_expand", "expand"])?.unwrap_or(2);
        style.state_channels =
            self.first(&["d_inner"])?.unwrap_or_else(|| hidden.saturating_mul(expand));
        style.has_states = families::has_states(kind) || self.state_bytes()? > 0;
        style.state_width =
            self.first(&["mamba_d_state", "ssm_state_size", "state_size"])?.unwrap_or(16);
        Ok(style)
    }

    /// What each layer keeps.
    fn caches(
        &self,
        (layers, kind): (u64, &str),
        kv_heads: u64,
        width: u64,
        notes: &mut Vec<String>,
    ) -> Result<Vec<LayerCache>, String> {
        let full = match self.first(&["kv_lora_rank"])? {
            Some(rank) => {
                notes.push(
                    "its cache is counted compressed; an engine that unfolds it keeps more".into(),
                );
                LayerCache::compressed(rank, self.first(&["qk_rope_head_dim"])?.unwrap_or(0))
            }
            None => {
                let all = kv_heads.saturating_mul(width);
                LayerCache::full(all, all)
            }
        };
        let uses_window = self.flag("use_sliding_window").unwrap_or(true);
        let window = self.first(&["sliding_window"])?.filter(|&n| n > 0 && uses_window);
        let windowed = window.map_or(full, |window| full.within(window));
        let state = LayerCache::state(Bytes(self.state_bytes()?));
        let own = layers.saturating_sub(self.first(&["num_kv_shared_layers"])?.unwrap_or(0));
        let kinds = self.kinds();
        let recurrent = families::is_recurrent(kind);
        let pattern = self.first(&["sliding_window_pattern"])?;
        let pattern = pattern.or_else(|| families::window_period(kind)).filter(|&n| n > 0);
        let period =
            self.first(&["attn_layer_period", "full_attention_interval"])?.filter(|&n| n > 0);
        let offset = self.first(&["attn_layer_offset"])?;
        let cache = |layer: u64| {
            if layer >= own {
                return LayerCache::none();
            }
            if recurrent {
                return state;
            }
            match kinds.get(layer as usize).map(String::as_str) {
                Some("sliding_attention" | "chunked_attention") => windowed,
                Some("full_attention" | "attention" | "hybrid") => full,
                Some(_) => state,
                None => match (period, pattern) {
                    // The one that attends is the last of its period unless said.
                    (Some(period), _)
                        if layer % period != offset.unwrap_or(period - 1) % period =>
                    {
                        state
                    }
                    (Some(_), _) => full,
                    (None, Some(pattern)) if (layer + 1).is_multiple_of(pattern) => full,
                    (None, _) => windowed,
                },
            }
        };
        Ok((0..layers).map(cache).collect())
    }

    fn kinds(&self) -> Vec<String> {
        let list = ["layer_types", "layers_block_type"]
            .iter()
            .find_map(|key| self.map.get(*key)?.as_array());
        let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
        list.map(|list| list.iter().take(MOST_LAYERS as usize).map(text).collect())
            .unwrap_or_default()
    }

    /// The state of a recurrent layer, in 32-bit floats.
    fn state_bytes(&self) -> Result<u64, String> {
        let number = |keys: &[&str]| -> Result<u64, String> { Ok(self.first(keys)?.unwrap_or(0)) };
        let hidden = number(&["hidden_size"])?;
        let short = number(&["conv_L_cache"])?;
        if short > 0 {
            return Ok(hidden.saturating_mul(short).saturating_mul(4));
        }
        let heads = number(&["linear_num_value_heads"])?;
        if heads > 0 {
            let (keys, key, value) = (
                number(&["linear_num_key_heads"])?,
                number(&["linear_key_head_dim"])?,
                number(&["linear_value_head_dim"])?,
            );
            let kernel = number(&["linear_conv_kernel_dim"])?;
            let looked_back = keys
                .saturating_mul(key)
                .saturating_mul(2)
                .saturating_add(heads.saturating_mul(value));
            let summed = heads.saturating_mul(key).saturating_mul(value);
            return Ok(looked_back
                .saturating_mul(kernel.saturating_sub(1))
                .saturating_add(summed)
                .saturating_mul(4));
        }
        let state = number(&["mamba_d_state", "ssm_state_size", "state_size"])?;
        let expand = number(&["mamba_expand", "expand"])?.max(1);
        let kernel = number(&["mamba_d_conv", "conv_kernel"])?;
        let groups = number(&["mamba_n_groups", "n_groups"])?;
        let inner = hidden.saturating_mul(expand);
        let looked_back = inner.saturating_add(groups.saturating_mul(state).saturating_mul(2));
        let back = kernel.saturating_sub(1).saturating_mul(looked_back);
        Ok(inner.saturating_mul(state).saturating_add(back).saturating_mul(4))
    }
}
