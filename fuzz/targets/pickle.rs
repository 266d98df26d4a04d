//! Any bytes as a pickle: refused, or a value that a walk gets to the end of.
#![no_main]

use std::collections::HashSet;

use libfuzzer_sys::fuzz_target;
use plimsoll::pickle::{Pickle, Policy, PickleRef, PickleValue};

fn walk(root: PickleRef<'_>, data_only: bool) {
    let mut seen = HashSet::new();
    let mut todo = vec![root];
    while let Some(value) = todo.pop() {
        if !seen.insert(value.place()) {
            continue;
        }
        let _ = (value.as_str(), value.as_u64(), value.as_i64(), value.get("action"));
        let _ = format!("{value:?} {:?}", value.value());
        match value.value() {
            PickleValue::Call(made) | PickleValue::Object(made) => {
                assert!(!data_only);
                todo.extend([made.callable(), made.args()]);
                todo.extend(made.state());
                todo.extend(made.keywords());
                todo.extend(made.items());
            }
            PickleValue::Persistent(id) => {
                assert!(!data_only);
                todo.push(id);
            }
            PickleValue::Global { .. } => assert!(!data_only),
            _ => {}
        }
        todo.extend(value.items().into_iter().flatten());
        todo.extend(value.pairs().into_iter().flatten().flat_map(|(key, value)| [key, value]));
    }
}

fuzz_target!(|bytes: &[u8]| {
    let inert = Pickle::parse(bytes, Policy::Inert);
    if let Ok(pickle) = &inert {
        assert!(pickle.end() <= bytes.len());
        walk(pickle.root(), false);
    }
    if let Ok(pickle) = Pickle::parse(bytes, Policy::DataOnly) {
        assert!(inert.is_ok(), "data is inert too");
        walk(pickle.root(), true);
    }
});
