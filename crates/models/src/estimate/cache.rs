//! The key-value cache, layer by layer.
//!
//! `layers · context · kv_heads · head_dim · (bytes_k + bytes_v)` holds for models whose layers
//! are alike, and is wrong for the rest: layers that look back only a window keep only that
//! (and the micro-batch in flight), recurrent layers of hybrids keep a state of fixed size,
//! some models keep one compressed vector a token for keys and values together.

use super::shape::ModelShape;
use plimsoll_machine::units::Bytes;

/// What one layer keeps.
///
/// ```
/// use plimsoll_models::{LayerCache, ModelShape};
/// // Every sixth layer sees everything, the others 1,024 tokens.
/// let caches = (1..=48)
///     .map(|layer| match layer % 6 {
///         0 => LayerCache::full(8 * 256, 8 * 256),
///         _ => LayerCache::full(8 * 256, 8 * 256).within(1024),
///     })
///     .collect();
/// let shape = ModelShape::new(3840, 15360, 48, 262_144, 16)
///     .with_kv_heads(8)
///     .with_head_dim(256)
///     .with_context(32_768)
///     .with_caches(caches);
/// assert_eq!(shape.estimate()?.kv_cache_mb(), 8.0 * 256.0 + 40.0 * 12.0);
/// # Ok::<(), plimsoll_models::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct LayerCache {
    /// Elements of a token's keys.
    pub key_width: u64,
    /// Elements of a token's values.
    pub value_width: u64,
    /// How many tokens it looks back; the whole context where there is no window.
    pub window: Option<u64>,
    /// A state whose size does not depend on the context.
    pub state_bytes: Bytes,
}

impl LayerCache {
    /// Keys and values of every token of the context.
    #[must_use]
    pub fn full(key_width: u64, value_width: u64) -> Self {
        LayerCache { key_width, value_width, ..LayerCache::default() }
    }

    /// One compressed vector a token, with its rotary part, for keys and values together (MLA).
    #[must_use]
    pub fn compressed(rank: u64, rotary: u64) -> Self {
        LayerCache::full(rank.saturating_add(rotary), 0)
    }

    /// Nothing that grows: a recurrent layer with a state of this many bytes.
    #[must_use]
    pub fn state(bytes: Bytes) -> Self {
        LayerCache { state_bytes: bytes, ..LayerCache::default() }
    }

    /// Nothing: the layer has no cache, or uses another layer's.
    #[must_use]
    pub fn none() -> Self {
        LayerCache::default()
    }

    /// The same, looking back only `window` tokens.
    #[must_use]
    pub fn within(self, window: u64) -> Self {
        LayerCache { window: Some(window), ..self }
    }

    /// Whether attention runs over it.
    fn is_attended(&self) -> bool {
        self.key_width > 0
    }

    /// Tokens that one cache of it has room for. A window is kept for every sequence in it,
    /// with the micro-batch in flight besides, and is rounded up to 256; it is never more than
    /// a full cache by more than that rounding.
    fn cells(&self, shape: &ModelShape) -> u64 {
        let (caches, sequences) = split(shape);
        let context = match caches {
            1 => shape.context,
            _ => rounded(shape.context / caches),
        };
        let Some(window) = self.window else { return context };
        let windows = window.saturating_mul(sequences);
        rounded(context.min(windows.saturating_add(shape.batch())))
    }

    /// What it takes. Without flash attention values are kept transposed, which needs the same
    /// width in all layers: `widest` then pads the narrower ones.
    fn bytes(&self, shape: &ModelShape, widest: u64) -> u64 {
        let cells = self.cells(shape).saturating_mul(split(shape).0);
        let pads = self.is_attended() && self.value_width > 0 && !shape.flash_attention;
        let value_width = if pads { widest } else { self.value_width };
        let keys = shape.key_cache.layout().matrix(cells, self.key_width);
        let values = shape.value_cache.layout().matrix(cells, value_width);
        let states = self.state_bytes.get().saturating_mul(shape.sequences);
        keys.saturating_add(values).saturating_add(states)
    }
}

/// How many caches there are, and sequences in each.
fn split(shape: &ModelShape) -> (u64, u64) {
    if shape.separate_caches { (shape.sequences.max(1), 1) } else { (1, shape.sequences) }
}

/// Room comes in this many tokens.
fn rounded(tokens: u64) -> u64 {
    tokens.max(1).checked_next_multiple_of(256).unwrap_or(tokens)
}

