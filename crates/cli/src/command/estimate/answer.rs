//! The answer for a file, for programs and people alike.

use std::path::Path;

use plimsoll::{Bytes, EstimateRange};
use plimsoll_models::terms::Terms;
use serde::Serialize;

use super::advice::Advice;
use super::fleet::Board;
use super::room::EstimateRoom;
use crate::model_flags::ModelFlags;

/// Whether it fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FitVerdict {
    Fits,
    /// The upper end of the range fits, and little is left.
    Tight,
    /// The estimate fits and the upper end of its range does not.
    MayNotFit,
    DoesNotFit,
    /// The weights fit, and nothing is known of the rest.
    Unknown,
}

impl FitVerdict {
    /// A total and the upper end of its range against a limit, and its largest piece against
    /// the largest that can be had.
    pub(super) fn of(
        (total, high): (Bytes, Bytes),
        limit: Bytes,
        piece: Bytes,
        largest: Option<Bytes>,
    ) -> FitVerdict {
        if total > limit {
            return FitVerdict::DoesNotFit;
        }
        if high > limit {
            return FitVerdict::MayNotFit;
        }
        let near = total.get().saturating_add(total.get() / 10) > limit.get();
        if near || largest.is_some_and(|largest| piece > largest) {
            return FitVerdict::Tight;
        }
        FitVerdict::Fits
    }

    /// The same where there may be more than what was counted.
    pub(super) fn of_terms(terms: &Terms, limit: Bytes, largest: Option<Bytes>) -> FitVerdict {
        let ends = (Bytes(terms.total_bytes), Bytes(terms.most_bytes()));
        match FitVerdict::of(ends, limit, Bytes(terms.largest_single_bytes), largest) {
            FitVerdict::DoesNotFit => FitVerdict::DoesNotFit,
            _ if terms.only_weights() => FitVerdict::Unknown,
            verdict => verdict,
        }
    }

    /// Whether the upper end of the range fits.
    pub(super) fn fits(self) -> bool {
        matches!(self, FitVerdict::Fits | FitVerdict::Tight)
    }

    /// The same as an answer, which there is not where it is not known.
    pub(super) fn answer(self) -> Option<bool> {
        (self != FitVerdict::Unknown).then(|| self.fits())
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            FitVerdict::Fits => "fits",
            FitVerdict::Tight => "tight",
            FitVerdict::MayNotFit => "may not fit",
            FitVerdict::DoesNotFit => "does not fit",
            FitVerdict::Unknown => "not known",
        }
    }

    /// The same against a limit, as a sentence; `besides` is how what is not in the estimate was taken.
    pub(super) fn against(self, limit: &str, besides: &str) -> String {
        match self {
            FitVerdict::Fits => format!("fits into {limit}{besides}"),
            FitVerdict::Tight => {
                format!(
                    "tight in {limit}{besides}: it fits if the estimate is right within a tenth"
                )
            }
            FitVerdict::MayNotFit => {
                format!("may not fit into {limit}{besides}: the upper end of the range does not")
            }
            FitVerdict::DoesNotFit => format!("does not fit into {limit}"),
            FitVerdict::Unknown => {
                format!("cannot be known for {limit}: only the weights were counted, and they fit")
            }
        }
    }
}

/// What a measured peak is expected to lie between.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct OfRange {
    pub(super) low_bytes: u64,
    pub(super) high_bytes: u64,
}

impl From<&EstimateRange> for OfRange {
    fn from(range: &EstimateRange) -> OfRange {
        OfRange { low_bytes: range.low_bytes, high_bytes: range.high_bytes }
    }
}

/// Bytes of one type of weights.
#[derive(Debug, Serialize)]
pub(super) struct OfType {
    pub(super) dtype: String,
    pub(super) bytes: u64,
    pub(super) elements: u64,
}

