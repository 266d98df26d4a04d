//! How a decoder is run: types of numbers, and what of it is trained.

/// How the weights under adapters are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EagerBase {
    /// As the rest.
    Plain,
    /// 4 bits, unpacked for each product.
    Nf4,
    /// 8 bits.
    Int8,
}

/// Small matrices beside frozen ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EagerAdapters {
    pub(crate) rank: u64,
    pub(crate) base: EagerBase,
}

/// How a decoder is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EagerJob {
    /// Bytes of a weight that is not under adapters, and of the stream of activations.
    pub(crate) weight_width: u64,
    /// Whether these are bfloat16, which fewer kernels take as they are than float16.
    pub(crate) bf16: bool,
    /// Whether products run in 16 bits over weights in 32 (autocast).
    pub(crate) amp: bool,
    /// Whether there is a backward pass.
    pub(crate) training: bool,
    pub(crate) adapters: Option<EagerAdapters>,
    /// Whether each layer is run again for its backward pass.
    pub(crate) checkpointing: bool,
}

impl EagerJob {
    /// Nothing is trained; numbers of a width.
    pub(crate) fn inference(width: u64) -> EagerJob {
        EagerJob {
            weight_width: width,
            bf16: false,
            amp: false,
            training: false,
            adapters: None,
            checkpointing: false,
        }
    }

    /// Whether weights get gradients, those of adapters aside.
    pub(super) fn trains(&self) -> bool {
        self.training && self.adapters.is_none()
    }
}
