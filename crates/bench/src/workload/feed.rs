//! Where a slot's frames come from: a source of its own, or its side of a shared one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use plimsoll_infer::{Result, Source, Stager};

use super::input::{DecodedFrame, OpenedInput, SharedFeed};
use super::plan::BenchPlan;
use super::slots::ResolvedPlan;
use crate::record::InputStream;

/// All inputs of a run.
pub(super) struct InputStreams {
    inputs: Vec<Arc<OpenedInput>>,
    unpaired: Arc<AtomicU64>,
}

impl InputStreams {
    pub(super) fn new(layout: &ResolvedPlan) -> InputStreams {
        let inputs = layout.inputs.iter().map(|input| Arc::new(OpenedInput::new(input)));
        InputStreams { inputs: inputs.collect(), unpaired: Arc::default() }
    }

    /// Ends what may wait for long: a silent camera would delay the end of a run.
    pub(super) fn stop(&self) {
        self.inputs.iter().for_each(|input| input.stop());
    }

    /// What was read so far.
    pub(super) fn records(&self) -> Vec<InputStream> {
        self.inputs.iter().map(|input| input.stream()).collect()
    }

    /// Frames without a partner; `None` where nothing is paired.
    pub(super) fn unpaired(&self) -> Option<u64> {
        (self.inputs.len() == 2).then(|| self.unpaired.load(Ordering::Relaxed))
    }

    /// The frames of a slot that runs by itself.
    pub(super) fn alone(&self, plan: &BenchPlan, slot: usize) -> FrameFeed {
        match &self.inputs[..] {
            [input] => FrameFeed::single(input, plan),
            _ => FrameFeed::Side { shared: self.shared(plan, [slot == 0, slot == 1]), side: slot },
        }
    }

    /// The frames of two slots that run at once.
    pub(super) fn together(&self, plan: &BenchPlan) -> [FrameFeed; 2] {
        match &self.inputs[..] {
            [input] if !input.input.live => [(); 2].map(|()| FrameFeed::single(input, plan)),
            _ => {
                let shared = self.shared(plan, [true, true]);
                [0, 1].map(|side| FrameFeed::Side { shared: shared.clone(), side })
            }
        }
    }

    fn shared(&self, plan: &BenchPlan, wanted: [bool; 2]) -> SharedFeed {
        SharedFeed::new(self.inputs.clone(), plan, wanted, Arc::clone(&self.unpaired))
    }
}

/// Frames for a slot.
pub(super) enum FrameFeed {
    Single {
        input: Arc<OpenedInput>,
        source: Option<Box<dyn Source>>,
        again: bool,
        stager: Option<Stager>,
    },
    Side {
        shared: SharedFeed,
        side: usize,
    },
}

impl FrameFeed {
    fn single(input: &Arc<OpenedInput>, plan: &BenchPlan) -> FrameFeed {
        let again = plan.duration.is_some() && !input.input.live;
        FrameFeed::Single { input: Arc::clone(input), source: None, again, stager: None }
    }

    /// Whether frames come at their own rate.
    pub(super) fn is_live(&self) -> bool {
        match self {
            FrameFeed::Single { input, .. } => input.input.live,
            FrameFeed::Side { shared, side } => shared.is_live(*side),
        }
    }

    /// Where frames are to be brought as they are decoded; for sources that are not open yet.
    pub(super) fn stage_with(&mut self, with: Option<Stager>) {
        match self {
            FrameFeed::Single { stager, .. } => *stager = with,
            FrameFeed::Side { shared, side } => shared.stage_with(*side, with),
        }
    }

    /// The next frame. After [`Error::Frame`](plimsoll_infer::Error::Frame), a bad frame, there
    /// may be more.
    pub(super) fn next(&mut self) -> Option<Result<DecodedFrame>> {
        match self {
            FrameFeed::Single { input, source, again, stager } => {
                next_single(input, source, *again, stager.as_ref())
            }
            FrameFeed::Side { shared, side } => shared.next(*side),
        }
    }
}

impl Drop for FrameFeed {
    fn drop(&mut self) {
        if let FrameFeed::Side { shared, side } = self {
            shared.leave(*side);
        }
    }
}

fn next_single(
    input: &OpenedInput,
    source: &mut Option<Box<dyn Source>>,
    again: bool,
    stager: Option<&Stager>,
) -> Option<Result<DecodedFrame>> {
    let fresh = source.is_none();
    let open = match source {
        Some(open) => open,
        None => match input.open(stager.cloned()) {
            Ok(open) => source.insert(open),
            Err(error) => return Some(Err(error)),
        },
    };
    match open.next_frame() {
        Some(Ok(frame)) => {
            let took = open.decode_time();
            input.keep_info(&**open);
            Some(Ok((frame, took)))
        }
        // A source without any frame would be opened again forever.
        None if again && !fresh => {
            *source = None;
            next_single(input, source, false, stager)
        }
        other => other.map(|result| result.map(|frame| (frame, None))),
    }
}
