//! The points of a batch: one cloud after the other.

use std::ops::Range;

use plimsoll_memory::{Error, Result};

/// The most points of a cloud, so that their numbers and a mark fit into 32 bits.
pub(crate) const MOST_POINTS: usize = 0x7FFF_FFFE;

/// Clouds that follow each other in memory; they may differ in length.
#[derive(Debug, Clone)]
pub struct PointBatch<'a> {
    floats: &'a [f32],
    columns: usize,
    /// Where each cloud begins, and where the last ends, in points.
    starts: Vec<usize>,
    /// The number of the first cloud.
    first: usize,
}

impl<'a> PointBatch<'a> {
    /// One cloud: x, y, z and features of each point, `columns` floats in all.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for fewer than three columns, or floats that are no whole points.
    pub fn one(floats: &'a [f32], columns: usize) -> Result<PointBatch<'a>> {
        PointBatch::ragged(floats, columns, &[floats.len() / columns.max(1)])
    }

    /// Clouds of these lengths, in points.
    ///
    /// # Errors
    ///
    /// As [`PointBatch::one`], and for lengths whose sum is not the number of points.
    pub fn ragged(floats: &'a [f32], columns: usize, lengths: &[usize]) -> Result<PointBatch<'a>> {
        let mut starts = vec![0usize];
        for length in lengths {
            starts.push(starts.last().map_or(0, |start| start.saturating_add(*length)));
        }
        let points = starts.last().copied().unwrap_or(0);
        let whole = points.checked_mul(columns) == Some(floats.len());
        let known = (3..=u32::MAX as usize).contains(&columns);
        if !known || !whole || lengths.iter().any(|length| *length > MOST_POINTS) {
            return Err(Error::Config {
                field: "points",
                value: format!("{} floats as {points} points of {columns}", floats.len()),
                range: "whole points of 3 to 2^32 - 1 floats, fewer than 2^31 in a cloud",
            });
        }
        Ok(PointBatch { floats, columns, starts, first: 0 })
    }

    /// The same with another number for the first cloud, where a batch is a part of a larger one.
    #[must_use]
    pub fn numbered_from(self, first: usize) -> PointBatch<'a> {
        PointBatch { first, ..self }
    }

    /// The number of a cloud in coordinates with a batch index.
    pub(crate) fn number(&self, cloud: usize) -> usize {
        self.first.saturating_add(cloud)
    }

    /// Floats of a point.
    #[must_use]
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Clouds.
    #[must_use]
    pub fn clouds(&self) -> usize {
        self.starts.len() - 1
    }

    /// All points.
    #[must_use]
    pub fn points(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// All floats.
    #[must_use]
    pub fn floats(&self) -> &'a [f32] {
        self.floats
    }

    /// The points of a cloud, counted through all.
    #[must_use]
    pub fn range(&self, cloud: usize) -> Range<usize> {
        let at = |index: usize| self.starts.get(index).copied().unwrap_or_else(|| self.points());
        at(cloud)..at(cloud.saturating_add(1))
    }

    /// The floats of a cloud.
    pub(crate) fn cloud(&self, cloud: usize) -> &'a [f32] {
        let Range { start, end } = self.range(cloud);
        self.floats.get(start * self.columns..end * self.columns).unwrap_or_default()
    }
}
