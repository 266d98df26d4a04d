//! How a pickle that has been read is looked at.

use std::fmt;

use super::Pickle;
use super::arena::{Chain, Kind, Made, NOWHERE, Node, Place};

/// A value in a pickle. Free to copy; it looks nothing up until asked.
#[derive(Clone, Copy)]
pub struct Ref<'p> {
    pickle: &'p Pickle<'p>,
    place: Place,
}

/// What a value is. Containers hand out [`Ref`]s, so looking is never deep.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Value<'p> {
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
    List(Items<'p>),
    /// A tuple.
    Tuple(Items<'p>),
    /// A set.
    Set(Items<'p>),
    /// A frozen set.
    FrozenSet(Items<'p>),
    /// A dict, in the order of the file; a key may be there twice, the later one counts.
    Dict(Pairs<'p>),
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
    Persistent(Ref<'p>),
}

impl<'p> Ref<'p> {
    pub(super) fn new(pickle: &'p Pickle<'p>, place: Place) -> Ref<'p> {
        Ref { pickle, place }
    }

    fn node(self) -> &'p Node<'p> {
        self.pickle.arena.nodes.get(self.place as usize).unwrap_or(&Node::None)
    }

    /// Which value this is: two `Ref`s with the same place are the same Python object.
    /// A walk that remembers places visits each value once, loops or not.
    #[must_use]
    pub fn place(self) -> u32 {
        self.place
    }

    /// What the value is.
    #[must_use]
    pub fn value(self) -> Value<'p> {
        let at = |place| Ref::new(self.pickle, place);
        match self.node() {
            Node::None => Value::None,
            Node::Bool(b) => Value::Bool(*b),
            Node::Int(n) => Value::Int(*n),
            Node::BigInt(bytes) => Value::BigInt(bytes),
            Node::OwnedBigInt(bytes) => Value::BigInt(bytes),
            Node::Float(x) => Value::Float(*x),
            Node::Text(text) => Value::Text(text),
            Node::OwnedText(text) => Value::Text(text),
            Node::Bytes(bytes) => Value::Bytes(bytes),
            Node::OwnedBytes(bytes) => Value::Bytes(bytes),
            Node::Container(kind, chain) => {
                let items = Items::new(self.pickle, *chain);
                match kind {
                    Kind::List => Value::List(items),
                    Kind::Tuple => Value::Tuple(items),
                    Kind::Set => Value::Set(items),
                    Kind::FrozenSet => Value::FrozenSet(items),
                    Kind::Dict => Value::Dict(Pairs { items }),
                }
            }
            Node::Global { module, name } => Value::Global {
                module: at(*module).as_str().unwrap_or_default(),
                name: at(*name).as_str().unwrap_or_default(),
            },
            Node::Instance(index) => match self.pickle.arena.instances.get(*index as usize) {
                Some(made) if made.by_call => Value::Call(Instance { pickle: self.pickle, made }),
                Some(made) => Value::Object(Instance { pickle: self.pickle, made }),
                None => Value::None,
            },
            Node::Persistent(id) => Value::Persistent(at(*id)),
        }
    }

    /// The text, where it is text.
    #[must_use]
    pub fn as_str(self) -> Option<&'p str> {
        match self.node() {
            Node::Text(text) => Some(text),
            Node::OwnedText(text) => Some(text),
            _ => None,
        }
    }

    /// The integer, where it is one of at most 64 bits with a sign.
    #[must_use]
    pub fn as_i64(self) -> Option<i64> {
        match self.node() {
            Node::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// The integer, where it is one of at most 64 bits without a sign.
    #[must_use]
    pub fn as_u64(self) -> Option<u64> {
        let wide: &[u8] = match self.node() {
            Node::Int(n) => return u64::try_from(*n).ok(),
            Node::BigInt(bytes) => bytes,
            Node::OwnedBigInt(bytes) => bytes,
            _ => return None,
        };
        let (low, high) = wide.split_first_chunk::<8>()?;
        high.iter().all(|&b| b == 0).then(|| u64::from_le_bytes(*low))
    }

    /// What is in it, where it is a list, tuple or set.
    #[must_use]
    pub fn items(self) -> Option<Items<'p>> {
        match self.value() {
            Value::List(items)
            | Value::Tuple(items)
            | Value::Set(items)
            | Value::FrozenSet(items) => Some(items),
            _ => None,
        }
    }

    /// What is in it, where it is a dict, or a call that was given pairs afterwards
    /// (as an `OrderedDict` is).
    #[must_use]
    pub fn pairs(self) -> Option<Pairs<'p>> {
        match self.value() {
            Value::Dict(pairs) => Some(pairs),
            Value::Call(made) | Value::Object(made) => Some(made.pairs()),
            _ => None,
        }
    }

    /// The value under a key of text. It looks at every key: take [`Ref::pairs`] for
    /// more than a few.
    #[must_use]
    pub fn get(self, key: &str) -> Option<Ref<'p>> {
        self.pairs()?.filter(|(k, _)| k.as_str() == Some(key)).last().map(|(_, value)| value)
    }

    /// What kind of value it is, for messages.
    #[must_use]
    pub fn kind(self) -> &'static str {
        match self.value() {
            Value::None => "None",
            Value::Bool(_) => "a bool",
            Value::Int(_) | Value::BigInt(_) => "an int",
            Value::Float(_) => "a float",
            Value::Text(_) => "a str",
            Value::Bytes(_) => "bytes",
            Value::List(_) => "a list",
            Value::Tuple(_) => "a tuple",
            Value::Set(_) | Value::FrozenSet(_) => "a set",
            Value::Dict(_) => "a dict",
            Value::Global { .. } => "a name",
            Value::Call(_) => "a call",
            Value::Object(_) => "an object",
            Value::Persistent(_) => "a persistent id",
        }
    }
}

