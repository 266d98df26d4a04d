//! Where values live: flat arrays, and numbers that point into them.
//!
//! A pickle may be a million lists deep, may hold itself, and may mention one object a
//! million times. Boxes would overflow the stack on drop, counted references would leak
//! cycles. Here a value is a [`PickleNode`] of 24 bytes, named by its place in one array; what
//! containers hold lies end to end in another. Dropping is freeing a few arrays.
//!
//! A container grows while others grow between its appends (Python writes a list in
//! batches of a thousand), so its contents are a chain of [`ChainRun`]s. The first is kept in
//! the node itself: nearly every dict has no other.

use super::PickleLimits;
use super::reader::bad;
use plimsoll_machine::error::Result;

/// The place of a node: its index in [`PickleArena::nodes`].
pub(super) type NodeIndex = u32;

/// No place: a chain that ends, a state that was not given.
pub(super) const NOWHERE: u32 = u32::MAX;

pub(super) const PLACE_NONE: NodeIndex = 0;
pub(super) const PLACE_TRUE: NodeIndex = 1;
pub(super) const PLACE_FALSE: NodeIndex = 2;
pub(super) const PLACE_EMPTY_TUPLE: NodeIndex = 3;
/// The integers 0 to 255 follow from here; they are most of what a trace holds.
const PLACE_ZERO: NodeIndex = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerKind {
    List,
    Tuple,
    Dict,
    Set,
    FrozenSet,
}

#[derive(Debug)]
pub(super) enum PickleNode<'a> {
    None,
    Bool(bool),
    Int(i64),
    /// Past 64 bits: little-endian two's complement, as LONG1 writes it.
    BigInt(&'a [u8]),
    OwnedBigInt(Box<[u8]>),
    Float(f64),
    Text(&'a str),
    OwnedText(Box<str>),
    Bytes(&'a [u8]),
    OwnedBytes(Box<[u8]>),
    /// Dicts hold key, value, key, value.
    Container(ContainerKind, Chain),
    Global {
        module: NodeIndex,
        name: NodeIndex,
    },
    /// The rest is in [`PickleArena::instances`].
    Instance(u32),
    Persistent(NodeIndex),
}

/// The contents of a container: one run here, and where the others are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Chain {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) next: u32,
    last: u32,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain { start: 0, len: 0, next: NOWHERE, last: NOWHERE };
}

/// A further stretch of a container's contents.
#[derive(Debug, Clone, Copy)]
pub(super) struct ChainRun {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) next: u32,
}

/// What a call or a class would have made, had anything been called.
#[derive(Debug)]
pub(super) struct PickleInstance {
    /// By REDUCE, INST or OBJ, rather than by a class's `__new__`.
    pub(super) by_call: bool,
    pub(super) callable: NodeIndex,
    pub(super) args: NodeIndex,
    pub(super) keywords: NodeIndex,
    pub(super) state: NodeIndex,
    pub(super) items: Chain,
    pub(super) pairs: Chain,
}

#[derive(Debug)]
pub(super) struct PickleArena<'a> {
    pub(super) nodes: Vec<PickleNode<'a>>,
    pub(super) items: Vec<NodeIndex>,
    pub(super) runs: Vec<ChainRun>,
    pub(super) instances: Vec<PickleInstance>,
}

impl<'a> PickleArena<'a> {
    pub(super) fn new() -> PickleArena<'a> {
        let mut nodes = vec![
            PickleNode::None,
            PickleNode::Bool(true),
            PickleNode::Bool(false),
            PickleNode::Container(ContainerKind::Tuple, Chain::EMPTY),
        ];
        nodes.extend((0..=255).map(PickleNode::Int));
        PickleArena { nodes, items: Vec::new(), runs: Vec::new(), instances: Vec::new() }
    }

    pub(super) fn add(
        &mut self,
        node: PickleNode<'a>,
        limits: &PickleLimits,
        at: usize,
    ) -> Result<NodeIndex> {
        if self.nodes.len() >= limits.nodes as usize {
            return Err(bad(at, format!("more than {} values; raise the limit", limits.nodes)));
        }
        self.nodes.push(node);
        Ok((self.nodes.len() - 1) as NodeIndex)
    }

    /// A small integer has a place of its own already.
    pub(super) fn small(value: u8) -> NodeIndex {
        PLACE_ZERO + NodeIndex::from(value)
    }

    /// A new container that holds these.
    pub(super) fn chain(
        &mut self,
        places: &[NodeIndex],
        limits: &PickleLimits,
        at: usize,
    ) -> Result<Chain> {
        let mut chain = Chain::EMPTY;
        self.extend(&mut chain, places, limits, at)?;
        Ok(chain)
    }

    /// Puts these at the end of a chain.
    pub(super) fn extend(
        &mut self,
        chain: &mut Chain,
        places: &[NodeIndex],
        limits: &PickleLimits,
        at: usize,
    ) -> Result<()> {
        let start = self.items.len();
        if start + places.len() > limits.items as usize {
            return Err(bad(at, format!("more than {} items; raise the limit", limits.items)));
        }
        let (start, len) = (start as u32, places.len() as u32);
        if len == 0 {
            return Ok(());
        }
        self.items.extend_from_slice(places);
        if chain.len == 0 {
            (chain.start, chain.len) = (start, len);
            return Ok(());
        }
        let fresh = self.runs.len() as u32;
        match self.runs.get_mut(chain.last as usize) {
            // The last run ends where the new items begin: they are one run.
            Some(run) if run.start + run.len == start => run.len += len,
            None if chain.start + chain.len == start => chain.len += len,
            last => {
                *last.map_or(&mut chain.next, |run| &mut run.next) = fresh;
                chain.last = fresh;
                self.runs.push(ChainRun { start, len, next: NOWHERE });
            }
        }
        Ok(())
    }
}

impl PickleArena<'_> {
    /// The contents that an opcode may add to: a container of the right kind, or what a
    /// call or class has made.
    pub(super) fn chain_of(
        &mut self,
        at: usize,
        kind: ContainerKind,
        paired: bool,
    ) -> Option<&mut Chain> {
        match self.nodes.get_mut(at)? {
            PickleNode::Container(found, chain) => (*found == kind).then_some(chain),
            PickleNode::Instance(index) => {
                let made = self.instances.get_mut(*index as usize)?;
                Some(if paired { &mut made.pairs } else { &mut made.items })
            }
            _ => None,
        }
    }
}
