//! Where values live: flat arrays, and numbers that point into them.
//!
//! A pickle may be a million lists deep, may hold itself, and may mention one object a
//! million times. Boxes would overflow the stack on drop, counted references would leak
//! cycles. Here a value is a [`Node`] of 24 bytes, named by its place in one array; what
//! containers hold lies end to end in another. Dropping is freeing a few arrays.
//!
//! A container grows while others grow between its appends (Python writes a list in
//! batches of a thousand), so its contents are a chain of [`Run`]s. The first is kept in
//! the node itself: nearly every dict has no other.

use super::Limits;
use super::reader::bad;
use plimsoll_machine::error::Result;

/// The place of a node: its index in [`Arena::nodes`].
pub(super) type Place = u32;

/// No place: a chain that ends, a state that was not given.
pub(super) const NOWHERE: u32 = u32::MAX;

pub(super) const PLACE_NONE: Place = 0;
pub(super) const PLACE_TRUE: Place = 1;
pub(super) const PLACE_FALSE: Place = 2;
pub(super) const PLACE_EMPTY_TUPLE: Place = 3;
/// The integers 0 to 255 follow from here; they are most of what a trace holds.
const PLACE_ZERO: Place = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    List,
    Tuple,
    Dict,
    Set,
    FrozenSet,
}

#[derive(Debug)]
pub(super) enum Node<'a> {
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
    Container(Kind, Chain),
    Global {
        module: Place,
        name: Place,
    },
    /// The rest is in [`Arena::instances`].
    Instance(u32),
    Persistent(Place),
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
pub(super) struct Run {
    pub(super) start: u32,
    pub(super) len: u32,
    pub(super) next: u32,
}

/// What a call or a class would have made, had anything been called.
#[derive(Debug)]
pub(super) struct Made {
    /// By REDUCE, INST or OBJ, rather than by a class's `__new__`.
    pub(super) by_call: bool,
    pub(super) callable: Place,
    pub(super) args: Place,
    pub(super) keywords: Place,
    pub(super) state: Place,
    pub(super) items: Chain,
    pub(super) pairs: Chain,
}

#[derive(Debug)]
pub(super) struct Arena<'a> {
    pub(super) nodes: Vec<Node<'a>>,
    pub(super) items: Vec<Place>,
    pub(super) runs: Vec<Run>,
    pub(super) instances: Vec<Made>,
}

impl<'a> Arena<'a> {
    pub(super) fn new() -> Arena<'a> {
        let mut nodes = vec![
            Node::None,
            Node::Bool(true),
            Node::Bool(false),
            Node::Container(Kind::Tuple, Chain::EMPTY),
        ];
        nodes.extend((0..=255).map(Node::Int));
        Arena { nodes, items: Vec::new(), runs: Vec::new(), instances: Vec::new() }
    }

    pub(super) fn add(&mut self, node: Node<'a>, limits: &Limits, at: usize) -> Result<Place> {
        if self.nodes.len() >= limits.nodes as usize {
            return Err(bad(at, format!("more than {} values; raise the limit", limits.nodes)));
        }
        self.nodes.push(node);
        Ok((self.nodes.len() - 1) as Place)
    }

    /// A small integer has a place of its own already.
    pub(super) fn small(value: u8) -> Place {
        PLACE_ZERO + Place::from(value)
    }

    /// A new container that holds these.
    pub(super) fn chain(&mut self, places: &[Place], limits: &Limits, at: usize) -> Result<Chain> {
        let mut chain = Chain::EMPTY;
        self.extend(&mut chain, places, limits, at)?;
        Ok(chain)
    }

    /// Puts these at the end of a chain.
    pub(super) fn extend(
        &mut self,
        chain: &mut Chain,
        places: &[Place],
        limits: &Limits,
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
                self.runs.push(Run { start, len, next: NOWHERE });
            }
        }
        Ok(())
    }
}

impl Arena<'_> {
    /// The contents that an opcode may add to: a container of the right kind, or what a
    /// call or class has made.
    pub(super) fn chain_of(&mut self, at: usize, kind: Kind, paired: bool) -> Option<&mut Chain> {
        match self.nodes.get_mut(at)? {
            Node::Container(found, chain) => (*found == kind).then_some(chain),
            Node::Instance(index) => {
                let made = self.instances.get_mut(*index as usize)?;
                Some(if paired { &mut made.pairs } else { &mut made.items })
            }
            _ => None,
        }
    }
}
