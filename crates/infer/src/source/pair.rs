//! Frames of two cameras that were taken at the same time.
//!
//! Of two streams, the frame that is behind is held against the other's. If its successor is
//! nearer, it stays alone; otherwise the two are a pair where they lie within the tolerance.
//! Nothing is paired twice, and what stays alone is counted.

use std::time::Duration;

use super::{Frame, Source};
use crate::error::{InferError, InferResult};

/// Two frames of one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Of the first source.
    pub first: Frame,
    /// Of the second.
    pub second: Frame,
}

impl Pair {
    /// How far apart they were taken.
    #[must_use]
    pub fn gap(&self) -> Duration {
        self.first.timestamp.abs_diff(self.second.timestamp)
    }
}

/// One of the two, with what was read of it in advance.
struct Side {
    source: Box<dyn Source>,
    held: std::collections::VecDeque<Frame>,
    ended: bool,
    unpaired: u64,
}

impl Side {
    fn new(source: Box<dyn Source>) -> Side {
        Side { source, held: std::collections::VecDeque::new(), ended: false, unpaired: 0 }
    }

    /// Reads until `count` frames are held or there are no more.
    fn fill(&mut self, count: usize) -> InferResult<()> {
        while self.held.len() < count && !self.ended {
            match self.source.next_frame() {
                Some(Ok(frame)) => self.held.push_back(frame),
                Some(Err(error)) => {
                    self.ended = !matches!(error, InferError::Frame { .. });
                    return Err(error);
                }
                None => self.ended = true,
            }
        }
        Ok(())
    }

    fn time(&self, place: usize) -> Option<Duration> {
        self.held.get(place).map(|frame| frame.timestamp)
    }

    fn leave(&mut self) {
        self.held.pop_front();
        self.unpaired += 1;
    }
}

/// Pairs two sources by the times of their frames.
pub struct Pairs {
    sides: [Side; 2],
    tolerance: Duration,
}

impl Pairs {
    /// Frames at most `tolerance` apart are a pair.
    #[must_use]
    pub fn new(first: Box<dyn Source>, second: Box<dyn Source>, tolerance: Duration) -> Pairs {
        Pairs { sides: [Side::new(first), Side::new(second)], tolerance }
    }

    /// The next pair; `None` once either source has ended. [`InferError::Frame`] is one bad frame
    /// of either: go on.
    pub fn next_pair(&mut self) -> Option<InferResult<Pair>> {
        loop {
            for side in &mut self.sides {
                if let Err(error) = side.fill(1) {
                    return Some(Err(error));
                }
            }
            let (Some(first), Some(second)) = (self.sides[0].time(0), self.sides[1].time(0)) else {
                return self.end();
            };
            let gap = first.abs_diff(second);
            let behind = usize::from(second < first);
            if !gap.is_zero() {
                if let Err(error) = self.sides[behind].fill(2) {
                    return Some(Err(error));
                }
                let next = self.sides[behind].time(1);
                let nearer = next.is_some_and(|next| next.abs_diff(first.max(second)) < gap);
                if nearer || gap > self.tolerance {
                    self.sides[behind].leave();
                    continue;
                }
            }
            let [one, two] = &mut self.sides;
            let taken = one.held.pop_front().zip(two.held.pop_front());
            return taken.map(|(first, second)| Ok(Pair { first, second }));
        }
    }

    /// How many frames of either source stayed alone so far.
    #[must_use]
    pub fn unpaired(&self) -> [u64; 2] {
        [self.sides[0].unpaired, self.sides[1].unpaired]
    }

    /// The two sources.
    #[must_use]
    pub fn sources(&self) -> [&dyn Source; 2] {
        [self.sides[0].source.as_ref(), self.sides[1].source.as_ref()]
    }

    /// What was read and has no partner any more is alone. The other source is not read to its
    /// end, which may never come.
    fn end(&mut self) -> Option<InferResult<Pair>> {
        for side in &mut self.sides {
            while !side.held.is_empty() {
                side.leave();
            }
        }
        None
    }
}
