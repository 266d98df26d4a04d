//! Each rule on the smallest graph that shows it: the steps that are left, and what lives.

use super::super::tests::{field, input, node, node_with, number, output, shaped, weight};
use super::*;

/// 16 channels of 16 pixels in 32-bit floats: one KiB.
const IMAGE: [u64; 4] = [1, 16, 4, 4];
const KIB: u64 = 1024;

/// The operators that run, and the most that lives, in the layout of the file.
fn plain(parts: &[Vec<u8>]) -> (Vec<String>, u64) {
    in_blocks(parts, 1)
}

fn in_blocks(parts: &[Vec<u8>], block: u64) -> (Vec<String>, u64) {
    let shaped = shaped(parts);
    let mut lowered = Lowered::new(&shaped);
    fuse::fuse(&mut lowered, &shaped);
    if block > 1 {
        nchwc::apply(&mut lowered, &shaped, block);
        lowered.settle();
    }
    let ops = lowered.order().into_iter().map(|n| lowered.steps[n].op.clone()).collect();
    let (arena, _) = arena(&shaped, OrtSettings { block, ..OrtSettings::cpu() });
    (ops, arena.live)
}

fn steps(ops: &[&str], kib: u64) -> (Vec<String>, u64) {
    (ops.iter().map(|op| (*op).to_string()).collect(), kib * KIB)
}

/// A convolution of one pixel from `from` to `to`.
fn conv(from: &str, to: &str) -> Vec<u8> {
    node("Conv", &[from, "w"], &[to])
}

/// Parts that every graph of images here has.
fn with_image(parts: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let filter = field(5, &weight("w", &[16, 16, 1, 1]));
    [&[input("x", &IMAGE), filter][..], parts].concat()
}

#[test]
fn what_hands_its_input_on_is_dropped() {
    let between = |op: &str, more: &[u8]| {
        plain(&[
            input("x", &IMAGE),
            node("Transpose", &["x"], &["a"]),
            node_with(op, &["a"], &["b"], more),
            node("Transpose", &["b"], &["y"]),
            output("y"),
        ])
    };
    let to = |kind: u64| field(5, &[field(1, b"to"), number(3, kind)].concat());
    assert_eq!(between("Identity", &[]), steps(&["Transpose", "Transpose"], 2));
    assert_eq!(between("Dropout", &[]), steps(&["Transpose", "Transpose"], 2));
    assert_eq!(between("Cast", &to(1)), steps(&["Transpose", "Transpose"], 2));
    let (ops, _) = between("Cast", &to(10));
    assert_eq!(ops, ["Transpose", "Cast", "Transpose"], "into another type");
    let last = [
        input("x", &IMAGE),
        node("Transpose", &["x"], &["a"]),
        node("Identity", &["a"], &["y"]),
        output("y"),
    ];
    assert_eq!(plain(&last).0, ["Transpose", "Identity"], "the caller asked for it by name");
}

#[test]
fn a_bias_goes_into_a_product_with_weights() {
    let product = |rows: u64, bias: &[u64]| {
        plain(&[
            input("x", &[rows, 256]),
            field(5, &weight("w", &[256, 256])),
            field(5, &weight("b", bias)),
            node("MatMul", &["x", "w"], &["a"]),
            node("Add", &["a", "b"], &["c"]),
            node("Transpose", &["c"], &["y"]),
            output("y"),
        ])
    };
    assert_eq!(product(1, &[256]), steps(&["Gemm", "Transpose"], 2));
    assert_eq!(product(0, &[256]).0, ["MatMul", "Add", "Transpose"], "rows that are open");
}

#[test]
fn a_scale_goes_into_a_product_of_two() {
    let scaled = |op: &str, by: &[u64]| {
        plain(&[
            input("p", &[16, 16]),
            input("q", &[16, 16]),
            field(5, &weight("s", by)),
            node("MatMul", &["p", "q"], &["a"]),
            node(op, &["a", "s"], &["b"]),
            node("Transpose", &["b"], &["y"]),
            output("y"),
        ])
    };
    for op in ["Mul", "Div"] {
        assert_eq!(scaled(op, &[1]), steps(&["FusedMatMul", "Transpose"], 2), "{op}");
    }
    assert_eq!(scaled("Mul", &[16]).0, ["MatMul", "Mul", "Transpose"], "a number a column");
}

