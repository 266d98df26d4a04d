//! Which families were checked in PyTorch, and how far off estimates of them were.
//!
//! `checked.tsv` is not written by hand: `tests/both_ways.rs` makes it from rows whose true value is
//! known, and fails where it is not what the rows say.

const TABLE: &str = include_str!("checked.tsv");

/// What is done with a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckedJob {
    /// It runs.
    Run,
    /// All of its weights are trained.
    Train,
    /// Adapters beside its weights are trained.
    Adapt,
    /// The same, and its weights are in 8 bits.
    AdaptInt8,
    /// One of several GPUs trains it; in place of a family there is the kind of sharing.
    Share,
}

impl CheckedJob {
    fn word(self) -> &'static str {
        match self {
            CheckedJob::Run => "run",
            CheckedJob::Train => "train",
            CheckedJob::Adapt => "adapt",
            CheckedJob::AdaptInt8 => "adapt-int8",
            CheckedJob::Share => "share",
        }
    }
}

/// How far the true value may lie from an estimate, in thousandths of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CheckedSpread {
    /// Optimizers, precisions and `checkpointing`, as far as rows have them.
    tried: &'static str,
    /// Rows that it rests on.
    pub(crate) rows: u64,
    pub(crate) below: u64,
    pub(crate) above: u64,
}

/// That of a family; nothing where it was not checked, or was too far off.
pub(crate) fn spread(job: CheckedJob, family: &str) -> Option<CheckedSpread> {
    TABLE.lines().find_map(|line| {
        let mut words = line.split('\t');
        if words.next() != Some(job.word()) || words.next() != Some(family) {
            return None;
        }
        let mut number = || words.next()?.parse().ok();
        let (rows, below, above) = (number()?, number()?, number()?);
        Some(CheckedSpread { tried: words.next()?, rows, below, above })
    })
}

impl CheckedSpread {
    /// Whether some row has this optimizer, this precision, or checkpointing.
    pub(crate) fn tried(&self, word: &str) -> bool {
        self.tried.split(',').any(|tried| tried == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_read_and_none_is_wider_than_promised() {
        for line in TABLE.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split('\t').collect();
            use CheckedJob::{Adapt, AdaptInt8, Run, Share, Train};
            let job = [Run, Train, Adapt, AdaptInt8, Share]
                .into_iter()
                .find(|job| job.word() == words[0])
                .expect("a job");
            let found = spread(job, words[1]).expect("a line");
            assert!(found.rows >= 3 && found.below.max(found.above) <= 50, "{line}");
            assert!(found.below.min(found.above) >= 10, "{line}");
            let listed = words[5].split(',').any(|word| word == "adamw");
            assert!(found.tried("adamw") == listed && !found.tried("adam"), "{line}");
        }
        assert_eq!(spread(CheckedJob::Run, "no such family"), None);
    }
}
