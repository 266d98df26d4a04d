//! Where blocks were allocated.

use std::collections::HashMap;
use std::io::BufReader;

use plimsoll_guard::watch::{GuardWatch, parse_stacks};

use super::answer::{BlockReport, name};
use super::events::Block;
use super::gather::{Gathered, Who};

/// Names of the call stacks that are shown, read once for each process.
pub(super) struct Stacks(HashMap<Who, HashMap<u16, Vec<String>>>);

impl Stacks {
    /// Reads those of these blocks.
    pub(super) fn of<'a>(
        blocks: impl Iterator<Item = &'a Block>,
        gathered: &Gathered,
        watch: &GuardWatch,
    ) -> Stacks {
        let mut wanted: HashMap<Who, Vec<u16>> = HashMap::new();
        for block in blocks.filter(|block| block.stack != 0) {
            wanted.entry(block.who).or_default().push(block.stack);
        }
        let read = |(who, numbers): (Who, Vec<u16>)| {
            let names = BufReader::new(gathered.names(who, watch));
            (who, parse_stacks(names, &numbers).into_iter().collect())
        };
        Stacks(wanted.into_iter().map(read).collect())
    }

    /// A block with where it was allocated.
    pub(super) fn report(&self, block: &Block, watch: &GuardWatch) -> BlockReport {
        let stack = self.0.get(&block.who).and_then(|all| all.get(&block.stack));
        BlockReport {
            pid: block.who.0,
            device: name(block.device, watch),
            kind: block.kind.name(),
            bytes: block.bytes,
            from_seconds: block.from,
            to_seconds: block.to,
            stack: stack.cloned().unwrap_or_default(),
        }
    }
}
