//! How a pickle that has been read is looked at.

use std::fmt;

use super::Pickle;
use super::arena::{Chain, ContainerKind, NOWHERE, NodeIndex, PickleInstance, PickleNode};

/// A value in a pickle. Free to copy; it looks nothing up until asked.
#[derive(Clone, Copy)]
pub struct PickleRef<'p> {
    pickle: &'p Pickle<'p>,
    place: NodeIndex,
}

/// What a value is. Containers hand out [`PickleRef`]s, so looking is never deep.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum PickleValue<'p> {
    /// `None`.
    None,
    /// `True` or `False`.
    Bool(bool),
    /// An integer of at most 64 bits.
    Int(i64),
    /// A larger integer: little-endian two's complement.
    BigInt(&'p [u8]),
    /// A float.
    Float(f64),
    /// Text.
    Text(&'p str),
    /// `bytes`, `bytearray`, or a Python 2 `str` that is not UTF-8.
    Bytes(&'p [u8]),
    /// A list.
    List(PickleItems<'p>),
    /// A tuple.
    Tuple(PickleItems<'p>),
    /// A set.
    Set(PickleItems<'p>),
    /// A frozen set.
    FrozenSet(PickleItems<'p>),
    /// A dict, in the order of the file; a key may be there twice, the later one counts.
    Dict(PicklePairs<'p>),
    /// The name of a class or function. Only a name.
    Global {
        /// The module that it would be imported from.
        module: &'p str,
        /// Its name there.
        name: &'p str,
    },
    /// A call that Python would have made.
    Call(Instance<'p>),
    /// An object that Python would have made from its class.
    Object(Instance<'p>),
    /// Something kept outside the pickle, by what it is known there.
    Persistent(PickleRef<'p>),
}

impl<'p> PickleRef<'p> {
    pub(super) fn new(pickle: &'p Pickle<'p>, place: NodeIndex) -> PickleRef<'p> {
        PickleRef { pickle, place }
    }

    fn node(self) -> &'p PickleNode<'p> {
        self.pickle.arena.nodes.get(self.place as usize).unwrap_or(&PickleNode::None)
    }

    /// Which value this is: two `PickleRef`s with the same place are the same Python object.
    /// A walk that remembers places visits each value once, loops or not.
    #[must_use]
    pub fn place(self) -> u32 {
        self.place
    }

    /// What the value is.
    #[must_use]
    pub fn value(self) -> PickleValue<'p> {
        let at = |place| PickleRef::new(self.pickle, place);
        match self.node() {
            PickleNode::None => PickleValue::None,
            PickleNode::Bool(b) => PickleValue::Bool(*b),
            PickleNode::Int(n) => PickleValue::Int(*n),
            PickleNode::BigInt(bytes) => PickleValue::BigInt(bytes),
            PickleNode::OwnedBigInt(bytes) => PickleValue::BigInt(bytes),
            PickleNode::Float(x) => PickleValue::Float(*x),
            PickleNode::Text(text) => PickleValue::Text(text),
            PickleNode::OwnedText(text) => PickleValue::Text(text),
            PickleNode::Bytes(bytes) => PickleValue::Bytes(bytes),
            PickleNode::OwnedBytes(bytes) => PickleValue::Bytes(bytes),
            PickleNode::Container(kind, chain) => {
                let items = PickleItems::new(self.pickle, *chain);
                match kind {
                    ContainerKind::List => PickleValue::List(items),
                    ContainerKind::Tuple => PickleValue::Tuple(items),
                    ContainerKind::Set => PickleValue::Set(items),
                    ContainerKind::FrozenSet => PickleValue::FrozenSet(items),
                    ContainerKind::Dict => PickleValue::Dict(PicklePairs { items }),
                }
            }
            PickleNode::Global { module, name } => PickleValue::Global {
                module: at(*module).as_str().unwrap_or_default(),
                name: at(*name).as_str().unwrap_or_default(),
            },
            PickleNode::Instance(index) => match self.pickle.arena.instances.get(*index as usize) {
                Some(made) if made.by_call => {
                    PickleValue::Call(Instance { pickle: self.pickle, made })
                }
                Some(made) => PickleValue::Object(Instance { pickle: self.pickle, made }),
                None => PickleValue::None,
            },
            PickleNode::Persistent(id) => PickleValue::Persistent(at(*id)),
        }
    }

    /// The text, where it is text.
    #[must_use]
    pub fn as_str(self) -> Option<&'p str> {
        match self.node() {
            PickleNode::Text(text) => Some(text),
            PickleNode::OwnedText(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, where it is one of at most 64 bits with a sign.
    #[must_use]
    pub fn as_i64(self) -> Option<i64> {
        match self.node() {
            PickleNode::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// The integer, where it is one of at most 64 bits without a sign.
    #[must_use]
    pub fn as_u64(self) -> Option<u64> {
        let wide: &[u8] = match self.node() {
            PickleNode::Int(n) => return u64::try_from(*n).ok(),
            PickleNode::BigInt(bytes) => bytes,
            PickleNode::OwnedBigInt(bytes) => bytes,
            _ => return None,
        };
        let (low, high) = wide.split_first_chunk::<8>()?;
        high.iter().all(|&b| b == 0).then(|| u64::from_le_bytes(*low))
    }

    /// What is in it, where it is a list, tuple or set.
    #[must_use]
    pub fn items(self) -> Option<PickleItems<'p>> {
        match self.value() {
            PickleValue::List(items)
            | PickleValue::Tuple(items)
            | PickleValue::Set(items)
            | PickleValue::FrozenSet(items) => Some(items),
            _ => None,
        }
    }

    /// What is in it, where it is a dict, or a call that was given pairs afterwards
    /// (as an `OrderedDict` is).
    #[must_use]
    pub fn pairs(self) -> Option<PicklePairs<'p>> {
        match self.value() {
            PickleValue::Dict(pairs) => Some(pairs),
            PickleValue::Call(made) | PickleValue::Object(made) => Some(made.pairs()),
            _ => None,
        }
    }

    /// The value under a key of text. It looks at every key: take [`PickleRef::pairs`] for
    /// more than a few.
    #[must_use]
    pub fn get(self, key: &str) -> Option<PickleRef<'p>> {
        self.pairs()?.filter(|(k, _)| k.as_str() == Some(key)).last().map(|(_, value)| value)
    }

    /// What kind of value it is, for messages.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self.value() {
            PickleValue::None => "None",
            PickleValue::Bool(_) => "a bool",
            PickleValue::Int(_) | PickleValue::BigInt(_) => "an int",
            PickleValue::Float(_) => "a float",
            PickleValue::Text(_) => "a str",
            PickleValue::Bytes(_) => "bytes",
            PickleValue::List(_) => "a list",
            PickleValue::Tuple(_) => "a tuple",
            PickleValue::Set(_) | PickleValue::FrozenSet(_) => "a set",
            PickleValue::Dict(_) => "a dict",
            PickleValue::Global { .. } => "a name",
            PickleValue::Call(_) => "a call",
            PickleValue::Object(_) => "an object",
            PickleValue::Persistent(_) => "a persistent id",
        }
    }
}

/// Shallow, for a value may hold itself.
impl fmt::Debug for PickleRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} ({})", self.place, self.kind())
    }
}

/// The contents of a list, tuple or set, in order.
#[derive(Clone, Copy)]
pub struct PickleItems<'p> {
    pickle: &'p Pickle<'p>,
    at: u32,
    left: u32,
    next: u32,
}

impl<'p> PickleItems<'p> {
    fn new(pickle: &'p Pickle<'p>, chain: Chain) -> PickleItems<'p> {
        PickleItems { pickle, at: chain.start, left: chain.len, next: chain.next }
    }
}

impl<'p> Iterator for PickleItems<'p> {
    type Item = PickleRef<'p>;

    fn next(&mut self) -> Option<PickleRef<'p>> {
        if self.left == 0 {
            // NOWHERE is past the end of the runs, so that a chain ends here.
            let run = self.pickle.arena.runs.get(self.next as usize)?;
            (self.at, self.left, self.next) = (run.start, run.len, run.next);
        }
        let place = *self.pickle.arena.items.get(self.at as usize)?;
        self.at += 1;
        self.left -= 1;
        Some(PickleRef::new(self.pickle, place))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let known = self.left as usize;
        (known, (self.next == NOWHERE).then_some(known))
    }
}

impl fmt::Debug for PickleItems<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} or more items", self.left)
    }
}

