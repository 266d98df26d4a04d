//! Which type each tensor of a file gets: the rules of llama.cpp's quantiser.
//!
//! A "Q4_K_M" file is not 4.5 bits a weight. Values and the way down are worth more bits than
//! the rest, in the first and last eighth of the layers and in every third between; the output
//! matrix is worth six; a row that does not divide into blocks takes a type with smaller ones.
//! The rules are facts about the files that people have, so they are stated here one by one
//! rather than folded into an average that holds for one model.

use super::element::ElementType;
use super::weight_type::WeightType;

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Embedding,
    Output,
    Query,
    Key,
    Value,
    /// Query, key and value in one matrix.
    FusedQkv,
    AttentionOutput,
    GateOrUp,
    Down,
}

/// What the rules look at besides the role.
#[derive(Debug, Clone, Copy)]
pub(super) struct TensorPlace {
    pub(super) layer: u64,
    pub(super) layers: u64,
    /// Query heads that share a key-value head.
    pub(super) sharing: u64,
    pub(super) experts: u64,
}

impl TensorPlace {
    /// The first eighth, the last eighth, and every third layer between them.
    fn is_favoured(self) -> bool {
        let (i, n) = (self.layer, self.layers);
        i < n / 8 || self.is_among_last_eighth() || (i - n / 8) % 3 == 2
    }

    fn is_among_last_eighth(self) -> bool {
        self.layer >= self.layers.saturating_mul(7) / 8
    }

    fn is_among_first(self, share: u64) -> bool {
        self.layer < self.layers / share
    }

    /// The shape that llama.cpp calls a 70B: 80 layers with shared key-value heads.
    fn is_seventy_billion(self) -> bool {
        self.layers == 80 && self.sharing > 1
    }
}

/// The type of a tensor whose rows have `columns` elements.
pub(super) fn tensor_type(
    file: WeightType,
    role: Role,
    place: TensorPlace,
    columns: u64,
) -> ElementType {
    let base = file.base();
    if !base.is_quantised() {
        return base;
    }
    let wanted = match role {
        Role::Output => output(file, columns),
        _ if file == WeightType::Mxfp4Moe => floats(role, place),
        Role::Embedding => embedding(file),
        _ if is_tiny(file) => tiny(file, role, place),
        Role::Value => value(file, place),
        Role::FusedQkv => fused(file),
        Role::Key if place.experts == 8 => ElementType::Q8_0,
        Role::Key | Role::Query => query_or_key(file),
        Role::AttentionOutput => attention_output(file, place),
        Role::Down => down(file, place),
        Role::GateOrUp => gate_or_up(file, place),
    };
    that_divides(wanted, columns)
}

/// Codebooks of fewer than three bits, which have rules of their own. They are not made
/// without knowing which weights matter, so neither are the rules for that case here.
fn is_tiny(file: WeightType) -> bool {
    use WeightType as W;
    matches!(file, W::Iq1S | W::Iq1M | W::Iq2Xxs | W::Iq2Xs | W::Iq2S | W::Iq2M)
}

/// The larger two of the tiny ones raise to IQ3_S what the others raise to Q2_K.
fn raised(file: WeightType) -> ElementType {
    match file {
        WeightType::Iq2S | WeightType::Iq2M => ElementType::Iq3S,
        _ => ElementType::Q2K,
    }
}

fn tiny(file: WeightType, role: Role, place: TensorPlace) -> ElementType {
    use WeightType as W;
    match role {
        Role::Value if place.sharing >= 4 || place.experts >= 4 => ElementType::Q4K,
        Role::Value => raised(file),
        Role::Key if place.experts == 8 => ElementType::Q4K,
        Role::Down if place.is_among_first(8) => raised(file),
        Role::AttentionOutput if place.experts == 8 => ElementType::Q5K,
        Role::AttentionOutput if matches!(file, W::Iq1S | W::Iq1M) => ElementType::Iq2Xxs,
        Role::AttentionOutput if matches!(file, W::Iq2S | W::Iq2M) => ElementType::Iq3S,
        _ => file.base(),
    }
}

/// Experts are 4-bit floats, everything else is Q8_0.
fn floats(role: Role, place: TensorPlace) -> ElementType {
    match role {
        Role::GateOrUp | Role::Down if place.experts > 1 => ElementType::Mxfp4,
        _ => ElementType::Q8_0,
    }
}

fn output(file: WeightType, columns: u64) -> ElementType {
    let base = file.base();
    let whole = columns.is_multiple_of(base.block());
    match file {
        WeightType::Q8_0 | WeightType::Mxfp4Moe => ElementType::Q8_0,
        _ if !whole => ElementType::Q8_0,
        WeightType::Iq3Xxs => ElementType::Q5K,
        _ if is_tiny(file) => ElementType::Q5K,
        _ => ElementType::Q6K,
    }
}

