use proptest::prelude::*;

use super::*;

/// A message inside of another, or a text.
pub(super) fn field(number: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    out.extend(varint(body.len() as u64));
    out.extend_from_slice(body);
    out
}

fn varint(mut n: u64) -> Vec<u8> {
    let mut out = Vec::new();
    while n >= 0x80 {
        out.push((n & 0x7f) as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

pub(super) fn number(field: u8, n: u64) -> Vec<u8> {
    [vec![field << 3], varint(n)].concat()
}

/// A declaration of a tensor of 32-bit floats; an extent of 0 is open under the name `n`.
fn declared(name: &str, extents: &[u64]) -> Vec<u8> {
    let extents: Vec<u8> = extents
        .iter()
        .flat_map(|&n| if n == 0 { field(1, &field(2, b"n")) } else { field(1, &number(1, n)) })
        .collect();
    let tensor = [number(1, 1), field(2, &extents)].concat();
    [field(1, name.as_bytes()), field(2, &field(1, &tensor))].concat()
}

/// A tensor of this many whole numbers, with its elements.
fn whole(name: &str, list: &[u64]) -> Vec<u8> {
    let raw: Vec<u8> = list.iter().flat_map(|n| n.to_le_bytes()).collect();
    [number(1, list.len() as u64), number(2, 7), field(8, name.as_bytes()), field(9, &raw)].concat()
}

/// A tensor of 32-bit floats whose elements are zeros.
pub(super) fn weight(name: &str, extents: &[u64]) -> Vec<u8> {
    let dims: Vec<u8> = extents.iter().flat_map(|&n| number(1, n)).collect();
    let raw = vec![0; 4 * extents.iter().product::<u64>() as usize];
    [dims, number(2, 1), field(8, name.as_bytes()), field(9, &raw)].concat()
}

pub(super) fn node(op: &str, inputs: &[&str], outputs: &[&str]) -> Vec<u8> {
    node_with(op, inputs, outputs, &[])
}

pub(super) fn node_with(op: &str, inputs: &[&str], outputs: &[&str], more: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = inputs.iter().flat_map(|name| field(1, name.as_bytes())).collect();
    out.extend(outputs.iter().flat_map(|name| field(2, name.as_bytes())));
    out.extend(field(4, op.as_bytes()));
    out.extend_from_slice(more);
    field(1, &out)
}

/// A graph as a setting of a node.
fn branch(name: &str, parts: &[Vec<u8>]) -> Vec<u8> {
    field(5, &[field(1, name.as_bytes()), field(6, &parts.concat())].concat())
}

pub(super) fn input(name: &str, extents: &[u64]) -> Vec<u8> {
    field(11, &declared(name, extents))
}

pub(super) fn output(name: &str) -> Vec<u8> {
    field(12, &field(1, name.as_bytes()))
}

/// A file with these parts of a graph.
fn file(parts: &[Vec<u8>]) -> Vec<u8> {
    [number(1, 8), field(7, &parts.concat()), field(8, &number(2, 17))].concat()
}

pub(super) fn shaped(parts: &[Vec<u8>]) -> Shaped {
    OnnxGraph::parse(&file(parts)).expect("read").shape(&InputExtents::default()).expect("shaped")
}

fn refused(parts: &[Vec<u8>]) -> String {
    let graph = match OnnxGraph::parse(&file(parts)) {
        Ok(graph) => graph,
        Err(error) => return error.to_string(),
    };
    graph.shape(&InputExtents::default()).expect_err("refused").to_string()
}

const KIB: u64 = 1024;
/// 256 floats: one KiB.
const ROW: [u64; 2] = [1, 256];

#[test]
fn what_is_no_model_is_refused() {
    assert!(OnnxGraph::parse(b"").is_err());
    let whole = file(&[input("x", &ROW), node("Relu", &["x"], &["y"]), output("y")]);
    for cut in 1..whole.len() {
        let error = OnnxGraph::parse(&whole[..cut]).expect_err("cut").to_string();
        let said = ["truncated", "early end", "no graph", "without a number"];
        assert!(said.iter().any(|word| error.contains(word)), "{cut}: {error}");
    }
}

#[test]
fn what_nobody_reads_any_more_is_free() {
    let chain = [
        input("x", &ROW),
        node("Transpose", &["x"], &["a"]),
        node("Transpose", &["a"], &["b"]),
        node("Transpose", &["b"], &["c"]),
        output("c"),
    ];
    let peak = shaped(&chain).peak();
    // The input is the caller's, and two of the others live while one becomes the next.
    assert_eq!((peak.bytes, peak.step, peak.steps), (3 * KIB, 2, 3));
    assert_eq!((peak.input_bytes, peak.output_bytes), (KIB, KIB));
    assert_eq!(peak.operator, "Transpose → b");
    let names: Vec<&str> = peak.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "x"]);
}

#[test]
fn single_elements_are_written_in_place_and_never_over_the_callers() {
    let ops = |ops: &[&str]| {
        let mut parts = vec![input("x", &ROW), output("last")];
        for (n, op) in ops.iter().enumerate() {
            let from = if n == 0 { "x".to_string() } else { format!("t{}", n - 1) };
            let to = if n + 1 == ops.len() { "last".to_string() } else { format!("t{n}") };
            parts.push(node(op, &[&from], &[&to]));
        }
        shaped(&parts).peak().bytes
    };
    assert_eq!(ops(&["Relu"]), 2 * KIB, "the input is not ours to write over");
    assert_eq!(ops(&["Relu", "Sigmoid", "Exp", "Tanh"]), 2 * KIB);
    assert_eq!(ops(&["Relu", "Transpose", "Exp"]), 3 * KIB);
    // A value that is read again later is not written over.
    let twice = [
        input("x", &ROW),
        node("Relu", &["x"], &["a"]),
        node("Sigmoid", &["a"], &["b"]),
        node("Mul", &["a", "b"], &["c"]),
        output("c"),
    ];
    assert_eq!(shaped(&twice).peak().bytes, 3 * KIB);
}

#[test]
fn views_share_memory_and_keep_it() {
    let views = [
        input("x", &ROW),
        node("Transpose", &["x"], &["a"]),
        node("Flatten", &["a"], &["v"]),
        node("Identity", &["v"], &["w"]),
        // The original is read no more, and still there as its view.
        node("Transpose", &["x"], &["b"]),
        node("Concat", &["w", "b"], &["c"]),
        output("c"),
    ];
    let mut concat = views.clone();
    let axis = field(5, &[field(1, b"axis"), number(3, 0)].concat());
    concat[5] = node_with("Concat", &["w", "b"], &["c"], &axis);
    let found = shaped(&concat);
    assert_eq!(found.peak().bytes, 5 * KIB, "x, a, b and twice that");
    let balance = found.trace().iter().fold(0i64, |sum, &(taken, _, bytes)| {
        if taken { sum + bytes as i64 } else { sum - bytes as i64 }
    });
    assert_eq!(balance, 3 * KIB as i64, "the input and the output are left");
}

#[test]
fn branches_of_a_graph_live_side_by_side() {
    let fork = |arms: usize| {
        let mut parts = vec![input("x", &ROW), output("sum")];
        let names: Vec<String> = (0..arms).map(|n| format!("arm{n}")).collect();
        parts.extend(names.iter().map(|name| node("Transpose", &["x"], &[name])));
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        parts.push(node("Sum", &names, &["sum"]));
        shaped(&parts).peak().bytes
    };
    assert_eq!(fork(1), 3 * KIB);
    assert_eq!(fork(5), 7 * KIB);
}

#[test]
fn what_follows_from_weights_alone_is_computed_before() {
    let found = shaped(&[
        input("x", &ROW),
        field(5, &weight("w", &ROW)),
        node("Transpose", &["w"], &["folded"]),
        node("Add", &["x", "folded"], &["y"]),
        output("y"),
    ]);
    assert_eq!(found.peak().steps, 1);
    assert_eq!(found.graph.weights()["f32"], (KIB, 256));
}

#[test]
fn extents_come_from_the_request_where_the_file_leaves_them_open() {
    let parts = [
        input("ids", &[0, 0]),
        node("Shape", &["ids"], &["extents"]),
        node("ConstantOfShape", &["extents"], &["zeros"]),
        field(5, &whole("flat", &[u64::MAX])),
        node("Reshape", &["zeros", "flat"], &["y"]),
        output("y"),
    ];
    let at = |batch, tokens| {
        let mut extents = InputExtents::default();
        (extents.batch, extents.tokens) = (batch, tokens);
        let shaped =
            OnnxGraph::parse(&file(&parts)).expect("read").shape(&extents).expect("shaped");
        assert!(shaped.notes[0].contains("n=") && shaped.unknown.is_empty(), "{:?}", shaped.notes);
        shaped.peak().output_bytes
    };
    assert_eq!(at(1, 128), 4 * 128);
    assert_eq!(at(4, 4096), 4 * 4 * 4096);
    let mut extents = InputExtents::default();
    extents.by_place.insert("ids:1".to_string(), 7);
    let graph = OnnxGraph::parse(&file(&parts)).expect("read");
    assert_eq!(graph.shape(&extents).expect("shaped").peak().output_bytes, 4 * 7);
    extents.by_place.insert("nobody:0".to_string(), 7);
    let graph = OnnxGraph::parse(&file(&parts)).expect("read");
    assert!(graph.shape(&extents).expect_err("no such input").to_string().contains("nobody:0"));
}

#[test]
fn a_branch_reads_what_its_graphs_read() {
    let inner = |from: &str| {
        branch(
            "then_branch",
            &[node("Relu", &[from], &["inside"]), output("inside"), field(5, &weight("k", &[64]))],
        )
    };
    let parts = |from: &str| {
        [
            input("x", &ROW),
            input("condition", &[1]),
            node("Transpose", &["x"], &["a"]),
            node("Transpose", &["x"], &["b"]),
            node_with("If", &["condition"], &["y"], &inner(from)),
            output("y"),
        ]
    };
    let found = shaped(&parts("a"));
    assert_eq!(found.graph.inner_nodes, 1);
    assert_eq!(found.graph.weights()["in branches"], (256, 0));
    assert!(found.notes.iter().any(|note| note.contains("not walked")), "{:?}", found.notes);
    assert_eq!(found.peak().bytes, 4 + 3 * KIB, "a lives until the branch has run");
    // What a branch makes for itself is no value of the graph around it.
    let own =
        branch("b", &[node("Relu", &["a"], &["t"]), node("Exp", &["t"], &["u"]), output("u")]);
    let mut parts = parts("a");
    parts[4] = node_with("If", &["condition"], &["y"], &own);
    assert_eq!(shaped(&parts).graph.nodes[2].inputs.len(), 2, "the condition and a");
}

#[test]
fn a_loop_reads_through_the_loops_inside_of_it() {
    let within = branch("body", &[node("Add", &["outer", "mine"], &["s"]), output("s")]);
    let body = branch(
        "body",
        // An extent over 127 takes two bytes, which are no text.
        &[input("mine", &[200]), node_with("Loop", &["mine"], &["t"], &within), output("t")],
    );
    let found = shaped(&[
        input("x", &ROW),
        input("trips", &[1]),
        node("Transpose", &["x"], &["outer"]),
        node_with("Loop", &["trips"], &["y"], &body),
        output("y"),
    ]);
    let names: Vec<&str> = found.graph.nodes[1]
        .inputs
        .iter()
        .flatten()
        .map(|&id| found.graph.values[id].name.as_str())
        .collect();
    assert_eq!(names, ["trips", "outer"]);
    let mut deep = node("Relu", &["x"], &["y"]);
    for _ in 0..20 {
        deep = node_with("Loop", &[], &["y"], &branch("body", &[deep]));
    }
    assert!(refused(&[input("x", &ROW), deep]).contains("inside of each other"));
}

#[test]
fn operators_in_another_order_are_sorted() {
    let found = shaped(&[
        input("x", &ROW),
        node("Relu", &["b"], &["c"]),
        node("Transpose", &["a"], &["b"]),
        node("Transpose", &["x"], &["a"]),
        output("c"),
    ]);
    assert_eq!(found.peak().bytes, 3 * KIB);
    assert_eq!(found.graph.nodes.iter().map(|n| n.op.as_str()).next_back(), Some("Relu"));
}

#[test]
fn what_cannot_be_run_is_told() {
    let circle = [
        input("x", &ROW),
        node("Add", &["x", "b"], &["a"]),
        node("Relu", &["a"], &["b"]),
        output("b"),
    ];
    assert!(refused(&circle).contains("circle"));
    assert!(refused(&[input("x", &ROW), node("Relu", &["y"], &["y"])]).contains("circle"));
    let nobody = refused(&[input("x", &ROW), node("Add", &["x", "ghost"], &["y"])]);
    assert!(nobody.contains("Add → y reads ghost, which nobody makes"), "{nobody}");
    assert!(refused(&[input("x", &ROW), output("y")]).contains("nobody makes its output y"));
    let twice = [input("x", &ROW), node("Relu", &["x"], &["y"]), node("Exp", &["x"], &["y"])];
    assert!(refused(&twice).contains("y is made twice"));
    let apart = [input("x", &[1, 3]), input("z", &[1, 4]), node("Add", &["x", "z"], &["y"])];
    assert!(refused(&apart).contains("Add → y"), "{}", refused(&apart));
}

#[test]
fn huge_extents_are_refused_and_nothing_is_taken_for_them() {
    let relu = node("Relu", &["x"], &["y"]);
    let huge = [input("x", &[1 << 40, 1 << 40]), relu.clone(), output("y")];
    assert!(refused(&huge).contains("beyond counting"), "{}", refused(&huge));
    let dims: Vec<u8> = [u64::MAX >> 1, 8].iter().flat_map(|&n| number(1, n)).collect();
    let tensor = field(5, &[dims, number(2, 1), field(8, b"w")].concat());
    assert!(refused(&[tensor]).contains("beyond counting"));
    let negative = field(5, &[number(1, u64::MAX), number(2, 1), field(8, b"w")].concat());
    assert!(refused(&[negative]).contains("negative"));
    let short = [number(1, 1000), number(2, 1), field(8, b"w"), field(9, &[0; 16])].concat();
    assert!(refused(&[field(5, &short)]).contains("less data"));
    // A product of extents that are each fine.
    let list = field(5, &whole("extents", &[1 << 30, 1 << 30]));
    let made = node("ConstantOfShape", &["extents"], &["y"]);
    assert!(refused(&[list, made, output("y")]).contains("beyond counting"));
    let many: Vec<u8> = (0..100).flat_map(|_| number(1, 1)).collect();
    assert!(refused(&[field(5, &[many, number(2, 1)].concat())]).contains("extents in a shape"));
}

#[test]
fn an_operator_that_is_not_known_is_named_and_the_rest_is_counted() {
    let found = shaped(&[
        input("x", &ROW),
        node("Wonder", &["x"], &["a"]),
        node("Relu", &["a"], &["b"]),
        node("Transpose", &["x"], &["c"]),
        output("c"),
        output("b"),
    ]);
    assert_eq!(found.unknown.get("Wonder"), Some(&1));
    assert_eq!(found.peak().bytes, 2 * KIB);
}

#[test]
fn sparse_weights_take_what_they_store() {
    let values = field(1, &weight("w", &[10]));
    let indices = field(2, &whole("", &[0; 10]));
    let sparse = field(15, &[values, indices, number(3, 1), number(3, 256)].concat());
    let found = shaped(&[sparse, input("x", &ROW), node("Add", &["x", "w"], &["y"]), output("y")]);
    assert_eq!(found.graph.weights()["f32"], (40 + 80, 10));
    assert_eq!(found.peak().output_bytes, KIB);
}

proptest! {
    /// Whatever the graph, the trace takes and frees each value once, and its highest point is
    /// the peak.
    #[test]
    fn the_trace_and_the_peak_agree(ops in proptest::collection::vec((0usize..5, 0usize..8, 0usize..8), 1..24)) {
        let mut parts = vec![input("v0", &ROW)];
        let names: Vec<String> = (0..=ops.len()).map(|n| format!("v{n}")).collect();
        for (n, &(op, a, b)) in ops.iter().enumerate() {
            let (a, b) = (names[a % (n + 1)].as_str(), names[b % (n + 1)].as_str());
            parts.push(match op {
                0 => node("Transpose", &[a], &[&names[n + 1]]),
                1 => node("Identity", &[a], &[&names[n + 1]]),
                2 => node("Relu", &[a], &[&names[n + 1]]),
                3 => node("Add", &[a, a], &[&names[n + 1]]),
                _ => node("MatMul", &[a, b], &[&names[n + 1]]),
            });
        }
        parts.push(output(&names[ops.len()]));
        let Ok(graph) = OnnxGraph::parse(&file(&parts)) else { return Ok(()) };
        let Ok(found) = graph.shape(&InputExtents::default()) else { return Ok(()) };
        let (mut now, mut highest) = (0u64, 0u64);
        let mut live = std::collections::HashSet::new();
        for (taken, id, bytes) in found.trace() {
            if taken {
                prop_assert!(live.insert(id), "taken twice");
                now += bytes;
            } else {
                prop_assert!(live.remove(&id), "freed twice");
                now -= bytes;
            }
            highest = highest.max(now);
        }
        prop_assert_eq!(highest, found.peak().bytes);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = OnnxGraph::parse(&bytes).map(|graph| graph.shape(&InputExtents::default()));
    }
}