#[test]
fn what_is_affine_and_one_activation_go_into_a_convolution() {
    let behind = |ops: &[(&str, &[&str])]| {
        let mut parts = with_image(&[
            field(5, &weight("each", &[16, 1, 1])),
            field(5, &weight("one", &[1])),
            field(5, &weight("v", &[16])),
            conv("x", "t0"),
        ]);
        for (n, (op, more)) in ops.iter().enumerate() {
            let (from, to) = (format!("t{n}"), format!("t{}", n + 1));
            parts.push(node(op, &[&[from.as_str()], *more].concat(), &[&to]));
        }
        parts.push(node("Transpose", &[&format!("t{}", ops.len())], &["y"]));
        parts.push(output("y"));
        plain(&parts)
    };
    let norm: (&str, &[&str]) = ("BatchNormalization", &["v", "v", "v", "v"]);
    assert_eq!(behind(&[norm]), steps(&["Conv", "Transpose"], 2));
    assert_eq!(behind(&[("Mul", &["each"]), ("Add", &["each"])]), steps(&["Conv", "Transpose"], 2));
    assert_eq!(behind(&[("Mul", &["one"])]).0, ["Conv", "Mul", "Transpose"], "one for all");
    for op in ["Relu", "Sigmoid", "Tanh", "LeakyRelu", "Clip", "HardSigmoid", "HardSwish"] {
        assert_eq!(behind(&[norm, (op, &[])]), steps(&["FusedConv", "Transpose"], 2), "{op}");
    }
    let (ops, _) = behind(&[("Relu", &[]), ("Tanh", &[])]);
    assert_eq!(ops, ["FusedConv", "Tanh", "Transpose"], "it takes one activation");
    let (ops, _) = behind(&[("Relu", &[]), norm]);
    assert_eq!(ops, ["FusedConv", "BatchNormalization", "Transpose"], "and nothing behind it");
}

#[test]
fn what_somebody_else_reads_is_not_fused() {
    let shared = |more: &[Vec<u8>]| {
        let relu = node("Relu", &["a"], &["b"]);
        plain(&[&with_image(&[conv("x", "a"), relu, output("b")])[..], more].concat())
    };
    assert_eq!(shared(&[]), steps(&["FusedConv"], 1));
    assert_eq!(shared(&[output("a")]), steps(&["Conv", "Relu"], 2), "the caller");
    let reader = [node("Transpose", &["a"], &["c"]), output("c")];
    let (mut ops, live) = shared(&reader);
    ops.sort();
    assert_eq!((ops, live), steps(&["Conv", "Relu", "Transpose"], 3));
}

#[test]
fn an_activation_goes_into_a_product() {
    let parts = [
        input("x", &[1, 256]),
        field(5, &weight("w", &[256, 256])),
        node("Gemm", &["x", "w"], &["a"]),
        node("Relu", &["a"], &["b"]),
        node("Transpose", &["b"], &["y"]),
        output("y"),
    ];
    assert_eq!(plain(&parts), steps(&["Gemm", "Transpose"], 2));
    // Set aside when it is loaded: the weights, laid out anew.
    assert_eq!(arena(&shaped(&parts), OrtSettings::cpu()).0.loaded, 256 * KIB);
}

#[test]
fn x_times_its_sigmoid_is_one_operator() {
    let gated = |first: &str, second: &str, more: &[Vec<u8>]| {
        let parts = [
            input("x", &IMAGE),
            node("Transpose", &["x"], &["a"]),
            node("Sigmoid", &["a"], &["s"]),
            node("Mul", &[first, second], &["y"]),
            output("y"),
        ];
        plain(&[&parts[..], more].concat())
    };
    assert_eq!(gated("a", "s", &[]), steps(&["Transpose", "QuickGelu"], 2));
    assert_eq!(gated("s", "a", &[]), steps(&["Transpose", "QuickGelu"], 2));
    assert_eq!(gated("a", "s", &[output("s")]), steps(&["Transpose", "Sigmoid", "Mul"], 3));
    assert_eq!(gated("s", "s", &[]).0, ["Transpose", "Sigmoid", "Mul"], "of something else");
}

#[test]
fn a_gelu_written_out_is_one_operator() {
    let constants = [
        field(5, &weight("root", &[1])),
        field(5, &weight("unit", &[1])),
        field(5, &weight("half", &[1])),
    ];
    let start = [
        input("x", &IMAGE),
        node("Transpose", &["x"], &["a"]),
        node("Div", &["a", "root"], &["d"]),
        node("Erf", &["d"], &["e"]),
        node("Add", &["e", "unit"], &["f"]),
    ];
    let last = [node("Mul", &["a", "f"], &["g"]), node("Mul", &["g", "half"], &["y"]), output("y")];
    let first =
        [node("Mul", &["a", "half"], &["h"]), node("Mul", &["h", "f"], &["y"]), output("y")];
    for halved in [&last[..], &first[..]] {
        let whole = plain(&[&constants[..], &start, halved].concat());
        assert_eq!(whole, steps(&["Transpose", "Gelu"], 2));
    }
    let seen = plain(&[&constants[..], &start, &last, &[output("e")]].concat());
    assert!(seen.0.contains(&"Erf".to_string()) && seen.1 > 2 * KIB, "{seen:?}");
}