/// The bytes of all layers.
pub(super) fn sum(shape: &ModelShape) -> u64 {
    match &shape.caches {
        Some(_) => by_layer(shape).fold(0, u64::saturating_add),
        None => {
            let width = shape.kv_width();
            LayerCache::full(width, width).bytes(shape, width).saturating_mul(shape.layers)
        }
    }
}

/// The bytes of each layer, where layers are listed.
pub(super) fn by_layer(shape: &ModelShape) -> impl Iterator<Item = u64> {
    let caches = shape.caches.as_deref().unwrap_or_default();
    let widest = caches.iter().map(|layer| layer.value_width).max().unwrap_or(0);
    caches.iter().map(move |layer| layer.bytes(shape, widest))
}

/// The most tokens that any layer's attention runs over.
pub(super) fn widest(shape: &ModelShape) -> u64 {
    match &shape.caches {
        Some(caches) => caches
            .iter()
            .filter(|layer| layer.is_attended())
            .map(|layer| layer.cells(shape))
            .max()
            .unwrap_or(0),
        None => shape.context,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::ElementType;

    fn two_layers(caches: [LayerCache; 2]) -> ModelShape {
        ModelShape::new(4096, 14336, 2, 32000, 32).with_context(4096).with_caches(caches.to_vec())
    }

    #[test]
    fn layers_may_differ_in_every_way() {
        let shape = two_layers([LayerCache::full(1024, 512), LayerCache::none()]);
        assert_eq!(sum(&shape), 4096 * 1536 * 2);
        let shape = two_layers([LayerCache::compressed(512, 64), LayerCache::state(Bytes(77))]);
        assert_eq!(sum(&shape), 4096 * 576 * 2 + 77);
        let shape = two_layers([LayerCache::full(256, 256).within(1000); 2]);
        assert_eq!(sum(&shape), 2 * 1536 * 512 * 2);
        assert_eq!(widest(&shape), 1536);
        let shape = two_layers([LayerCache::full(256, 256).within(u64::MAX); 2]);
        assert_eq!(widest(&shape), 4096);
    }

    #[test]
    fn transposed_values_are_as_wide_as_the_widest() {
        let shape = two_layers([LayerCache::full(256, 256), LayerCache::full(1024, 1024)]);
        assert_eq!(sum(&shape), 4096 * (256 + 1024 + 2 * 1024) * 2);
        let flash = shape.with_flash_attention(true);
        assert_eq!(sum(&flash), 4096 * 2 * (256 + 1024) * 2);
    }

    #[test]
    fn each_sequence_has_a_window_and_a_state_of_its_own() {
        let shape = two_layers([LayerCache::full(8, 8).within(512), LayerCache::state(Bytes(100))]);
        assert_eq!(sum(&shape.clone()), 1024 * 16 * 2 + 100);
        assert_eq!(sum(&shape.with_sequences(2)), 1536 * 16 * 2 + 200);
    }

    #[test]
    fn a_cache_for_each_sequence_splits_the_context() {
        let layers = [LayerCache::full(8, 8).within(512), LayerCache::full(8, 8)];
        let apart = |n| two_layers(layers).with_sequences(n).with_separate_caches(true);
        assert_eq!(sum(&apart(1)), sum(&two_layers(layers)));
        // Each has its own window and micro-batch, and a quarter of the context.
        assert_eq!(sum(&apart(4)), 4 * (1024 + 1024) * 16 * 2);
        assert_eq!(widest(&apart(4)), 1024, "scores are of one sequence's tokens");
        // A third of 4,096 is rounded up for each.
        assert_eq!(sum(&apart(3)), 3 * (1024 + 1536) * 16 * 2);
    }

    #[test]
    fn keys_and_values_have_types_of_their_own() {
        let shape = ModelShape::new(4096, 14336, 32, 128_256, 32)
            .with_kv_heads(8)
            .with_context(8192)
            .with_cache_types(ElementType::Q8_0, ElementType::Q4_0);
        assert_eq!(sum(&shape), 32 * 8192 * (1024 / 32) * (34 + 18));
    }

    #[test]
    fn an_even_list_is_the_scalar_formula() {
        let scalar = ModelShape::new(4096, 14336, 32, 32000, 32).with_kv_heads(8);
        let listed = scalar.clone().with_caches(vec![LayerCache::full(1024, 1024); 32]);
        assert_eq!(sum(&scalar), sum(&listed));
        assert_eq!(scalar.estimate(), listed.estimate());
    }
}
