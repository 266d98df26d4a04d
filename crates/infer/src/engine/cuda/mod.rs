//! What engines share on a GPU: a stream, pinned memory, and the work beside the model.
//!
//! An engine that computes on a stream of ours can have frames fitted into its input and its
//! output searched on the device (`aboard`), whoever runs the model: all that is needed of it
//! is where its input and outputs lie. What is taken on the device for that is asked of a
//! [`ledger`](Ledger). All foreign calls are in `sys`.

mod aboard;
mod ledger;
pub(super) mod sys;

pub(super) use aboard::Aboard;
pub(super) use ledger::Ledger;