/// Layers in a row that keep the same.
#[derive(Debug, Serialize)]
pub(super) struct OfLayers {
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) bytes_each: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct EstimateTensor {
    pub(super) name: String,
    pub(super) bytes: u64,
    pub(super) shape: Vec<u64>,
    pub(super) dtype: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct AtPeak {
    pub(super) bytes: u64,
    pub(super) operator: String,
    pub(super) step: usize,
    pub(super) steps: usize,
    pub(super) largest: Vec<EstimateTensor>,
}

#[derive(Debug, Serialize)]
pub(super) struct InArena {
    pub(super) peak_bytes: u64,
    pub(super) reserved_bytes: u64,
    pub(super) packed_weights_bytes: u64,
    pub(super) pattern_bytes: u64,
}

/// What PyTorch's allocator reserves.
#[derive(Debug, Serialize)]
pub(super) struct InSegments {
    pub(super) reserved_bytes: u64,
    pub(super) peak_bytes: u64,
    pub(super) cublas_bytes: u64,
    /// An allowance: the most that cuDNN takes for a convolution.
    pub(super) cudnn_bytes: u64,
    pub(super) largest_segment_bytes: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct EstimateOverhead {
    /// Null where nothing is on record.
    pub(super) bytes: Option<u64>,
    pub(super) recorded: bool,
    pub(super) source: String,
    /// What the verdict keeps free for it where nothing is on record.
    pub(super) kept_free_bytes: u64,
}

impl EstimateOverhead {
    /// How a verdict takes it, as words behind a limit.
    pub(super) fn besides(&self) -> String {
        match (self.bytes, Bytes(self.kept_free_bytes)) {
            (Some(_), _) => String::new(),
            (None, Bytes::ZERO) => BESIDES.to_string(),
            (None, kept) => format!(", with {kept} kept free for the engine and the driver"),
        }
    }
}

/// What a verdict says where nothing is known of the engine's and the driver's part.
pub(super) const BESIDES: &str = ", without what the engine and the driver take";

/// What a file takes.
#[derive(Debug, Serialize)]
pub(super) struct FileEstimate {
    pub(super) file: String,
    pub(super) format: &'static str,
    pub(super) model: Option<String>,
    pub(super) weights_bytes: u64,
    /// Null, as the activations, where only the weights are known.
    pub(super) kv_cache_bytes: Option<u64>,
    pub(super) activation_bytes: Option<u64>,
    /// Of the activations: what the engine reserves beyond what is live.
    pub(super) workspace_bytes: u64,
    /// Gradients and the optimizer's states; 0 unless the model is trained.
    pub(super) gradient_bytes: u64,
    pub(super) optimizer_bytes: u64,
    /// Null where nothing is on record.
    pub(super) overhead_bytes: Option<u64>,
    pub(super) total_bytes: u64,
    pub(super) range: OfRange,
    /// Whether models of this kind were measured, and where.
    pub(super) checked: bool,
    pub(super) basis: String,
    pub(super) limit_bytes: Option<u64>,
    /// Null without a limit or a device that answers, and where it cannot be known.
    pub(super) fits: Option<bool>,
    pub(super) verdict: Option<FitVerdict>,
    pub(super) how: &'static str,
    pub(super) engine: Option<&'static str>,
    pub(super) context: Option<u64>,
    pub(super) trained_context: Option<u64>,
    pub(super) kv_dtype: Option<String>,
    pub(super) weights: Vec<OfType>,
    pub(super) cache_by_layer: Vec<OfLayers>,
    pub(super) peak: Option<AtPeak>,
    pub(super) arena: Option<InArena>,
    pub(super) segments: Option<InSegments>,
    pub(super) overhead: EstimateOverhead,
    pub(super) host_bytes: u64,
    pub(super) largest_single_bytes: u64,
    pub(super) room: Option<EstimateRoom>,
    pub(super) notes: Vec<String>,
    /// What would make it fit; empty where it does.
    pub(super) advice: Vec<Advice>,
    /// Boards and GPUs, where they were asked for.
    pub(super) fleet: Vec<Board>,
}

impl FileEstimate {
    pub(super) fn new(model: &Path, args: &ModelFlags, terms: Terms) -> FileEstimate {
        let of_type = |part: &plimsoll_models::terms::WeightsOfType| OfType {
            dtype: part.kind.clone(),
            bytes: part.bytes,
            elements: part.elements,
        };
        let known = !terms.only_weights();
        FileEstimate {
            file: model.display().to_string(),
            format: terms.format,
            weights_bytes: terms.weights_bytes,
            kv_cache_bytes: known.then_some(terms.kv_cache_bytes),
            activation_bytes: known.then_some(terms.activation_bytes),
            workspace_bytes: terms.workspace_bytes,
            gradient_bytes: terms.training.map_or(0, |training| training.gradient_bytes),
            optimizer_bytes: terms.training.map_or(0, |training| training.optimizer_bytes),
            overhead_bytes: terms.overhead.known(),
            total_bytes: terms.total_bytes,
            range: OfRange::from(&terms.range),
            checked: terms.range.checked,
            basis: terms.range.basis,
            limit_bytes: None,
            fits: None,
            verdict: None,
            how: "estimated",
            engine: args.engine.map(|engine| engine.name()),
            context: terms.context,
            trained_context: terms.trained_context,
            weights: terms.weights.iter().map(of_type).collect(),
            cache_by_layer: in_rows(&terms.cache_by_layer),
            peak: terms.peak.map(AtPeak::from),
            arena: terms.arena.map(|arena| InArena {
                peak_bytes: arena.peak,
                reserved_bytes: arena.reserved,
                packed_weights_bytes: arena.loaded,
                pattern_bytes: arena.pattern,
            }),
            segments: terms.held.map(|held| InSegments {
                reserved_bytes: held.reserved,
                peak_bytes: held.allocated,
                cublas_bytes: held.products,
                cudnn_bytes: held.copies,
                largest_segment_bytes: held.largest_segment,
            }),
            overhead: EstimateOverhead {
                bytes: terms.overhead.known(),
                recorded: terms.overhead.recorded,
                kept_free_bytes: terms.overhead.kept_free,
                source: terms.overhead.source,
            },
            host_bytes: terms.host_bytes,
            largest_single_bytes: terms.largest_single_bytes,
            model: terms.model,
            kv_dtype: terms.kv_dtype,
            notes: terms.notes,
            room: None,
            advice: Vec::new(),
            fleet: Vec::new(),
        }
    }

    pub(super) fn set_verdict(
        &mut self,
        limit: Option<Bytes>,
        verdict: Option<FitVerdict>,
        room: Option<EstimateRoom>,
    ) {
        self.limit_bytes = limit.map(Bytes::get);
        self.verdict = verdict;
        self.fits = verdict.and_then(FitVerdict::answer);
        self.room = room;
    }
}

impl From<plimsoll_models::walk::Peak> for AtPeak {
    fn from(peak: plimsoll_models::walk::Peak) -> AtPeak {
        let tensors = peak.tensors.into_iter().map(|tensor| EstimateTensor {
            name: tensor.name,
            bytes: tensor.bytes,
            shape: tensor.shape,
            dtype: tensor.element,
        });
        AtPeak {
            bytes: peak.bytes,
            operator: peak.operator,
            step: peak.step,
            steps: peak.steps,
            largest: tensors.collect(),
        }
    }
}

/// Runs of layers that keep the same, as one entry each.
fn in_rows(layers: &[u64]) -> Vec<OfLayers> {
    let mut rows: Vec<OfLayers> = Vec::new();
    for (layer, &bytes) in layers.iter().enumerate() {
        match rows.last_mut() {
            Some(row) if row.bytes_each == bytes => row.last = layer,
            _ => rows.push(OfLayers { first: layer, last: layer, bytes_each: bytes }),
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tight_is_a_tenth_or_a_piece_that_cannot_be_had() {
        let of = |total, limit, largest| {
            let range = (Bytes::mib(total), Bytes::mib(total + total / 20));
            FitVerdict::of(range, Bytes::mib(limit), Bytes::mib(50), largest)
        };
        assert_eq!(of(100, 200, None), FitVerdict::Fits);
        assert_eq!(of(100, 109, None), FitVerdict::Tight);
        assert_eq!(of(100, 99, None), FitVerdict::DoesNotFit);
        assert_eq!(of(100, 104, None), FitVerdict::MayNotFit);
        assert!(!FitVerdict::MayNotFit.fits() && FitVerdict::Tight.fits());
        assert_eq!(of(100, 200, Some(Bytes::mib(49))), FitVerdict::Tight);
    }

    #[test]
    fn layers_that_keep_the_same_are_one_row() {
        let rows = in_rows(&[1, 1, 2, 1]);
        let rows: Vec<_> = rows.iter().map(|row| (row.first, row.last, row.bytes_each)).collect();
        assert_eq!(rows, [(0, 1, 1), (2, 2, 2), (3, 3, 1)]);
    }
}
