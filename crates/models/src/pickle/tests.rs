//! What Python writes, by hand: each case is small enough to read.

use super::*;

fn data(bytes: &[u8]) -> Result<Pickle<'_>> {
    Pickle::parse(bytes, Policy::DataOnly)
}

fn why(bytes: &[u8]) -> String {
    data(bytes).map(|pickle| format!("accepted: {:?}", pickle.root())).unwrap_err().to_string()
}

fn list_of_ints(value: PickleRef<'_>) -> Vec<i64> {
    value.items().unwrap().map(|item| item.as_i64().unwrap()).collect()
}

#[test]
fn one_list_in_every_protocol() {
    for bytes in [
        &b"(lp0\nI1\naI2\naI300\na."[..],
        b"]q\x00(K\x01K\x02M,\x01e.",
        b"\x80\x02]q\x00(K\x01K\x02M,\x01e.",
        b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01K\x02M,\x01e.",
        b"\x80\x05(K\x01K\x02L300L\nl.",
    ] {
        assert_eq!(list_of_ints(data(bytes).unwrap().root()), [1, 2, 300], "{bytes:?}");
    }
}

#[test]
fn lists_that_grow_by_turns_keep_their_order() {
    // a = [], b = []: a, b, a, b take a value each, then a takes two at once.
    let bytes = b"]q\x00]q\x01\x86q\x020h\x00K\x01a0h\x01K\x02a0h\x00K\x03a0h\x01K\x04a0h\x00(K\x05K\x06e0h\x02.";
    let pickle = data(bytes).unwrap();
    let lists: Vec<_> = pickle.root().items().unwrap().map(list_of_ints).collect();
    assert_eq!(lists, [vec![1, 3, 5, 6], vec![2, 4]]);
}

#[test]
fn dicts_take_the_later_of_two_keys() {
    let pickle = data(b"}(U\x01aK\x01U\x01bK\x02U\x01aK\x03u.").unwrap();
    assert_eq!(pickle.root().get("a").unwrap().as_i64(), Some(3));
    assert_eq!(pickle.root().get("c").map(PickleRef::place), None);
}

#[test]
fn integers_of_every_width() {
    let pickle = data(b"(K\x05J\xff\xff\xff\xffM\x00\x01\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00L18446744073709551615L\nI01\nt.").unwrap();
    let items: Vec<_> = pickle.root().items().unwrap().collect();
    let unsigned: Vec<_> = items.iter().map(|item| item.as_u64()).collect();
    assert_eq!(unsigned, [Some(5), None, Some(256), Some(u64::MAX), Some(u64::MAX), None]);
    assert_eq!(items[1].as_i64(), Some(-1));
    assert!(matches!(items[5].value(), PickleValue::Bool(true)));
}

#[test]
fn code_is_refused_by_name_and_place() {
    for bytes in [&b"cos\nsystem\n(S'true'\ntR."[..], b"\x80\x04\x8c\x02os\x8c\x06system\x93."] {
        assert!(why(bytes).contains("os.system"), "{}", why(bytes));
    }
    assert!(why(b"\x80\x02cos\nsystem\n.").starts_with("pickle, byte 2:"));
    assert!(why(b"(ios\nsystem\n.").contains("os.system"));
    for (bytes, opcode) in [
        (&b"K\x01)R."[..], "REDUCE"),
        (b"K\x01)\x81.", "NEWOBJ"),
        (b"K\x01}b.", "BUILD"),
        (b"K\x01Q.", "BINPERSID"),
        (b"P1\n.", "PERSID"),
        (b"(K\x01o.", "OBJ"),
        (b"K\x01)}\x92.", "NEWOBJ_EX"),
    ] {
        assert!(why(bytes).contains(opcode), "{}", why(bytes));
    }
    assert!(why(b"\x82\x01.").contains("extension registry"));
}

