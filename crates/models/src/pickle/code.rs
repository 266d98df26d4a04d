//! The opcodes that import and call in Python. Here they refuse, or write down.

use super::arena::{Chain, ContainerKind, NOWHERE, NodeIndex, PickleInstance, PickleNode};
use super::machine::PickleMachine;
use super::scalar::{shorten, text};
use super::{Policy, opcode as op};
use plimsoll_machine::error::Result;

impl<'a> PickleMachine<'a> {
    pub(super) fn code(&mut self, code: u8) -> Result<()> {
        match code {
            op::GLOBAL | op::STACK_GLOBAL => {
                let global = self.global(code)?;
                self.push(global)
            }
            op::INST => {
                let class = self.global(code)?;
                let args = self.pop_mark()?;
                let args = self.gather(ContainerKind::Tuple, &args)?;
                self.make(true, class, args, NOWHERE)
            }
            op::OBJ => {
                self.allowed("OBJ")?;
                let parts = self.pop_mark()?;
                let (&class, args) =
                    parts.split_first().ok_or_else(|| self.bad("OBJ without a class"))?;
                let args = self.gather(ContainerKind::Tuple, args)?;
                self.make(true, class, args, NOWHERE)
            }
            op::REDUCE | op::NEWOBJ => {
                self.allowed(if code == op::REDUCE { "REDUCE" } else { "NEWOBJ" })?;
                let args = self.pop()?;
                let callable = self.pop()?;
                self.make(code == op::REDUCE, callable, args, NOWHERE)
            }
            op::NEWOBJ_EX => {
                self.allowed("NEWOBJ_EX")?;
                let keywords = self.pop()?;
                let args = self.pop()?;
                let class = self.pop()?;
                self.make(false, class, args, keywords)
            }
            op::BUILD => self.build(),
            op::PERSID => {
                self.allowed("PERSID")?;
                let id = text(self.reader.line()?);
                let id = self.add(id)?;
                self.push_node(PickleNode::Persistent(id))
            }
            op::BINPERSID => {
                self.allowed("BINPERSID")?;
                let id = self.pop()?;
                self.push_node(PickleNode::Persistent(id))
            }
            op::EXT1 | op::EXT2 | op::EXT4 => {
                Err(self.bad("a name by its number in Python's extension registry; not read"))
            }
            op::NEXT_BUFFER | op::READONLY_BUFFER => {
                Err(self.bad("a buffer kept outside the file; not read"))
            }
            _ => Err(self.bad(format!("opcode 0x{code:02x} is not one of protocols 0 to 5"))),
        }
    }

    fn allowed(&self, what: &str) -> Result<()> {
        match self.policy {
            Policy::Inert => Ok(()),
            Policy::DataOnly => Err(self.bad(format!(
                "{what}: this would run code or reach outside the file when loaded in \
                 Python, and only plain data is read here; nothing was run"
            ))),
        }
    }

    fn global(&mut self, code: u8) -> Result<NodeIndex> {
        let (module, name) = if code == op::STACK_GLOBAL {
            let name = self.pop()?;
            (self.pop()?, name)
        } else {
            let (module, name) = (text(self.reader.line()?), text(self.reader.line()?));
            (self.add(module)?, self.add(name)?)
        };
        let called = format!("{}.{}", self.word(module)?, self.word(name)?);
        self.allowed(&called)?;
        self.add(PickleNode::Global { module, name })
    }

    /// A module or name, fit for a message.
    fn word(&self, place: NodeIndex) -> Result<String> {
        match self.arena.nodes.get(place as usize) {
            Some(PickleNode::Text(text)) => Ok(shorten(text)),
            Some(PickleNode::OwnedText(text)) => Ok(shorten(text)),
            _ => Err(self.bad("STACK_GLOBAL with a name that is not text")),
        }
    }

    fn make(
        &mut self,
        by_call: bool,
        callable: NodeIndex,
        args: NodeIndex,
        keywords: NodeIndex,
    ) -> Result<()> {
        let index = self.arena.instances.len() as u32;
        self.push_node(PickleNode::Instance(index))?;
        self.arena.instances.push(PickleInstance {
            by_call,
            callable,
            args,
            keywords,
            state: NOWHERE,
            items: Chain::EMPTY,
            pairs: Chain::EMPTY,
        });
        Ok(())
    }

    /// BUILD: the state goes to the object below it, which keeps its place.
    fn build(&mut self) -> Result<()> {
        self.allowed("BUILD")?;
        let state = self.pop()?;
        let object = self.pop()?;
        let made = match self.arena.nodes.get(object as usize) {
            Some(PickleNode::Instance(index)) => self.arena.instances.get_mut(*index as usize),
            _ => None,
        };
        match made {
            Some(made) if made.state == NOWHERE => made.state = state,
            Some(_) => return Err(self.bad("BUILD of an object that has its state")),
            None => return Err(self.bad("BUILD of something that is no object")),
        }
        self.push(object)
    }
}
