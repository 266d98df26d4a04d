//! A module of a network, as the pickle describes it: its class, its fields, the modules
//! in it, and its place in the tree, which every message names.

use crate::pickle::{PickleRef, PickleValue};

use super::storage::{Array, Storages};
use super::{PtError, PtResult, allowed_names};

/// The most fields of a module.
const MOST_FIELDS: usize = 4096;
/// The most modules in one.
const MOST_CHILDREN: usize = 512;
/// The deepest nesting: Ultralytics' own is below ten.
const DEEPEST: usize = 32;

/// A module of the network.
#[derive(Clone)]
pub(crate) struct PtModule<'p> {
    /// The class as the file has it: `ultralytics.nn.modules.block.C2f`.
    pub(crate) class: PtClass<'p>,
    /// Its place in the tree: `model.2.m.0.cv1`.
    pub(crate) place: String,
    fields: PickleRef<'p>,
    storages: &'p Storages<'p>,
    depth: usize,
}

/// A class, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PtClass<'p> {
    module: &'p str,
    name: &'p str,
}

impl<'p> PtClass<'p> {
    /// Its name, where it is one of PyTorch's own modules.
    pub(crate) fn of_torch(self) -> Option<&'p str> {
        self.module.starts_with("torch.nn.modules.").then_some(self.name)
    }

    /// Its name, where it is one of Ultralytics' modules. The first releases had them all
    /// in one file, the later ones in a folder of files.
    pub(crate) fn of_ultralytics(self) -> Option<&'p str> {
        let inside = self.module.strip_prefix("ultralytics.nn.modules")?;
        (inside.is_empty() || inside.starts_with('.')).then_some(self.name)
    }

    /// Its bare name.
    pub(crate) fn name(self) -> &'p str {
        self.name
    }
}

impl std::fmt::Display for PtClass<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&allowed_names::full(self.module, self.name))
    }
}

impl<'p> PtModule<'p> {
    /// The module that a value is, as the root of a tree.
    pub(super) fn new(value: PickleRef<'p>, storages: &'p Storages<'p>) -> PtResult<Self> {
        PtModule::at(value, storages, String::new(), 0)
    }

    fn at(
        value: PickleRef<'p>,
        storages: &'p Storages<'p>,
        place: String,
        depth: usize,
    ) -> PtResult<Self> {
        let odd = |why: String| PtError::Odd { place: place.clone(), why };
        if depth > DEEPEST {
            return Err(odd(format!("modules nested deeper than {DEEPEST}, or in a loop")));
        }
        let (PickleValue::Object(made) | PickleValue::Call(made)) = value.value() else {
            return Err(odd(format!("{} where a module should be", value.kind())));
        };
        let PickleValue::Global { module, name } = made.callable().value() else {
            return Err(odd("a module of no class".into()));
        };
        let class = PtClass { module, name };
        let fields = made.state().filter(|state| state.pairs().is_some());
        let fields = fields.ok_or_else(|| odd(format!("a {class} without fields")))?;
        Ok(PtModule { class, place, fields, storages, depth })
    }

    /// A field; `None` where there is none or it is Python's `None`.
    pub(crate) fn field(&self, name: &str) -> Option<PickleRef<'p>> {
        find(self.fields, name)
    }

    /// The place of something in this module. The root has none: the layers of a network
    /// are called `model.0`, `model.1`, … by everybody.
    fn inside(&self, name: &str) -> String {
        let name: String = name.chars().take(60).collect();
        if self.place.is_empty() { name } else { format!("{}.{name}", self.place) }
    }

    /// Something that is wrong here.
    pub(crate) fn odd(&self, why: impl Into<String>) -> PtError {
        PtError::Odd { place: self.place.clone(), why: format!("{} in {}", why.into(), self.class) }
    }

    /// This module is none that is known.
    pub(crate) fn unsupported(&self) -> PtError {
        PtError::Unsupported { module: self.class.to_string(), place: self.place.clone() }
    }

    /// A field that must be a count.
    pub(crate) fn count(&self, name: &str) -> PtResult<usize> {
        let value = self.field(name).and_then(PickleRef::as_u64);
        let value = value.and_then(|value| usize::try_from(value).ok());
        value.ok_or_else(|| self.odd(format!("no count {name:?}")))
    }

    /// A field that is two counts, or one for both: rows and columns.
    pub(crate) fn pair(&self, name: &str) -> PtResult<[usize; 2]> {
        let count = |value: PickleRef<'_>| value.as_u64().and_then(|n| usize::try_from(n).ok());
        let field = self.field(name);
        let found = field.and_then(|value| match value.items() {
            Some(mut items) => Some([count(items.next()?)?, count(items.next()?)?]),
            None => count(value).map(|both| [both, both]),
        });
        found.ok_or_else(|| self.odd(format!("no pair of counts {name:?}")))
    }

    /// Whether a field is there and true.
    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.field(name).map(PickleRef::value), Some(PickleValue::Bool(true)))
    }

    /// A field that is a number.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        number(self.field(name)?)
    }

    /// A parameter or a buffer; `None` where it has none of that name.
    pub(crate) fn array(&self, name: &str) -> PtResult<Option<Array>> {
        let found =
            ["_parameters", "_buffers"].into_iter().find_map(|kind| find(self.field(kind)?, name));
        // `stride` and its like are plain fields.
        let found = found.or_else(|| self.field(name));
        let place = self.inside(name);
        found.map(|value| self.storages.array(value, &place)).transpose()
    }

    /// The module of a name, where there is one.
    pub(crate) fn find_child(&self, name: &str) -> PtResult<Option<PtModule<'p>>> {
        let value = self.field("_modules").and_then(|modules| find(modules, name));
        let place = self.inside(name);
        value.map(|value| PtModule::at(value, self.storages, place, self.depth + 1)).transpose()
    }

    /// The module of a name, which must be there.
    pub(crate) fn child(&self, name: &str) -> PtResult<PtModule<'p>> {
        self.find_child(name)?.ok_or_else(|| self.odd(format!("no module {name:?}")))
    }

    /// All modules in this one, in order.
    pub(crate) fn children(&self) -> PtResult<Vec<PtModule<'p>>> {
        let modules = self.field("_modules").and_then(PickleRef::pairs);
        let modules = modules.ok_or_else(|| self.odd("no modules"))?;
        let mut children = Vec::new();
        for (name, value) in modules {
            if children.len() == MOST_CHILDREN {
                return Err(self.odd(format!("more than {MOST_CHILDREN} modules")));
            }
            let name = name.as_str().ok_or_else(|| self.odd("a module without a name"))?;
            let place = self.inside(name);
            children.push(PtModule::at(value, self.storages, place, self.depth + 1)?);
        }
        Ok(children)
    }
}

/// The value under a key, looked for within bounds; `None` where it is Python's `None`.
pub(super) fn find<'p>(dict: PickleRef<'p>, key: &str) -> Option<PickleRef<'p>> {
    let pairs = dict.pairs()?.take(MOST_FIELDS);
    let found = pairs.filter(|(name, _)| name.as_str() == Some(key)).last()?.1;
    (!matches!(found.value(), PickleValue::None)).then_some(found)
}

/// An int or a float.
pub(crate) fn number(value: PickleRef<'_>) -> Option<f64> {
    match value.value() {
        PickleValue::Int(number) => Some(number as f64),
        PickleValue::Float(number) => Some(number),
        _ => None,
    }
}
