//! Which type each tensor of a file gets: the rules of llama.cpp's quantiser.
//!
//! A "Q4_K_M" file is not 4.5 bits a weight. Values and the way down are worth more bits than
//! the rest, in the first and last eighth of the layers and in every third between; the output
//! matrix is worth six; a row that does not divide into blocks takes a type with smaller ones.
//! The rules are facts about the files that people have, so they are stated here one by one
//! rather than folded into an average that holds for one model.

use super::types::{ElementType, WeightType};

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
pub(super) struct Place {
    pub(super) layer: u64,
    pub(super) layers: u64,
    /// Query heads that share a key-value head.
    pub(super) sharing: u64,
    pub(super) experts: u64,
}

impl Place {
    /// The first eighth, the last eighth, and every third layer between them.
    fn is_favoured(self) -> bool {
        let (i, n) = (self.layer, self.layers);
        i < n / 8 || i >= n.saturating_mul(7) / 8 || (i - n / 8) % 3 == 2
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
pub(super) fn tensor_type(file: WeightType, role: Role, place: Place, columns: u64) -> ElementType {
    let base = file.base();
    if !base.is_quantised() {
        return base;
    }
    let wanted = match role {
        Role::Output => output(base, columns),
        Role::Value => value(file, place),
        Role::FusedQkv => fused(file),
        Role::Key if place.experts == 8 => ElementType::Q8_0,
        Role::AttentionOutput => attention_output(file, place),
        Role::Down => down(file, place),
        Role::Embedding | Role::Query | Role::Key | Role::GateOrUp => base,
    };
    that_divides(wanted, columns)
}

fn output(base: ElementType, columns: u64) -> ElementType {
    if base == ElementType::Q8_0 || !columns.is_multiple_of(base.block()) {
        ElementType::Q8_0
    } else {
        ElementType::Q6K
    }
}

fn value(file: WeightType, place: Place) -> ElementType {
    use WeightType as W;
    let base = file.base();
    let shared = place.sharing >= 4;
    let kind = match file {
        W::Q2K if shared => ElementType::Q4K,
        W::Q2K => ElementType::Q3K,
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
        WeightType::Q3KM | WeightType::Q3KL => ElementType::Q4K,
        WeightType::Q4KM => ElementType::Q5K,
        WeightType::Q5KM => ElementType::Q6K,
        _ => file.base(),
    }
}

fn attention_output(file: WeightType, place: Place) -> ElementType {
    use WeightType as W;
    match file {
        W::Q2K | W::Q3KS | W::Q3KM | W::Q4KS | W::Q4KM | W::Iq4Nl | W::Iq4Xs
            if place.experts == 8 =>
        {
            ElementType::Q5K
        }
        W::Q2K if place.experts != 8 => ElementType::Q3K,
        W::Q3KM if place.experts != 8 => ElementType::Q4K,
        W::Q3KL if place.experts != 8 => ElementType::Q5K,
        _ => file.base(),
    }
}

fn down(file: WeightType, place: Place) -> ElementType {
    use WeightType as W;
    match file {
        W::Q2K => ElementType::Q3K,
        W::Q3KM if !place.is_among_first(16) => ElementType::Q4K,
        W::Q3KM | W::Q3KL => ElementType::Q5K,
        W::Q4KM | W::Q5KM if place.is_favoured() => ElementType::Q6K,
        W::Q4KS | W::Iq4Nl | W::Iq4Xs if place.is_among_first(8) => ElementType::Q5K,
        _ => file.base(),
    }
}

/// The wanted type, or the nearest whose blocks divide a row of so many columns.
fn that_divides(wanted: ElementType, columns: u64) -> ElementType {
    if columns.is_multiple_of(wanted.block()) {
        return wanted;
    }
    let nearest = match wanted {
        ElementType::Iq4Xs => ElementType::Iq4Nl,
        ElementType::Q2K | ElementType::Q3K => ElementType::Q4_0,
        ElementType::Q4K => ElementType::Q5_0,
        ElementType::Q5K => ElementType::Q5_1,
        ElementType::Q6K => ElementType::Q8_0,
        _ => ElementType::F16,
    };
    if columns.is_multiple_of(nearest.block()) { nearest } else { ElementType::F16 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(layer: u64) -> Place {
        Place { layer, layers: 32, sharing: 4, experts: 1 }
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
        let eight = Place { experts: 8, ..place(5) };
        assert_eq!(tensor_type(WeightType::Q4KM, Role::Value, eight, 4096), ElementType::Q8_0);
        assert_eq!(tensor_type(WeightType::Q4_0, Role::Key, eight, 4096), ElementType::Q8_0);
        assert_eq!(
            tensor_type(WeightType::Q4KM, Role::AttentionOutput, eight, 4096),
            ElementType::Q5K
        );
        let seventy = Place { layer: 10, layers: 80, sharing: 8, experts: 1 };
        assert_eq!(tensor_type(WeightType::Q4KM, Role::Value, seventy, 8192), ElementType::Q5K);
    }
}