/// The contents of a dict, in the order of the file.
#[derive(Clone, Copy, Debug)]
pub struct PicklePairs<'p> {
    items: PickleItems<'p>,
}

impl<'p> Iterator for PicklePairs<'p> {
    type Item = (PickleRef<'p>, PickleRef<'p>);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.items.next()?, self.items.next()?))
    }
}

/// A call or an object, described.
#[derive(Clone, Copy)]
pub struct Instance<'p> {
    pickle: &'p Pickle<'p>,
    made: &'p PickleInstance,
}

impl<'p> Instance<'p> {
    fn at(self, place: NodeIndex) -> PickleRef<'p> {
        PickleRef::new(self.pickle, place)
    }

    fn given(self, place: NodeIndex) -> Option<PickleRef<'p>> {
        (place != NOWHERE).then(|| self.at(place))
    }

    /// What would be called: most often a [`PickleValue::Global`].
    #[must_use]
    pub fn callable(self) -> PickleRef<'p> {
        self.at(self.made.callable)
    }

    /// The arguments, most often a tuple.
    #[must_use]
    pub fn args(self) -> PickleRef<'p> {
        self.at(self.made.args)
    }

    /// The keyword arguments, where there are any.
    #[must_use]
    pub fn keywords(self) -> Option<PickleRef<'p>> {
        self.given(self.made.keywords)
    }

    /// The state that the object is given once made: most often the dict of its fields.
    #[must_use]
    pub fn state(self) -> Option<PickleRef<'p>> {
        self.given(self.made.state)
    }

    /// What is appended to the object once made.
    #[must_use]
    pub fn items(self) -> PickleItems<'p> {
        PickleItems::new(self.pickle, self.made.items)
    }

    /// What is set in the object by key once made: the contents of an `OrderedDict`.
    #[must_use]
    pub fn pairs(self) -> PicklePairs<'p> {
        PicklePairs { items: PickleItems::new(self.pickle, self.made.pairs) }
    }
}

impl fmt::Debug for Instance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.callable(), self.args())
    }
}
