//! Where blocks were allocated.

use std::collections::HashMap;

use plimsoll_guard::watch::Watch;

use super::answer::{BlockReport, name};
use super::events::Block;

/// Names of call stacks, read once for each process.
pub(super) struct Stacks<'a> {
    watch: &'a Watch,
    known: HashMap<u32, HashMap<u16, Vec<String>>>,
}

impl<'a> Stacks<'a> {
    pub(super) fn new(watch: &'a Watch) -> Stacks<'a> {
        Stacks { watch, known: HashMap::new() }
    }

    /// A block with where it was allocated.
    pub(super) fn report(&mut self, block: &Block) -> BlockReport {
        let stack = match block.stack {
            0 => Vec::new(),
            number => {
                let all = self.known.entry(block.pid);
                let all = all.or_insert_with(|| self.watch.stacks(block.pid).into_iter().collect());
                all.get(&number).cloned().unwrap_or_default()
            }
        };
        BlockReport {
            pid: block.pid,
            device: name(block.device, self.watch),
            kind: block.kind.name(),
            bytes: block.bytes,
            from_seconds: block.from,
            to_seconds: block.to,
            stack,
        }
    }
}
