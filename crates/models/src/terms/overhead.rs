//! What an engine and a driver take for themselves before the first tensor.
//!
//! A table of records, each with where it was measured. A pair that is not in it has no
//! figure, and the answer says so: a number that was not measured is worse than none.

use super::Runner;

const MIB: u64 = 1 << 20;
/// What is kept free for a context of which nothing is on record: a little more than the largest that is
/// for running a model, PyTorch's on an H200.
const KEPT_FREE: u64 = 700 * MIB;

/// What an engine and a driver take for themselves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineOverhead {
    /// Bytes; 0 where nothing is named or nothing is on record.
    pub bytes: u64,
    /// Where the figure came from, or why there is none.
    pub source: String,
    /// Whether it was measured.
    pub recorded: bool,
    /// What to keep free for it on a GPU where nothing is on record.
    pub kept_free: u64,
}

/// Engine, on a GPU, MiB, where it was measured.
const RECORDS: [(Option<Runner>, bool, u64, &str); 2] = [
    (
        Some(Runner::Ort),
        true,
        678,
        "recorded: context and libraries of ONNX Runtime 1.31 on an H200, driver 580",
    ),
    (
        Some(Runner::PyTorch),
        true,
        695,
        "recorded: context and libraries of PyTorch 2.11 on an H200, driver 580",
    ),
];

/// Of PyTorch's: what training adds.
const BACKWARD: u64 = 71 * MIB;
/// Of PyTorch's: what bitsandbytes' products in 8 bits load.
const INT8_PRODUCTS: u64 = 66 * MIB;
/// Of PyTorch's: what cuBLAS takes when it is first used.
const CUBLAS: u64 = 64 * MIB;

impl EngineOverhead {
    /// The figure, where there is one.
    #[must_use]
    pub fn known(&self) -> Option<u64> {
        self.recorded.then_some(self.bytes)
    }

    /// The same where no product of matrices runs, so that cuBLAS is never opened.
    pub(super) fn without_products(mut self) -> EngineOverhead {
        self.bytes = self.bytes.saturating_sub(CUBLAS);
        self.source.push_str("; without cuBLAS, which takes 64 MiB more");
        self
    }

    /// The same for training: libraries hold more for the thread of backward passes.
    pub(super) fn with_training(mut self) -> EngineOverhead {
        self.bytes = self.bytes.saturating_add(BACKWARD);
        self.source.push_str("; 71 MiB more while training");
        self
    }

    /// The same with products in 8 bits.
    pub(super) fn with_int8_products(mut self) -> EngineOverhead {
        self.bytes = self.bytes.saturating_add(INT8_PRODUCTS);
        self.source.push_str("; 66 MiB more for products in 8 bits");
        self
    }

    /// The figure for an engine on a device.
    #[must_use]
    pub fn of(runner: Option<Runner>, on_gpu: Option<bool>) -> EngineOverhead {
        if runner.is_none() && on_gpu.is_none() {
            let source = "no engine or device is named".to_string();
            return EngineOverhead { source, ..EngineOverhead::default() };
        }
        let gpu = on_gpu.unwrap_or(false);
        let found = RECORDS.iter().find(|row| row.0 == runner && row.1 == gpu);
        match found {
            Some((_, _, mib, source)) => {
                let source = (*source).to_string();
                EngineOverhead { bytes: mib * MIB, source, recorded: true, kept_free: 0 }
            }
            None => EngineOverhead {
                source: format!(
                    "no record for {} on {}",
                    runner.map_or("a bare program", Runner::name),
                    if gpu {
                        "a GPU: 700 MiB are to stay free for it"
                    } else {
                        "the CPU: not counted"
                    }
                ),
                kept_free: if gpu { KEPT_FREE } else { 0 },
                ..EngineOverhead::default()
            },
        }
    }
}