fn embedding(file: WeightType) -> ElementType {
    match file {
        WeightType::Iq3Xxs => ElementType::Iq3S,
        WeightType::Tq1_0 | WeightType::Tq2_0 => ElementType::Q4K,
        _ if is_tiny(file) => raised(file),
        _ => file.base(),
    }
}

fn query_or_key(file: WeightType) -> ElementType {
    match file {
        WeightType::Iq3Xs => ElementType::Iq3Xxs,
        WeightType::Iq3Xxs => ElementType::Iq2S,
        _ => file.base(),
    }
}

fn value(file: WeightType, place: TensorPlace) -> ElementType {
    use WeightType as W;
    let base = file.base();
    let shared = place.sharing >= 4;
    let kind = match file {
        W::Q2K | W::Q2KS | W::Iq3Xxs | W::Iq3Xs | W::Iq3S if shared => ElementType::Q4K,
        W::Q2K => ElementType::Q3K,
        W::Iq3M => ElementType::Q4K,
        W::Q3KM if place.layer >= 2 => ElementType::Q4K,
        W::Q3KM | W::Q3KL => ElementType::Q5K,
        W::Iq4Nl | W::Iq4Xs if shared => ElementType::Q5K,
        W::Q4KM | W::Q5KM if place.is_favoured() => ElementType::Q6K,
        W::Q4KS if place.layer < 4 => ElementType::Q5K,
        _ => base,
    };
    match kind {
        _ if place.experts == 8 => ElementType::Q8_0,
        ElementType::Q3K | ElementType::Q4K if place.is_seventy_billion() => ElementType::Q5K,
        _ => kind,
    }
}

fn fused(file: WeightType) -> ElementType {
    match file {
        WeightType::Q3KM | WeightType::Q3KL | WeightType::Iq3M => ElementType::Q4K,
        WeightType::Q4KM => ElementType::Q5K,
        WeightType::Q5KM => ElementType::Q6K,
        _ => file.base(),
    }
}

fn attention_output(file: WeightType, place: TensorPlace) -> ElementType {
    use WeightType as W;
    if place.experts == 8 {
        return match file {
            W::Q2K | W::Q3KS | W::Q3KM | W::Q4KS | W::Q4KM | W::Iq4Nl | W::Iq4Xs => {
                ElementType::Q5K
            }
            W::Iq3Xxs | W::Iq3Xs | W::Iq3S | W::Iq3M => ElementType::Q5K,
            _ => file.base(),
        };
    }
    match file {
        W::Q2K => ElementType::Q3K,
        W::Iq3Xxs => ElementType::Iq3S,
        W::Q3KM | W::Iq3M => ElementType::Q4K,
        W::Q3KL => ElementType::Q5K,
        _ => file.base(),
    }
}

fn gate_or_up(file: WeightType, place: TensorPlace) -> ElementType {
    let inner = !place.is_among_first(8) && !place.is_among_last_eighth();
    if file == WeightType::Iq3Xs && inner { ElementType::Iq3Xxs } else { file.base() }
}

fn down(file: WeightType, place: TensorPlace) -> ElementType {
    use WeightType as W;
    match file {
        W::Q2K => ElementType::Q3K,
        W::Q3KM if !place.is_among_first(16) => ElementType::Q4K,
        W::Q3KM | W::Q3KL => ElementType::Q5K,
        W::Q4KM | W::Q5KM if place.is_favoured() => ElementType::Q6K,
        W::Q4KS | W::Iq4Nl | W::Iq4Xs if place.is_among_first(8) => ElementType::Q5K,
        W::Q2KS | W::Iq3M if place.is_among_first(8) => ElementType::Q4K,
        W::Iq3M if place.experts == 8 && place.is_favoured() => ElementType::Q4K,
        _ => file.base(),
    }
}

