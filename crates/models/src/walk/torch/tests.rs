//! Each rule on the smallest graph that shows it.

use super::super::tests::{field, input, node, node_with, number, output, shaped, weight};
use super::*;

/// 16 channels of 16 pixels in 32-bit floats: one KiB.
const IMAGE: [u64; 4] = [1, 16, 4, 4];
const KIB: u64 = 1024;

fn of(parts: &[Vec<u8>]) -> TorchMemory {
    memory(&shaped(parts), &|bytes| bytes)
}

/// An operator with a name.
fn named(op: &str, name: &str, from: &str, to: &str) -> Vec<u8> {
    node_with(op, &[from], &[to], &field(3, name.as_bytes()))
}

#[test]
fn every_result_is_a_new_tensor_and_views_are_none() {
    let chain = |ops: &[&str]| {
        let mut parts = vec![input("t0", &IMAGE)];
        for (n, op) in ops.iter().enumerate() {
            parts.push(node(op, &[&format!("t{n}")], &[&format!("t{}", n + 1)]));
        }
        parts.push(output(&format!("t{}", ops.len())));
        of(&parts).live / KIB
    };
    assert_eq!(chain(&["Relu"]), 2, "the caller keeps what it gave");
    assert_eq!(chain(&["Relu", "Relu", "Relu"]), 3, "none writes in place");
    assert_eq!(chain(&["Transpose", "Identity", "Transpose"]), 1);
    assert_eq!(chain(&["Relu", "Flatten", "Relu"]), 3);
    assert_eq!(chain(&["Transpose", "Flatten"]), 2, "what is not in a row is copied");
}

#[test]
fn products_need_a_workspace_and_many_matrices_in_a_row() {
    let product = |extents: &[u64], turned: bool| {
        // The last two axes change places.
        let rank = extents.len() as u64;
        let axes = (0..rank - 2).chain([rank - 1, rank - 2]);
        let axes: Vec<u8> = axes.flat_map(|axis| number(8, axis)).collect();
        let turn = field(5, &[field(1, b"perm"), axes].concat());
        let turn = node_with("Transpose", &["p"], &["a"], &turn);
        of(&[
            input("p", extents),
            input("q", extents),
            if turned { turn } else { Vec::new() },
            node("MatMul", &[if turned { "a" } else { "p" }, "q"], &["y"]),
            output("y"),
        ])
    };
    let plain = product(&[16, 16], false);
    assert_eq!((plain.products, plain.allocated), (33 << 20, (33 << 20) + 3 * KIB));
    assert_eq!(product(&[16, 16], true), plain, "one matrix is read turned");
    let many = [2, 2, 16, 16];
    assert_eq!(product(&many, false).allocated, (33 << 20) + 12 * KIB);
    assert_eq!(product(&many, true).allocated, (33 << 20) + 16 * KIB, "many are copied");
}

#[test]
fn cudnn_is_allowed_copies_of_wide_filters() {
    let conv = |filter: [u64; 4], groups: u64| {
        let group = field(5, &[field(1, b"group"), number(3, groups)].concat());
        of(&[
            input("x", &IMAGE),
            field(5, &weight("w", &filter)),
            node_with("Conv", &["x", "w"], &["y"], &group),
            output("y"),
        ])
    };
    // 2×2 pixels come out: input, filter and output.
    assert_eq!(conv([16, 16, 3, 3], 1).copies, KIB + 9 * KIB + KIB / 4);
    assert_eq!(conv([16, 8, 3, 3], 2).copies, KIB + 9 * KIB / 2 + KIB / 4);
    assert_eq!(conv([16, 16, 1, 1], 1).copies, 0, "single pixels");
    assert_eq!(conv([16, 1, 3, 3], 16).copies, 0, "a channel each");
    let whole = conv([16, 16, 3, 3], 1);
    assert_eq!(whole.products, 0);
    assert_eq!(whole.live, KIB + KIB / 4);
    // 1, 9 and ½ KiB, and the copies: all in steps of 512 bytes.
    assert_eq!(whole.allocated, 21 * KIB);
    assert_eq!(whole.reserved, 2 << 20);
}

#[test]
fn a_norm_that_was_folded_into_a_convolution_runs() {
    let conv = |name: &str| {
        of(&[
            input("x", &IMAGE),
            field(5, &weight(name, &[16, 16, 1, 1])),
            node("Conv", &["x", name], &["y"]),
            output("y"),
        ])
    };
    assert_eq!(conv("0.weight").live, 2 * KIB);
    assert_eq!(conv("onnx::Conv_7").live, 3 * KIB, "its input, its result, and that normed");
    // The filter and what lives; the norm leaves as much behind as there was.
    assert_eq!(conv("onnx::Conv_7").allocated, 4 * KIB);
}

#[test]
fn pools_find_places_besides() {
    let window = number(8, 2);
    let window = field(5, &[field(1, b"kernel_shape"), window.clone(), window].concat());
    let pool = of(&[
        input("x", &[1, 16, 5, 5]),
        node_with("MaxPool", &["x"], &["y"], &window),
        output("y"),
    ]);
    // 16 × 25 floats, rounded to 512 bytes; 16 × 16 of them, and as many places of 8 bytes.
    assert_eq!(pool.allocated, 2 * KIB + KIB + 2 * KIB);
}

#[test]
fn a_module_holds_what_it_was_called_with() {
    let chain = |names: [&str; 4]| {
        of(&[
            input("x", &IMAGE),
            named("Relu", names[0], "x", "a"),
            named("Relu", names[1], "a", "b"),
            named("Relu", names[2], "b", "c"),
            named("Relu", names[3], "c", "y"),
            output("y"),
        ])
        .live
            / KIB
    };
    assert_eq!(chain(["", "", "", ""]), 3, "no modules");
    assert_eq!(chain(["/0/Relu", "/1/Relu", "/2/Relu", "/3/Relu"]), 3);
    assert_eq!(chain(["/0/Relu", "/m/0/Relu", "/m/1/Relu", "/1/Relu"]), 4, "a, while m runs");
    assert_eq!(chain(["/0/Relu", "/m/0/Relu", "/m/1/Relu", "/m/2/Relu"]), 4, "a, not b and c");
    assert_eq!(chain(["/0/Relu", "/m/Relu", "/n/Relu", "/m/Relu"]), 3, "m returned in between");
}
