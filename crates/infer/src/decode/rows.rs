//! From an output's numbers to candidates, for each layout.

use super::scan::{BLOCK, GROUP, Group, ScanBlock};
use super::suppress::{Candidate, Suppress};
use crate::simd;
use crate::tensor::Tensor;

/// Numbers of a box that is ready: bounds, confidence, class.
pub(super) const READY: usize = 6;

/// The candidates of one output, as they are searched for.
pub(super) struct Search<'search> {
    pub(super) block: &'search mut ScanBlock,
    pub(super) suppress: &'search mut Suppress,
    /// The least confidence.
    pub(super) least: f32,
    /// Whether boxes are handed on by centre and extents, as turned ones are compared.
    pub(super) centred: bool,
    /// Whether a confidence was a number.
    pub(super) numbers: bool,
}

impl Search<'_> {
    fn bounds(&self, place: [f32; 4]) -> [f32; 4] {
        if self.centred { place } else { corners(place) }
    }

    /// `[1, 4 + classes + extra, places]`.
    pub(super) fn by_class(&mut self, tensor: &Tensor, classes: usize) {
        let places = tensor.shape.last().copied().unwrap_or(0);
        let (boxes, scores) = tensor.data.split_at(4 * places);
        let scores = &scores[..classes * places];
        for first in (0..places).step_by(BLOCK) {
            self.block.start(places - first);
            simd::maxima(scores, places, first, self.block);
            let best = &self.block.best[..self.block.length];
            self.numbers = self.numbers || best.iter().any(|best| best.is_finite());
            for start in (0..self.block.length).step_by(GROUP) {
                let end = (start + GROUP).min(self.block.length);
                let best = &self.block.best[start..end];
                if best.iter().any(|&confidence| confidence > self.least) {
                    let mut group = Group::new();
                    simd::owners(scores, places, first + start, best, &mut group);
                    self.offer(boxes, first + start, end - start, &group);
                }
            }
        }
    }

    /// Offers what of a group is sure enough.
    fn offer(&mut self, boxes: &[f32], first: usize, count: usize, group: &Group) {
        let places = boxes.len() / 4;
        for at in 0..count {
            let confidence = self.block.best[(first + at) % BLOCK];
            if confidence <= self.least {
                continue;
            }
            if !group.sum[at].is_finite() {
                self.suppress.refuse();
                continue;
            }
            let bounds = self.bounds(std::array::from_fn(|row| boxes[row * places + first + at]));
            let (class, place) = (group.class[at], (first + at) as u32);
            self.suppress.offer(Candidate { bounds, confidence, class, place });
        }
    }

    /// `[1, 6, places]`, searched by an engine.
    pub(super) fn searched(&mut self, tensor: &Tensor) {
        let places = tensor.shape.last().copied().unwrap_or(0);
        let (boxes, best) = tensor.data.split_at(4 * places);
        let (best, class) = best.split_at(places);
        self.numbers |= best.iter().any(|best| best.is_finite());
        for (at, &confidence) in best.iter().enumerate() {
            if confidence > self.least {
                let bounds = self.bounds(std::array::from_fn(|row| boxes[row * places + at]));
                let (class, place) = (class[at] as u32, at as u32);
                self.suppress.offer(Candidate { bounds, confidence, class, place });
            }
        }
    }

    /// `[1, places, 4 + classes + extra]`.
    pub(super) fn by_place(&mut self, tensor: &Tensor, classes: usize, extra: usize) {
        for (at, row) in tensor.data.chunks_exact(4 + classes + extra).enumerate() {
            let Some((&box_, scores)) = row.split_first_chunk::<4>() else { return };
            let Some((confidence, class)) = best(&scores[..classes], 1.0) else { continue };
            self.numbers = true;
            if confidence > self.least {
                let (bounds, place) = (self.bounds(box_), at as u32);
                self.suppress.offer(Candidate { bounds, confidence, class, place });
            }
        }
    }

    /// `[1, places, 5 + classes]`.
    pub(super) fn objectness(&mut self, tensor: &Tensor, classes: usize) {
        for (at, row) in tensor.data.chunks_exact(5 + classes).enumerate() {
            let Some((&[x, y, w, h, sure], scores)) = row.split_first_chunk::<5>() else { return };
            self.numbers |= sure.is_finite() && scores.iter().any(|score| score.is_finite());
            if sure > self.least
                && let Some((confidence, class)) = best(scores, sure)
                && confidence > self.least
            {
                let (bounds, place) = (self.bounds([x, y, w, h]), at as u32);
                self.suppress.offer(Candidate { bounds, confidence, class, place });
            }
        }
    }
}

/// The best of a place's scores, each times `factor`, and whose it is; `None` where one of
/// them is no number.
fn best(scores: &[f32], factor: f32) -> Option<(f32, u32)> {
    let (mut most, mut class, mut sum) = (f32::NEG_INFINITY, 0, 0.0);
    for (index, score) in scores.iter().map(|score| score * factor).enumerate() {
        sum += score;
        if score > most {
            (most, class) = (score, index as u32);
        }
    }
    (sum.is_finite() && most.is_finite()).then_some((most, class))
}

/// From centre and size to left, top, right, bottom.
pub(super) fn corners([x, y, width, height]: [f32; 4]) -> [f32; 4] {
    let (half_width, half_height) = (width / 2.0, height / 2.0);
    [x - half_width, y - half_height, x + half_width, y + half_height]
}

/// A box that the model has made ready, where it is sure enough.
pub(super) fn ready(at: usize, row: &[f32], least: f32) -> Option<Candidate> {
    let &[left, top, right, bottom, confidence, class] = row.first_chunk::<READY>()?;
    let bounds = [left, top, right, bottom];
    let finite = row.iter().all(|number| number.is_finite());
    // Cut off like a tensor's conversion; what no class number can be is dropped.
    let class = class.trunc();
    (finite && confidence > least && (0.0..=16_777_216.0).contains(&class)).then_some(Candidate {
        bounds,
        confidence,
        class: class as u32,
        place: at as u32,
    })
}

/// One of RT-DETR's queries with a score for each class, where it is sure enough.
pub(super) fn query(at: usize, row: &[f32], least: f32) -> Option<Candidate> {
    let (&bounds, scores) = row.split_first_chunk::<4>()?;
    let (confidence, class) = best(scores, 1.0)?;
    let finite = bounds.iter().all(|bound| bound.is_finite());
    let place = at as u32;
    (finite && confidence > least).then_some(Candidate { bounds, confidence, class, place })
}