#[test]
fn inert_keeps_calls_as_data() {
    // OrderedDict([("w", persistent id 7)]) with a state, as checkpoints have it.
    let bytes = b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01(U\x01wK\x07Qu}U\x01sK\x01sb.";
    let pickle = Pickle::parse(bytes, Policy::Inert).unwrap();
    let PickleValue::Call(made) = pickle.root().value() else { panic!("{:?}", pickle.root()) };
    assert!(matches!(
        made.callable().value(),
        PickleValue::Global { module: "collections", name: "OrderedDict" }
    ));
    assert_eq!(made.args().items().unwrap().count(), 0);
    assert_eq!(made.state().unwrap().get("s").unwrap().as_i64(), Some(1));
    let PickleValue::Persistent(id) = pickle.root().get("w").unwrap().value() else { panic!() };
    assert_eq!(id.as_i64(), Some(7));
}

#[test]
fn what_a_broken_file_names_before_it_breaks_is_there() {
    let (pickle, read) =
        Pickle::parse_partly(b"cos\nsystem\n)R\xff", Policy::Inert, PickleLimits::default());
    assert!(read.unwrap_err().to_string().contains("opcode 0xff"));
    assert!(matches!(pickle.root().value(), PickleValue::None));
    let named =
        |value: PickleRef<'_>| matches!(value.value(), PickleValue::Global { module: "os", .. });
    assert!(pickle.values().any(named));
}

#[test]
fn depth_is_only_length() {
    let deep = 1_000_000;
    let mut bytes = b"]".repeat(deep);
    bytes.extend(b"a".repeat(deep - 1));
    bytes.push(b'.');
    let pickle = data(&bytes).unwrap();
    let mut level = pickle.root();
    let mut depth = 1;
    while let Some(inner) = level.items().and_then(|mut items| items.next()) {
        level = inner;
        depth += 1;
    }
    assert_eq!(depth, deep);
}

#[test]
fn a_list_may_hold_itself() {
    let pickle = data(b"]q\x00h\x00a.").unwrap();
    let inside = pickle.root().items().unwrap().next().unwrap();
    assert_eq!(inside.place(), pickle.root().place());
    assert!(format!("{:?}", pickle.root()).contains("a list"));
}

#[test]
fn lengths_past_the_end_are_refused_before_anything_is_made() {
    for bytes in [
        &b"X\xff\xff\xff\x7fabc."[..],
        b"\x8d\xff\xff\xff\xff\xff\xff\xff\xffabc.",
        b"\x8b\xff\xff\xff\xff.",
        b"\x96\x00\x00\x00\x00\x00\x01\x00\x00.",
    ] {
        assert!(why(bytes).contains("cut short"), "{}", why(bytes));
    }
    assert!(why(b"Nr\xff\xff\xff\x7f.").contains("memo number"));
}

#[test]
fn nonsense_is_refused_with_its_place() {
    for (bytes, part) in [
        (&b""[..], "byte 0: no STOP"),
        (b"N", "byte 1: no STOP"),
        (b".", "none is on the stack"),
        (b"K\x01K\x02a.", "List expected"),
        (b"](K\x01s.", "nothing on the stack"),
        (b"}(K\x01u.", "no value"),
        (b"e.", "needs a MARK"),
        (b"h\x00.", "nothing is kept under 0"),
        (b"\x80\x09N.", "protocol 9"),
        (b"\xffN.", "byte 0: opcode 0xff"),
        (b"K\x01(0(Na.", "nothing on the stack"),
        (b"Fabc\n.", "not a number"),
        (b"I12x\n.", "not an integer"),
    ] {
        assert!(why(bytes).contains(part), "{bytes:?}: {}", why(bytes));
    }
}

#[test]
fn limits_hold() {
    let small = PickleLimits { nodes: 300, items: 8, memo: 8, stack: 8 };
    let try_it = |bytes: &[u8]| Pickle::parse_within(bytes, Policy::DataOnly, small).is_err();
    assert!(!try_it(b"(K\x01K\x02t."));
    assert!(try_it(&[&b"]0".repeat(100)[..], b"N."].concat()), "nodes");
    assert!(try_it(&[&b"N".repeat(9)[..], b"."].concat()), "stack");
    assert!(try_it(&[&b"(".repeat(9)[..], b"N."].concat()), "marks");
    assert!(try_it(&[b"](NNNNe(NNNNe(NNNNe".as_slice(), b"."].concat()), "items");
    assert!(try_it(b"NNNNNNNNq\x08."), "memo");
}

#[test]
fn values_stay_small() {
    assert_eq!(size_of::<arena::PickleNode<'_>>(), 24);
}