/// The wanted type, or the nearest whose blocks divide a row of this many columns.
fn that_divides(wanted: ElementType, columns: u64) -> ElementType {
    use ElementType as E;
    if columns.is_multiple_of(wanted.block()) {
        return wanted;
    }
    let nearest = match wanted {
        E::Iq1S | E::Iq1M | E::Iq2Xxs | E::Iq2Xs | E::Iq2S | E::Iq3Xxs | E::Iq3S | E::Iq4Xs => {
            E::Iq4Nl
        }
        E::Q2K | E::Q3K | E::Tq1_0 | E::Tq2_0 => E::Q4_0,
        E::Q4K => E::Q5_0,
        E::Q5K => E::Q5_1,
        E::Q6K => E::Q8_0,
        _ => E::F16,
    };
    if columns.is_multiple_of(nearest.block()) { nearest } else { E::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(layer: u64) -> TensorPlace {
        TensorPlace { layer, layers: 32, sharing: 4, experts: 1 }
    }

    #[test]
    fn half_of_the_layers_of_a_medium_mix_are_favoured() {
        let favoured: Vec<u64> = (0..32).filter(|&i| place(i).is_favoured()).collect();
        assert_eq!(favoured, [0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31]);
    }

    #[test]
    fn the_output_matrix_is_worth_six_bits_or_more() {
        let of = |file| tensor_type(file, Role::Output, place(0), 4096);
        assert_eq!(of(WeightType::Q4_0), ElementType::Q6K);
        assert_eq!(of(WeightType::Q4KM), ElementType::Q6K);
        assert_eq!(of(WeightType::Q8_0), ElementType::Q8_0);
        assert_eq!(of(WeightType::Bf16), ElementType::Bf16);
        assert_eq!(tensor_type(WeightType::Q4KM, Role::Output, place(0), 4000), ElementType::Q8_0);
    }

    #[test]
    fn rows_that_do_not_divide_take_smaller_blocks() {
        let of = |columns| tensor_type(WeightType::Q4KM, Role::Query, place(0), columns);
        assert_eq!(of(512), ElementType::Q4K);
        assert_eq!(of(160), ElementType::Q5_0);
        assert_eq!(of(161), ElementType::F16);
    }

    #[test]
    fn eight_experts_and_eighty_layers_have_rules_of_their_own() {
        let eight = TensorPlace { experts: 8, ..place(5) };
        assert_eq!(tensor_type(WeightType::Q4KM, Role::Value, eight, 4096), ElementType::Q8_0);
        assert_eq!(tensor_type(WeightType::Q4_0, Role::Key, eight, 4096), ElementType::Q8_0);
        assert_eq!(
            tensor_type(WeightType::Q4KM, Role::AttentionOutput, eight, 4096),
            ElementType::Q5K
        );
        let seventy = TensorPlace { layer: 10, layers: 80, sharing: 8, experts: 1 };
        assert_eq!(tensor_type(WeightType::Q4KM, Role::Value, seventy, 8192), ElementType::Q5K);
    }

    #[test]
    fn codebook_mixes_raise_what_their_rules_name() {
        use ElementType as E;
        use WeightType as W;
        // File, then embedding, output, query, value, attention output, up and down, in a layer
        // of the first eighth and in one between.
        for (file, ends, first, between) in [
            (
                W::Iq1S,
                [E::Q2K, E::Q5K],
                [E::Iq1S, E::Q4K, E::Iq2Xxs, E::Iq1S, E::Q2K],
                [E::Iq1S, E::Q4K, E::Iq2Xxs, E::Iq1S, E::Iq1S],
            ),
            (
                W::Iq2M,
                [E::Iq3S, E::Q5K],
                [E::Iq2S, E::Q4K, E::Iq3S, E::Iq2S, E::Iq3S],
                [E::Iq2S, E::Q4K, E::Iq3S, E::Iq2S, E::Iq2S],
            ),
            (
                W::Iq3Xxs,
                [E::Iq3S, E::Q5K],
                [E::Iq2S, E::Q4K, E::Iq3S, E::Iq3Xxs, E::Iq3Xxs],
                [E::Iq2S, E::Q4K, E::Iq3S, E::Iq3Xxs, E::Iq3Xxs],
            ),
            (
                W::Iq3Xs,
                [E::Iq3S, E::Q6K],
                [E::Iq3Xxs, E::Q4K, E::Iq3S, E::Iq3S, E::Iq3S],
                [E::Iq3Xxs, E::Q4K, E::Iq3S, E::Iq3Xxs, E::Iq3S],
            ),
            (
                W::Iq3M,
                [E::Iq3S, E::Q6K],
                [E::Iq3S, E::Q4K, E::Q4K, E::Iq3S, E::Q4K],
                [E::Iq3S, E::Q4K, E::Q4K, E::Iq3S, E::Iq3S],
            ),
            (W::Tq2_0, [E::Q4K, E::Q6K], [E::Tq2_0; 5], [E::Tq2_0; 5]),
        ] {
            let of = |role, layer| tensor_type(file, role, place(layer), 4096);
            assert_eq!([of(Role::Embedding, 0), of(Role::Output, 0)], ends, "{file}");
            let layer = |n| {
                [Role::Query, Role::Value, Role::AttentionOutput, Role::GateOrUp, Role::Down]
                    .map(|role| of(role, n))
            };
            assert_eq!((layer(0), layer(10)), (first, between), "{file}");
        }
    }

    #[test]
    fn only_experts_are_small_floats() {
        let of = |role, experts| {
            tensor_type(WeightType::Mxfp4Moe, role, TensorPlace { experts, ..place(0) }, 2880)
        };
        assert_eq!(of(Role::Down, 32), ElementType::Mxfp4);
        for (role, experts) in [(Role::Down, 1), (Role::Value, 32), (Role::Embedding, 32)] {
            assert_eq!(of(role, experts), ElementType::Q8_0);
        }
    }
}
