//! How many items the next batch of `adaptive_map` takes.

use std::time::Duration;

use plimsoll::{AdaptiveRunner, ChunkPace, ChunkSearch};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The size of the next batch: halved where memory is short, grown again after.
#[pyclass(module = "plimsoll._plimsoll")]
pub(crate) struct BatchSize(Rule);

enum Rule {
    /// Up to a size that the caller chose.
    Given(ChunkPace),
    /// The fastest size, found while the work runs.
    Searched(ChunkSearch),
}

#[pymethods]
impl BatchSize {
    /// Up to this many items.
    #[staticmethod]
    fn given(items: u64) -> Self {
        BatchSize(Rule::Given(AdaptiveRunner::new(items).pace()))
    }

    /// As many as are fastest, at most this many.
    #[staticmethod]
    fn searched(most: u64) -> Self {
        BatchSize(Rule::Searched(ChunkSearch::new(most)))
    }

    /// How many items the next batch takes.
    #[getter]
    fn size(&self) -> u64 {
        match &self.0 {
            Rule::Given(pace) => pace.size(),
            Rule::Searched(search) => search.size(),
        }
    }

    /// This many items fit, by what is known of memory.
    fn set_room(&mut self, items: u64) {
        match &mut self.0 {
            Rule::Given(_) => {}
            Rule::Searched(search) => search.set_room(items),
        }
    }

    /// A batch of this many items was done in this many seconds.
    fn succeeded(&mut self, count: u64, seconds: f64) -> PyResult<()> {
        let took = duration(seconds)?;
        match &mut self.0 {
            Rule::Given(pace) => drop(pace.succeeded()),
            Rule::Searched(search) => search.succeeded(count, took),
        }
        Ok(())
    }

    /// A batch of this many items did not fit, which took this many seconds to find out.
    fn failed(&mut self, count: u64, seconds: f64) -> PyResult<()> {
        let took = duration(seconds)?;
        match &mut self.0 {
            Rule::Given(pace) => pace.failed(count),
            Rule::Searched(search) => search.failed(count, took),
        }
        Ok(())
    }
}

fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("seconds is {seconds}; give 0 or more")))
}