/// Shallow, for a value may hold itself.
impl fmt::Debug for Ref<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{} ({})", self.place, self.kind())
    }
}

/// The contents of a list, tuple or set, in order.
#[derive(Clone, Copy)]
pub struct Items<'p> {
    pickle: &'p Pickle<'p>,
    at: u32,
    left: u32,
    next: u32,
}

impl<'p> Items<'p> {
    fn new(pickle: &'p Pickle<'p>, chain: Chain) -> Items<'p> {
        Items { pickle, at: chain.start, left: chain.len, next: chain.next }
    }
}

impl<'p> Iterator for Items<'p> {
    type Item = Ref<'p>;

    fn next(&mut self) -> Option<Ref<'p>> {
        if self.left == 0 {
            // NOWHERE is past the end of the runs, so that a chain ends here.
            let run = self.pickle.arena.runs.get(self.next as usize)?;
            (self.at, self.left, self.next) = (run.start, run.len, run.next);
        }
        let place = *self.pickle.arena.items.get(self.at as usize)?;
        self.at += 1;
        self.left -= 1;
        Some(Ref::new(self.pickle, place))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let known = self.left as usize;
        (known, (self.next == NOWHERE).then_some(known))
    }
}

impl fmt::Debug for Items<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} or more items", self.left)
    }
}

/// The contents of a dict, in the order of the file.
#[derive(Clone, Copy, Debug)]
pub struct Pairs<'p> {
    items: Items<'p>,
}

impl<'p> Iterator for Pairs<'p> {
    type Item = (Ref<'p>, Ref<'p>);

    fn next(&mut self) -> Option<Self::Item> {
        Some((self.items.next()?, self.items.next()?))
    }
}

/// A call or an object, described.
#[derive(Clone, Copy)]
pub struct Instance<'p> {
    pickle: &'p Pickle<'p>,
    made: &'p Made,
}

impl<'p> Instance<'p> {
    fn at(self, place: Place) -> Ref<'p> {
        Ref::new(self.pickle, place)
    }

    fn given(self, place: Place) -> Option<Ref<'p>> {
        (place != NOWHERE).then(|| self.at(place))
    }

    /// What would be called: most often a [`Value::Global`].
    #[must_use]
    pub fn callable(self) -> Ref<'p> {
        self.at(self.made.callable)
    }

    /// The arguments, most often a tuple.
    #[must_use]
    pub fn args(self) -> Ref<'p> {
        self.at(self.made.args)
    }

    /// The keyword arguments, where there are any.
    #[must_use]
    pub fn keywords(self) -> Option<Ref<'p>> {
        self.given(self.made.keywords)
    }

    /// The state that the object is given once made: most often the dict of its fields.
    #[must_use]
    pub fn state(self) -> Option<Ref<'p>> {
        self.given(self.made.state)
    }

    /// What is appended to the object once made.
    #[must_use]
    pub fn items(self) -> Items<'p> {
        Items::new(self.pickle, self.made.items)
    }

    /// What is set in the object by key once made: the contents of an `OrderedDict`.
    #[must_use]
    pub fn pairs(self) -> Pairs<'p> {
        Pairs { items: Items::new(self.pickle, self.made.pairs) }
    }
}

impl fmt::Debug for Instance<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of {:?}", self.callable(), self.args())
    }
}
