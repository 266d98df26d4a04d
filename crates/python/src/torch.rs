//! What PyTorch's allocators hold for a program's requests.

use plimsoll_models::Bytes;
use plimsoll_models::trace::Trace;
use plimsoll_models::trace::peers::PeerRule;
use plimsoll_models::walk::torch::Caching;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A request: block N of `sizes` for N, its free for -1 - N, and for none the cache is given back.
type BlockEvent = Option<i64>;

/// The number of the block, and whether it is taken.
fn block(request: i64) -> (usize, bool) {
    let number = if request < 0 { -1 - request } else { request };
    (usize::try_from(number).unwrap_or(usize::MAX), request >= 0)
}

/// Puts requests through an allocator; `each` sees it after every one.
fn replay(
    torch: &mut Caching,
    requests: &[BlockEvent],
    sizes: &[u64],
    mut each: impl FnMut(&Caching),
) -> PyResult<()> {
    let mut places = vec![None; sizes.len()];
    for request in requests {
        match request.map(block) {
            None => torch.give_back(),
            Some((number, taken)) => {
                let (Some(&size), Some(place)) = (sizes.get(number), places.get_mut(number)) else {
                    return Err(PyValueError::new_err(format!("there is no block {number}")));
                };
                if taken {
                    *place = torch.take(size);
                } else {
                    torch.free(place.take());
                }
            }
        }
        each(torch);
    }
    Ok(())
}

/// What PyTorch's caching allocator has in blocks and in segments after each request.
#[pyfunction]
pub(crate) fn caching_allocator(
    py: Python<'_>,
    requests: Vec<BlockEvent>,
    sizes: Vec<u64>,
) -> PyResult<(Vec<u64>, Vec<u64>)> {
    py.detach(|| {
        let (mut allocated, mut reserved) = (Vec::new(), Vec::new());
        replay(&mut Caching::default(), &requests, &sizes, |torch| {
            allocated.push(torch.allocated());
            reserved.push(torch.reserved());
        })?;
        Ok((allocated, reserved))
    })
}

/// Whether it gets by with this many bytes of segments, if it gives its cache back when it must.
#[pyfunction]
pub(crate) fn caching_within(
    py: Python<'_>,
    requests: Vec<BlockEvent>,
    sizes: Vec<u64>,
    room: u64,
) -> PyResult<bool> {
    py.detach(|| {
        let mut torch = Caching::within(room);
        replay(&mut torch, &requests, &sizes, |_| {})?;
        Ok(torch.met() == Some(true))
    })
}

/// The most that it would reserve with expandable segments.
#[pyfunction]
pub(crate) fn expandable_segments(
    py: Python<'_>,
    requests: Vec<BlockEvent>,
    sizes: Vec<u64>,
) -> PyResult<u64> {
    py.detach(|| {
        let mut trace = Trace::builder();
        for (time, request) in requests.into_iter().flatten().enumerate() {
            let (number, taken) = block(request);
            let Some(&size) = sizes.get(number) else {
                return Err(PyValueError::new_err(format!("there is no block {number}")));
            };
            let added = if taken {
                trace.allocate(number as u64, Bytes(size), 0, time as u64)
            } else {
                trace.free(number as u64, 0, time as u64)
            };
            added.map_err(|error| PyValueError::new_err(error.to_string()))?;
        }
        Ok(PeerRule::TorchExpandable.peak_reserved(&trace.finish()).get())
    })
}
