//! Declarations: the name, type and extents of an input, an output or a value between operators.

use std::io::{Read, Seek};

use super::super::wire::WireField;
use super::super::{DeclaredExtent, OnnxError, ValueInfo};
use super::{MOST_EXTENTS, OnnxParser, limit};

/// What a file declares of a tensor.
#[derive(Default)]
pub(super) struct Declaration {
    pub(super) name: String,
    pub(super) element: u64,
    pub(super) extents: Option<Vec<DeclaredExtent>>,
}

impl Declaration {
    pub(super) fn into_info(self) -> ValueInfo {
        let fixed = |extent| match extent {
            DeclaredExtent::Fixed(n) => usize::try_from(n).ok(),
            DeclaredExtent::Open(_) | DeclaredExtent::Unnamed => None,
        };
        let shape = self.extents.map(|extents| extents.into_iter().map(fixed).collect());
        ValueInfo { name: self.name, element: self.element, shape }
    }
}

impl<F: Read + Seek> OnnxParser<'_, F> {
    pub(super) fn declaration(&mut self, end: u64) -> Result<Declaration, OnnxError> {
        let mut declared = Declaration::default();
        while let Some((number, field)) = self.wire.next(end)? {
            let WireField::Bytes(stop) = field else { continue };
            match number {
                1 => declared.name = self.wire.text(stop)?,
                2 => (declared.element, declared.extents) = self.type_of(stop)?,
                _ => {}
            }
            self.wire.go(stop)?;
        }
        Ok(declared)
    }

    fn type_of(&mut self, end: u64) -> Result<(u64, Option<Vec<DeclaredExtent>>), OnnxError> {
        let (mut element, mut declared) = (0, None);
        while let Some((number, field)) = self.wire.next(end)? {
            let WireField::Bytes(stop) = field else { continue };
            if number == 1 {
                while let Some((number, field)) = self.wire.next(stop)? {
                    match (number, field) {
                        (1, WireField::Number(n)) => element = n,
                        (2, WireField::Bytes(stop)) => declared = Some(self.shape(stop)?),
                        (_, WireField::Bytes(stop)) => self.wire.go(stop)?,
                        _ => {}
                    }
                }
            }
            self.wire.go(stop)?;
        }
        Ok((element, declared))
    }

    fn shape(&mut self, end: u64) -> Result<Vec<DeclaredExtent>, OnnxError> {
        let mut extents = Vec::new();
        while let Some((_, field)) = self.wire.next(end)? {
            let WireField::Bytes(stop) = field else { continue };
            limit(extents.len(), MOST_EXTENTS, "extents in a shape")?;
            let mut extent = DeclaredExtent::Unnamed;
            while let Some((number, field)) = self.wire.next(stop)? {
                match (number, field) {
                    (1, WireField::Number(n)) => {
                        extent = match n.cast_signed() {
                            // Some writers mean "any" by them.
                            0 | -1 => DeclaredExtent::Unnamed,
                            ..-1 => return Err(self.wire.damaged("a negative extent")),
                            _ => DeclaredExtent::Fixed(n),
                        };
                    }
                    (2, WireField::Bytes(stop)) => {
                        let name = self.wire.text(stop)?;
                        extent = DeclaredExtent::Open(self.symbol(name));
                    }
                    (_, WireField::Bytes(stop)) => self.wire.go(stop)?,
                    _ => {}
                }
            }
            extents.push(extent);
        }
        Ok(extents)
    }

    fn symbol(&mut self, name: String) -> usize {
        let next = self.symbols.len();
        let id = *self.symbols.entry(name.clone()).or_insert(next);
        if id == next {
            self.graph.symbols.push(name);
        }
        id
    }
}
