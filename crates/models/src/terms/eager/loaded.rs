//! How a model gets its adapters, request by request. What is made on the way and let go leaves holes,
//! and later requests that find room in one leave larger blocks whole.
//!
//! The weights come first, in the model's type. bitsandbytes packs one matrix after the other, and what is not
//! packed becomes 32 bits wide. PEFT makes all adapters in the type that products run in, and only then
//! casts each to 32 bits. In the end what is wholly free goes back to the driver.

use std::collections::BTreeMap;

use super::decoder::EagerDecoder;
use super::job::EagerBase;
use super::ops::NF4_BLOCK;
use super::tape::EagerTape;
use super::train::SCALES;

/// Tables of bitsandbytes in 32 bits: of the values of 4 bits, and of those of a scale's 8.
const NF4_VALUES: u64 = 16 * 4;
const SCALE_VALUES: u64 = 256 * 4;

impl EagerDecoder<'_> {
    /// Settles weights of these numbers of elements under adapters, and those.
    pub(super) fn load_adapted(&self, tape: &EagerTape<'_>, elements: &[u64]) {
        let Some(adapters) = self.job.adapters else { return };
        let matrices: Vec<(u64, u64)> = self.matrices().into_values().collect();
        let made = if self.is_packed() { 2 } else { self.job.weight_width };
        let (before, behind) = self.beside(elements, &matrices);
        let settle = |count: &u64| (*count, tape.settle(count.saturating_mul(made)));
        let mut rest: Vec<_> = before.iter().map(settle).collect();
        let stored: Vec<_> = matrices
            .iter()
            .map(|(inputs, outputs)| settle(&inputs.saturating_mul(*outputs)))
            .collect();
        rest.extend(behind.iter().map(settle));
        if self.shape.tied_embeddings {
            // The output matrix is made before it becomes the embedding.
            let table = self.shape.vocab.saturating_mul(self.narrow());
            tape.unsettle(settle(&table).1);
        }
        if self.is_packed() {
            for (&(_, outputs), (count, place)) in matrices.iter().zip(stored) {
                match adapters.base {
                    EagerBase::Int8 => pack_in_8_bits(tape, count, outputs),
                    _ => pack_in_4_bits(tape, count),
                }
                tape.unsettle(place);
            }
            for (count, place) in rest {
                tape.settle(count.saturating_mul(self.job.weight_width));
                tape.unsettle(place);
            }
            // PEFT gives back what is free.
            tape.begin(None);
        }
        let sides = matrices.iter().flat_map(|&(inputs, outputs)| [inputs, outputs]);
        let counts = sides.map(|side| side.saturating_mul(adapters.rank));
        // Beside 8-bit weights they are in 32 bits at once.
        let made = if adapters.base == EagerBase::Int8 { 4 } else { made };
        let made: Vec<_> =
            counts.map(|count| (count, made, tape.settle(count.saturating_mul(made)))).collect();
        for (count, width, place) in made {
            if width < 4 {
                tape.settle(count.saturating_mul(4));
                tape.unsettle(place);
            }
        }
    }

    /// Numbers of elements of what is no matrix under adapters: what comes before those, which is the
    /// embedding, and what comes behind. Where sizes are not those of this model it is one.
    fn beside(&self, elements: &[u64], matrices: &[(u64, u64)]) -> (Vec<u64>, Vec<u64>) {
        let sum = |counts: &[u64]| counts.iter().fold(0, |sum: u64, &n| sum.saturating_add(n));
        let inner: Vec<u64> = matrices.iter().map(|(a, b)| a.saturating_mul(*b)).collect();
        let whole = sum(elements).saturating_sub(sum(&inner));
        let mut missing: BTreeMap<u64, usize> = BTreeMap::new();
        for count in inner {
            *missing.entry(count).or_default() += 1;
        }
        let mut rest = Vec::new();
        for &count in elements {
            match missing.get_mut(&count).filter(|left| **left > 0) {
                Some(left) => *left -= 1,
                None => rest.push(count),
            }
        }
        if missing.values().any(|&left| left > 0) {
            return (Vec::new(), vec![whole]);
        }
        let table = self.shape.vocab.saturating_mul(self.narrow());
        let embedding = rest.iter().position(|&count| count == table);
        let embedding = embedding.map(|place| rest.remove(place));
        (embedding.into_iter().collect(), rest)
    }
}

/// Four bits of each number, a scale for each block, in 8 bits less their mean, and a scale for many of these.
fn pack_in_4_bits(tape: &EagerTape<'_>, count: u64) {
    let scales = count / NF4_BLOCK;
    let wide = tape.settle(scales.saturating_mul(4));
    tape.settle(count / 2);
    tape.settle(NF4_VALUES);
    let mean = 4;
    tape.settle(mean);
    let centered = tape.settle(scales.saturating_mul(4));
    tape.settle(scales.div_ceil(SCALES).saturating_mul(4));
    tape.settle(scales);
    tape.settle(SCALE_VALUES);
    tape.unsettle(centered);
    tape.unsettle(wide);
}

/// Eight bits of each number and a scale for each row, by way of float16.
fn pack_in_8_bits(tape: &EagerTape<'_>, count: u64, rows: u64) {
    let half = tape.settle(count.saturating_mul(2));
    tape.settle(count);
    tape.settle(rows.saturating_mul(4));
    tape.unsettle(half);
}
