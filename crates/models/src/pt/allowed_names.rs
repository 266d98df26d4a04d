//! The names that a checkpoint may mention.
//!
//! Nothing in a checkpoint is ever called here, so a hostile checkpoint does no harm. The same
//! file can do harm when Python opens it, and the user should learn of that: a name outside
//! this list is an error, even if no value in the file uses it. The list is what `torch.save`
//! and Ultralytics write: classes by module, everything else by its full name.
//! Functions in the same modules load other files or evaluate text
//! (`torch.storage._load_from_bytes`, `ultralytics.nn.tasks.parse_model`). Python writes the
//! names of functions without capital letters, so a name without one is not accepted as a class.

use std::collections::HashSet;

use crate::pickle::{Pickle, PickleRef, PickleValue};

/// Modules whose every class is harmless: parts of networks, and containers.
const MODULES: [&str; 16] = [
    "torch.nn.modules.",
    "torch.nn.parameter",
    "torch.optim.",
    "torch.amp.",
    "torch.cuda.amp.",
    "torch.storage",
    "torch.torch_version",
    "ultralytics.nn.modules",
    "ultralytics.nn.tasks",
    "ultralytics.utils.loss",
    "ultralytics.utils.tal",
    "ultralytics.yolo.utils.loss",
    "ultralytics.yolo.utils.tal",
    "ultralytics.yolo.v8.",
    "pathlib",
    "numpy.dtypes",
];

/// Single names of other modules.
const NAMES: [&str; 36] = [
    "collections.OrderedDict",
    "collections.defaultdict",
    "argparse.Namespace",
    "types.SimpleNamespace",
    "datetime.date",
    "datetime.datetime",
    "datetime.timedelta",
    "datetime.timezone",
    "copy_reg._reconstructor",
    "copyreg._reconstructor",
    "_codecs.encode",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "numpy.core.numeric._frombuffer",
    "numpy._core.numeric._frombuffer",
    "torch.Size",
    "torch.device",
    "torch._C._nn.silu",
    "torch._C._nn.gelu",
    "torch.nn.functional.silu",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch.serialization._get_layout",
    "torch.amp.grad_scaler._refresh_per_optimizer_state",
    "torch.cuda.amp.grad_scaler._refresh_per_optimizer_state",
    "ultralytics.utils.IterableSimpleNamespace",
    "ultralytics.yolo.utils.IterableSimpleNamespace",
    "ultralytics.utils.torch_utils.ModelEMA",
    "ultralytics.yolo.utils.torch_utils.ModelEMA",
];

/// Types of Python itself, and the look-up that a fused model is saved with.
const BUILTINS: [&str; 15] = [
    "set",
    "frozenset",
    "dict",
    "list",
    "tuple",
    "int",
    "float",
    "complex",
    "str",
    "bytes",
    "bytearray",
    "bool",
    "object",
    "slice",
    "getattr",
];

/// Names in a pickle that no checkpoint of Ultralytics mentions.
#[derive(Debug, Default)]
pub(super) struct ForeignNames {
    /// The first that is not only a class: called, handed to something, or thrown away.
    pub(super) hostile: Option<String>,
    /// The first that only has objects made of it, as a module of the user's own has.
    pub(super) own: Option<String>,
}

pub(super) fn foreign_names(pickle: &Pickle<'_>) -> ForeignNames {
    let (mut called, mut classes) = (HashSet::new(), HashSet::new());
    let mut found = ForeignNames::default();
    for value in pickle.values() {
        match value.value() {
            // A fused model was saved with a method in place of another: known, by its name.
            PickleValue::Call(call) if is_getattr(call.callable()) => {
                let wanted = call.args().items().and_then(|mut items| items.nth(1));
                let wanted = wanted.and_then(PickleRef::as_str).unwrap_or("?");
                if wanted != "forward_fuse" {
                    let name =
                        || format!("getattr of {:?}", wanted.chars().take(60).collect::<String>());
                    found.hostile.get_or_insert_with(name);
                }
            }
            PickleValue::Call(call) => _ = called.insert(call.callable().place()),
            PickleValue::Object(made) => _ = classes.insert(made.callable().place()),
            _ => {}
        }
    }
    for value in pickle.values() {
        let PickleValue::Global { module, name } = value.value() else { continue };
        if !is_known(module, name) {
            let own = classes.contains(&value.place()) && !called.contains(&value.place());
            let first = if own { &mut found.own } else { &mut found.hostile };
            first.get_or_insert_with(|| full(module, name));
        }
    }
    found
}

fn is_known(module: &str, name: &str) -> bool {
    let listed = MODULES.iter().any(|known| match known.strip_suffix('.') {
        Some(parent) => module.strip_prefix(parent).is_some_and(|rest| rest.starts_with('.')),
        None => module == *known || module.strip_prefix(known).is_some_and(|r| r.starts_with('.')),
    });
    // A name with dots in it reaches through a class to something else.
    if name.contains('.') {
        return false;
    }
    let listed = listed && name.contains(|letter: char| letter.is_ascii_uppercase());
    let of_torch = module == "torch" && (name.ends_with("Storage") || is_dtype(name));
    let builtin = is_builtins(module) && BUILTINS.contains(&name);
    listed || of_torch || builtin || NAMES.contains(&full(module, name).as_str())
}

fn is_getattr(value: PickleRef<'_>) -> bool {
    matches!(value.value(), PickleValue::Global { module, name: "getattr" } if is_builtins(module))
}

fn is_builtins(module: &str) -> bool {
    matches!(module, "builtins" | "__builtin__")
}

fn is_dtype(name: &str) -> bool {
    ["float", "bfloat", "int", "uint", "bool", "complex", "double", "half", "long", "quint", "qint"]
        .iter()
        .any(|kind| name.strip_prefix(kind).is_some_and(|rest| !rest.contains("to")))
}

/// A module and a name as one, fit for a message.
pub(super) fn full(module: &str, name: &str) -> String {
    let both = format!("{module}.{name}");
    both.chars().take(120).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_checkpoints_mention_is_known_and_what_runs_code_is_not() {
        for (module, name) in [
            ("ultralytics.nn.modules", "C2f"),
            ("ultralytics.nn.modules.block", "C3k2"),
            ("torch.nn.modules.conv", "Conv2d"),
            ("torch", "HalfStorage"),
            ("torch", "bfloat16"),
            ("collections", "OrderedDict"),
            ("__builtin__", "set"),
            ("ultralytics.utils.loss", "v8DetectionLoss"),
            ("datetime", "datetime"),
            ("pathlib", "PosixPath"),
        ] {
            assert!(is_known(module, name), "{module}.{name}");
        }
        for (module, name) in [
            ("os", "system"),
            ("posix", "system"),
            ("builtins", "eval"),
            ("torch", "load"),
            ("torch.hub", "load"),
            ("torch.nn.modulesx", "y"),
            ("torch.nn.modules.conv", "os.system"),
            ("ultralytics.utils.downloads", "safe_download"),
            ("pathlibx", "Path"),
            ("numpy", "load"),
            ("torch.storage", "_load_from_bytes"),
            ("ultralytics.nn.tasks", "parse_model"),
            ("ultralytics.nn.tasks", "torch_safe_load"),
            ("pathlib", "os"),
        ] {
            assert!(!is_known(module, name), "{module}.{name}");
        }
    }
}