#[test]
fn images_are_laid_out_in_blocks_of_channels_and_copied_at_both_ends() {
    let chain = with_image(&[
        conv("x", "a"),
        node("Relu", &["a"], &["b"]),
        conv("b", "c"),
        node("Transpose", &["c"], &["y"]),
        output("y"),
    ]);
    let ops = ["ReorderInput", "Conv", "Conv", "ReorderOutput", "Transpose"];
    assert_eq!(in_blocks(&chain, 16), steps(&ops, 2));
    assert_eq!(plain(&chain), steps(&["FusedConv", "Conv", "Transpose"], 2));
    // Twenty channels are two blocks of sixteen: 2 KiB, beside the 1.25 that are copied out.
    let odd = with_image(&[
        field(5, &weight("odd", &[20, 16, 1, 1])),
        node("Conv", &["x", "odd"], &["a"]),
        node("Transpose", &["a"], &["y"]),
        output("y"),
    ]);
    assert_eq!(in_blocks(&odd, 16).1, 3 * KIB + KIB / 4);
    assert_eq!(plain(&odd).1, 2 * KIB + KIB / 2);
}

#[test]
fn on_a_gpu_convolutions_take_room_for_copies() {
    let wide = [
        input("x", &IMAGE),
        field(5, &weight("w", &[16, 16, 3, 3])),
        node("Conv", &["x", "w"], &["y"]),
        output("y"),
    ];
    let live = |settings| arena(&shaped(&wide), settings).0.live;
    assert_eq!(live(OrtSettings { block: 1, ..OrtSettings::cpu() }), KIB / 4);
    assert_eq!(live(OrtSettings::cuda()), KIB / 4 + (KIB + 9 * KIB + KIB / 4));
    // Three channels are copied as eight, of the image and of the filter.
    let colours = [
        input("x", &[1, 3, 16, 16]),
        field(5, &weight("w", &[16, 3, 3, 3])),
        node("Conv", &["x", "w"], &["y"]),
        output("y"),
    ];
    let (written, image, filter) = (16 * 14 * 14 * 4u64, 8 * 16 * 16 * 4, 16 * 8 * 9 * 4);
    let copies = image + filter + written;
    assert_eq!(
        arena(&shaped(&colours), OrtSettings::cuda()).0.live,
        copies + written.next_multiple_of(256)
    );
}

#[test]
fn on_a_gpu_other_operators_write_over_their_input() {
    let graph = shaped(&[
        input("x", &IMAGE),
        node("Relu", &["x"], &["a"]),
        node("Softmax", &["a"], &["b"]),
        node("Sigmoid", &["b"], &["c"]),
        node("Mul", &["b", "c"], &["d"]),
        node("Transpose", &["d"], &["y"]),
        output("y"),
    ]);
    let mut lowered = Lowered::new(&graph);
    fuse::fuse(&mut lowered, &graph);
    let in_place = |lowered: &Lowered| -> Vec<String> {
        let steps = lowered.steps.iter().filter(|step| !step.in_place.is_empty());
        steps.map(|step| step.op.clone()).collect()
    };
    assert_eq!(in_place(&lowered), ["Relu", "Softmax"]);
    lowered.in_place_on_cuda();
    assert_eq!(in_place(&lowered), ["Relu", "QuickGelu"]);
}

#[test]
fn on_a_gpu_what_is_held_depends_on_the_order_of_weights() {
    let sizes = [1, 3, 900, 40, 7, 2500, 130, 60, 11, 420];
    let mut parts = vec![input("x", &[1, 4])];
    for (n, columns) in sizes.iter().enumerate() {
        let (weight_name, made) = (format!("w{n}"), format!("y{n}"));
        parts.push(field(5, &weight(&weight_name, &[4, columns * 256])));
        parts.push(node("MatMul", &["x", &weight_name], &[&made]));
        parts.push(output(&made));
    }
    let arenas = arena(&shaped(&parts), OrtSettings::cuda()).0;
    let (least, most) = arenas.reserved_between;
    assert!(least < most && least <= arenas.reserved && arenas.reserved <= most, "{arenas:?}");
    let again = arena(&shaped(&parts), OrtSettings::cuda()).0;
    assert_eq!(arenas, again, "the same answer each time");
}
