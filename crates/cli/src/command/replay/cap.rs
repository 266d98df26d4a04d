//! The smallest device that a trace completes on.
//!
//! Found by galloping up from the peak of what is live, below which nothing can do, and
//! then by halving. A pool need not do better on every larger device, so the answer is
//! one that was tried, and one step less was tried too and failed.

use plimsoll::Bytes;
use plimsoll::trace::Trace;

use super::stand::{MOST_TOTAL, Setup};
use crate::output::ProgressLine;

/// Devices come in these steps: the usual page of device memory.
const STEP: u64 = 2 << 20;

/// The size, or nothing where no device is large enough.
pub(super) fn smallest(
    setup: &Setup,
    trace: &Trace,
    progress: &mut ProgressLine,
) -> anyhow::Result<Option<Bytes>> {
    let setup = setup.without_charges();
    // Real devices keep what is expensive to create, such as a context, while one is open.
    let _kept = setup.open()?;
    let mut completes = |steps: u64| -> anyhow::Result<bool> {
        let cap = Bytes(steps.saturating_mul(STEP));
        progress.show(&format!("trying a device of {cap}"));
        completes(&setup.with_cap(cap), trace)
    };
    let least = trace.peak_live().get().div_ceil(STEP).max(1);
    let most = MOST_TOTAL.get() / STEP;
    if least > most {
        return Ok(None);
    }
    let (mut low, mut high, mut stride) = (least - 1, least, 1);
    while !completes(high)? {
        if high >= most {
            return Ok(None);
        }
        low = high;
        high = high.saturating_add(stride).min(most);
        stride *= 2;
    }
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if completes(middle)? { high = middle } else { low = middle }
    }
    Ok(Some(Bytes(high * STEP)))
}

/// Whether a cold pass and a warm one come to their end.
fn completes(setup: &Setup, trace: &Trace) -> anyhow::Result<bool> {
    let stand = setup.open()?;
    let mut replay = stand.replay(trace)?;
    for _ in 0..2 {
        match replay.pass() {
            Ok(_) => {}
            Err(error) if error.is_out_of_memory() => return Ok(false),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(true)
}
