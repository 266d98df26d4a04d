//! The stack machine: one step an opcode.
//!
//! The stack and the marks are kept apart, so a pop can never take what lies below the
//! mark. Each family of opcodes has a function; what would run code in Python is in
//! `code`.

use super::arena::{
    Chain, ContainerKind, NOWHERE, NodeIndex, PLACE_EMPTY_TUPLE, PLACE_FALSE, PLACE_NONE,
    PLACE_TRUE, PickleArena, PickleNode,
};
use super::opcode as op;
use super::reader::{PickleReader, Width, bad};
use super::{Pickle, PickleLimits, Policy, scalar};
use plimsoll_machine::error::{Error, Result};

pub(super) struct PickleMachine<'a> {
    pub(super) reader: PickleReader<'a>,
    pub(super) policy: Policy,
    pub(super) arena: PickleArena<'a>,
    /// The offset of the opcode that is being obeyed.
    pub(super) at: usize,
    limits: PickleLimits,
    stack: Vec<NodeIndex>,
    marks: Vec<u32>,
    memo: Vec<NodeIndex>,
}

impl<'a> PickleMachine<'a> {
    pub(super) fn new(bytes: &'a [u8], policy: Policy, limits: PickleLimits) -> PickleMachine<'a> {
        PickleMachine {
            reader: PickleReader::new(bytes),
            policy,
            arena: PickleArena::new(),
            at: 0,
            limits,
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
        }
    }

    /// Obeys until the end or the first fault; what was made until then is there either way.
    pub(super) fn run(mut self) -> (Pickle<'a>, Result<()>) {
        let root = self.execute();
        let end = self.reader.at();
        let (root, read) =
            root.map_or_else(|fault| (PLACE_NONE, Err(fault)), |root| (root, Ok(())));
        (Pickle { arena: self.arena, root, end }, read)
    }

    fn execute(&mut self) -> Result<NodeIndex> {
        loop {
            self.at = self.reader.at();
            let code = match self.reader.u8() {
                Ok(code) => code,
                Err(_) => return Err(self.bad("no STOP: the file is cut short")),
            };
            if code == op::STOP {
                return self.pop();
            }
            self.step(code)?;
        }
    }

    fn step(&mut self, code: u8) -> Result<()> {
        match code {
            op::NONE
            | op::NEWTRUE
            | op::NEWFALSE
            | op::EMPTY_TUPLE
            | op::BININT1
            | op::BININT2
            | op::BININT
            | op::INT
            | op::LONG
            | op::LONG1
            | op::LONG4
            | op::FLOAT
            | op::BINFLOAT => self.number(code),
            op::STRING
            | op::UNICODE
            | op::BINSTRING
            | op::SHORT_BINSTRING
            | op::BINUNICODE
            | op::SHORT_BINUNICODE
            | op::BINUNICODE8
            | op::BINBYTES
            | op::SHORT_BINBYTES
            | op::BINBYTES8
            | op::BYTEARRAY8 => self.text(code),
            op::EMPTY_LIST
            | op::EMPTY_DICT
            | op::EMPTY_SET
            | op::LIST
            | op::DICT
            | op::TUPLE
            | op::FROZENSET
            | op::TUPLE1
            | op::TUPLE2
            | op::TUPLE3 => self.container(code),
            op::APPEND | op::APPENDS | op::SETITEM | op::SETITEMS | op::ADDITEMS => self.fill(code),
            op::PUT
            | op::BINPUT
            | op::LONG_BINPUT
            | op::MEMOIZE
            | op::GET
            | op::BINGET
            | op::LONG_BINGET => self.remember(code),
            op::MARK | op::POP | op::POP_MARK | op::DUP | op::PROTO | op::FRAME => self.plain(code),
            _ => self.code(code),
        }
    }

    pub(super) fn bad(&self, why: impl Into<String>) -> Error {
        bad(self.at, why)
    }

    fn floor(&self) -> usize {
        self.marks.last().map_or(0, |&mark| mark as usize)
    }

    pub(super) fn push(&mut self, place: NodeIndex) -> Result<()> {
        if self.stack.len() >= self.limits.stack as usize {
            let limit = self.limits.stack;
            return Err(self.bad(format!("more than {limit} values on the stack; raise the limit")));
        }
        self.stack.push(place);
        Ok(())
    }

    pub(super) fn pop(&mut self) -> Result<NodeIndex> {
        let place = if self.stack.len() > self.floor() { self.stack.pop() } else { None };
        place.ok_or_else(|| self.bad("an opcode that takes a value, and none is on the stack"))
    }

    fn top(&self) -> Result<NodeIndex> {
        let top = self.stack.last().filter(|_| self.stack.len() > self.floor());
        top.copied().ok_or_else(|| self.bad("an opcode that needs a value on the stack"))
    }

    /// Takes everything above the last mark, and the mark.
    pub(super) fn pop_mark(&mut self) -> Result<Vec<NodeIndex>> {
        let mark = self.marks.pop().ok_or_else(|| self.bad("an opcode that needs a MARK"))?;
        Ok(self.stack.split_off(mark as usize))
    }

    pub(super) fn add(&mut self, node: PickleNode<'a>) -> Result<NodeIndex> {
        self.arena.add(node, &self.limits, self.at)
    }

    pub(super) fn push_node(&mut self, node: PickleNode<'a>) -> Result<()> {
        let place = self.add(node)?;
        self.push(place)
    }

    /// A tuple, list, dict or set that holds these.
    pub(super) fn gather(
        &mut self,
        kind: ContainerKind,
        places: &[NodeIndex],
    ) -> Result<NodeIndex> {
        if kind == ContainerKind::Tuple && places.is_empty() {
            return Ok(PLACE_EMPTY_TUPLE);
        }
        if kind == ContainerKind::Dict && !places.len().is_multiple_of(2) {
            return Err(self.bad("a dict with a key that has no value"));
        }
        let chain = self.arena.chain(places, &self.limits, self.at)?;
        self.add(PickleNode::Container(kind, chain))
    }

    fn number(&mut self, code: u8) -> Result<()> {
        let at = self.at;
        let node = match code {
            op::NONE => return self.push(PLACE_NONE),
            op::NEWTRUE => return self.push(PLACE_TRUE),
            op::NEWFALSE => return self.push(PLACE_FALSE),
            op::EMPTY_TUPLE => return self.push(PLACE_EMPTY_TUPLE),
            op::BININT1 => {
                let small = self.reader.u8()?;
                return self.push(PickleArena::small(small));
            }
            op::BININT2 => PickleNode::Int(self.reader.u16()?.into()),
            op::BININT => PickleNode::Int(self.reader.i32()?.into()),
            op::INT => match self.reader.line()? {
                b"00" => return self.push(PLACE_FALSE),
                b"01" => return self.push(PLACE_TRUE),
                line => scalar::decimal(line, at)?,
            },
            op::LONG => scalar::decimal(self.reader.line()?, at)?,
            op::LONG1 => scalar::long(self.reader.counted(Width::One)?),
            op::LONG4 => scalar::long(self.reader.counted(Width::Four)?),
            op::FLOAT => scalar::float(self.reader.line()?, at)?,
            _ => PickleNode::Float(self.reader.f64_big_endian()?),
        };
        self.push_node(node)
    }

    fn text(&mut self, code: u8) -> Result<()> {
        let at = self.at;
        let node = match code {
            op::STRING => scalar::quoted(self.reader.line()?, at)?,
            op::UNICODE => scalar::raw_unicode(self.reader.line()?, at)?,
            op::SHORT_BINSTRING => scalar::old_string(self.reader.counted(Width::One)?),
            op::BINSTRING => scalar::old_string(self.reader.counted(Width::Four)?),
            op::SHORT_BINUNICODE => scalar::text(self.reader.counted(Width::One)?),
            op::BINUNICODE => scalar::text(self.reader.counted(Width::Four)?),
            op::BINUNICODE8 => scalar::text(self.reader.counted(Width::Eight)?),
            op::SHORT_BINBYTES => PickleNode::Bytes(self.reader.counted(Width::One)?),
            op::BINBYTES => PickleNode::Bytes(self.reader.counted(Width::Four)?),
            _ => PickleNode::Bytes(self.reader.counted(Width::Eight)?),
        };
        self.push_node(node)
    }

    fn container(&mut self, code: u8) -> Result<()> {
        let empty = |kind| PickleNode::Container(kind, Chain::EMPTY);
        let (kind, places) = match code {
            op::EMPTY_LIST => return self.push_node(empty(ContainerKind::List)),
            op::EMPTY_DICT => return self.push_node(empty(ContainerKind::Dict)),
            op::EMPTY_SET => return self.push_node(empty(ContainerKind::Set)),
            op::LIST => (ContainerKind::List, self.pop_mark()?),
            op::DICT => (ContainerKind::Dict, self.pop_mark()?),
            op::TUPLE => (ContainerKind::Tuple, self.pop_mark()?),
            op::FROZENSET => (ContainerKind::FrozenSet, self.pop_mark()?),
            _ => {
                let n = usize::from(code - op::TUPLE1) + 1;
                let mut places = [PLACE_NONE; 3];
                for place in places[..n].iter_mut().rev() {
                    *place = self.pop()?;
                }
                let tuple = self.gather(ContainerKind::Tuple, &places[..n])?;
                return self.push(tuple);
            }
        };
        let place = self.gather(kind, &places)?;
        self.push(place)
    }

    /// Puts what is on the stack into the container below it.
    fn fill(&mut self, code: u8) -> Result<()> {
        let from = match code {
            op::APPEND => self.stack.len().saturating_sub(1),
            op::SETITEM => self.stack.len().saturating_sub(2),
            _ => self.marks.pop().ok_or_else(|| self.bad("an opcode that needs a MARK"))? as usize,
        };
        if from <= self.floor() {
            return Err(self.bad("nothing on the stack to put values into"));
        }
        let paired = matches!(code, op::SETITEM | op::SETITEMS);
        let places = self.stack.get(from..).unwrap_or_default();
        if paired && !places.len().is_multiple_of(2) {
            return Err(self.bad("a dict with a key that has no value"));
        }
        let target = self.stack.get(from - 1).copied().unwrap_or(NOWHERE) as usize;
        let wanted = match code {
            op::APPEND | op::APPENDS => ContainerKind::List,
            op::ADDITEMS => ContainerKind::Set,
            _ => ContainerKind::Dict,
        };
        let mut chain = match self.arena.chain_of(target, wanted, paired) {
            Some(chain) => *chain,
            None => return Err(self.bad(format!("{wanted:?} expected below the values"))),
        };
        self.arena.extend(&mut chain, places, &self.limits, self.at)?;
        if let Some(kept) = self.arena.chain_of(target, wanted, paired) {
            *kept = chain;
        }
        self.stack.truncate(from);
        Ok(())
    }

    fn remember(&mut self, code: u8) -> Result<()> {
        let index = match code {
            op::MEMOIZE => self.memo.len(),
            op::BINPUT | op::BINGET => self.reader.u8()?.into(),
            op::LONG_BINPUT | op::LONG_BINGET => self.reader.u32()? as usize,
            _ => {
                let line = self.reader.line()?;
                let index =
                    std::str::from_utf8(line).ok().and_then(|text| text.trim().parse().ok());
                index.ok_or_else(|| self.bad("a memo number that is none"))?
            }
        };
        if matches!(code, op::GET | op::BINGET | op::LONG_BINGET) {
            let place = self.memo.get(index).copied().filter(|&place| place != NOWHERE);
            let place = place.ok_or_else(|| self.bad(format!("nothing is kept under {index}")))?;
            return self.push(place);
        }
        let place = self.top()?;
        // A file numbers what it keeps from 0, and keeping takes at least a byte: a
        // number past the file's length is a way to ask for memory.
        if index >= self.reader.len().min(self.limits.memo as usize) {
            return Err(self.bad(format!("memo number {index} is past what this file can hold")));
        }
        if index >= self.memo.len() {
            self.memo.resize(index + 1, NOWHERE);
        }
        self.memo[index] = place;
        Ok(())
    }

    fn plain(&mut self, code: u8) -> Result<()> {
        match code {
            op::MARK => {
                if self.marks.len() >= self.limits.stack as usize {
                    return Err(self.bad("more marks than the stack may hold"));
                }
                self.marks.push(self.stack.len() as u32);
            }
            op::POP if self.stack.len() > self.floor() || self.marks.is_empty() => {
                self.pop()?;
            }
            op::POP | op::POP_MARK => {
                self.pop_mark()?;
            }
            op::DUP => {
                let top = self.top()?;
                self.push(top)?;
            }
            op::PROTO => {
                let protocol = self.reader.u8()?;
                if protocol > 5 {
                    return Err(self.bad(format!("protocol {protocol}; 0 to 5 are known")));
                }
            }
            // Frames only help a reader that reads from a pipe.
            _ => {
                self.reader.u64()?;
            }
        }
        Ok(())
    }
}
