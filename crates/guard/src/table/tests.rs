use super::*;
use crate::log::GuardMemoryKind;

fn entry(key: u64, bytes: u64) -> ResourceEntry {
    let (class, kind, tag) = (BlockClass::Pointer, GuardMemoryKind::Linear, BlockTag::NONE);
    let block =
        DriverResource::Block { class, kind, device: 0, tag, bytes, charge: bytes, context: 1 };
    ResourceEntry { key, resource: block }
}

fn bytes(entry: Option<ResourceEntry>) -> Option<u64> {
    entry.and_then(|entry| entry.resource.memory()).map(|memory| memory.bytes)
}

#[test]
fn zeros_are_an_empty_table() {
    assert_eq!(ResourceClass::Empty as u8, 0);
    let table = ResourceTable::new().unwrap();
    assert!(table.take(ResourceClass::Pointer, 7).is_none());
    assert!(table.lock().inner().links[5].entry.resource == DriverResource::Empty);
}

#[test]
fn what_was_put_is_taken_once() {
    let table = ResourceTable::new().unwrap();
    assert!(table.put(entry(5, 100)).unwrap().is_none());
    assert_eq!(bytes(table.put(entry(5, 200)).unwrap()), Some(100));
    assert_eq!(bytes(table.get(ResourceClass::Pointer, 5)), Some(200));
    assert!(table.take(ResourceClass::Array, 5).is_none());
    assert_eq!(bytes(table.take(ResourceClass::Pointer, 5)), Some(200));
    assert!(table.take(ResourceClass::Pointer, 5).is_none());
}

#[test]
fn mappings_are_undone_all_or_none_however_many() {
    const PAGE: u64 = 2 << 20;
    let table = ResourceTable::new().unwrap();
    let at = |n: u64| 0x5000_0000_0000 + n * PAGE;
    for n in 0..500 {
        let resource = DriverResource::Mapping { memory: n, bytes: PAGE };
        table.put(ResourceEntry { key: at(n), resource }).unwrap();
    }
    let count = || (0..500).filter(|n| table.get(ResourceClass::Mapping, at(*n)).is_some()).count();
    // From before the first one, where nothing is mapped, to the middle of the last but one.
    for (from, bytes) in [(at(0) - PAGE, 500 * PAGE), (at(0) - (1 << 40), (1 << 40) + 499 * PAGE)] {
        let list = table.begin_unmap(from, bytes);
        assert_eq!(count(), 1);
        table.cancel_unmap(list);
        assert_eq!(count(), 500);
    }
    let list = table.begin_unmap(at(10), 400 * PAGE);
    // Another thread maps there after the driver is done and before the table knows.
    let resource = DriverResource::Mapping { memory: 1000, bytes: PAGE };
    table.put(ResourceEntry { key: at(10), resource }).unwrap();
    let mut gone = Vec::new();
    table.finish_unmap(list, |resource| match resource {
        DriverResource::Mapping { memory, .. } => gone.push(memory),
        other => panic!("{other:?}"),
    });
    gone.sort_unstable();
    assert_eq!(gone, (10..410).collect::<Vec<_>>());
    assert_eq!(count(), 101);
    assert_eq!(table.get(ResourceClass::Mapping, at(10)).unwrap().resource, resource);
}

#[test]
fn nothing_is_lost_when_runs_are_closed() {
    let table = ResourceTable::new().unwrap();
    let keys: Vec<u64> = (0..40_000u64).map(|n| 0x7f00_0000_0000 + n * 512).collect();
    for &key in &keys {
        table.put(entry(key, key)).unwrap();
    }
    for &key in keys.iter().step_by(3) {
        assert_eq!(bytes(table.take(ResourceClass::Pointer, key)), Some(key));
    }
    for (n, &key) in keys.iter().enumerate() {
        assert_eq!(table.get(ResourceClass::Pointer, key).is_some(), n % 3 != 0, "{n}");
    }
    let mut left = 0;
    table.drain(|_| true, |_| left += 1);
    assert_eq!(left, keys.len() - keys.len().div_ceil(3));
}

#[test]
fn a_full_table_refuses_and_still_finds() {
    let table = ResourceTable::new().unwrap();
    let fits = (0..200_000u64).take_while(|n| table.put(entry(n * 4096 + 1, 1)).is_ok());
    assert!(fits.count() > 50_000);
    assert!(table.take(ResourceClass::Pointer, 1).is_some());
    assert!(table.get(ResourceClass::Pointer, 12).is_none());
}
