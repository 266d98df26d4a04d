use super::*;

const MIB: u64 = 1 << 20;

#[test]
fn what_is_saved_lives_until_its_node_ran() {
    let mut tape = EagerTape { records: true, ..EagerTape::default() };
    let x = tape.tensor(4 * MIB, 1);
    let x = tape.leaf(x);
    let y = tape.tensor(4 * MIB, 1);
    let node = EagerNode {
        inputs: vec![(0, Gradient::New(4 * MIB))],
        saved: vec![x.memory.clone()],
        weights: vec![WeightGradient { weight: 0, bytes: MIB, narrow: 0 }],
        ..EagerNode::default()
    };
    let y = tape.record(y, node);
    drop(x);
    assert_eq!(tape.figures().live, 8 * MIB, "x is saved");
    tape.backward(&y);
    // x, y, y's gradient, x's gradient, the weight's.
    assert_eq!(tape.figures().live, 17 * MIB);
    assert!(tape.has_gradient(0));
}

#[test]
fn a_second_gradient_is_added_in_place_unless_it_came_through_a_view() {
    for (view, live) in [(false, 3), (true, 4)] {
        let mut tape = EagerTape { records: true, ..EagerTape::default() };
        let x = tape.tensor(MIB, 1);
        let x = tape.leaf(x);
        let kind = if view { Gradient::View(MIB) } else { Gradient::New(MIB) };
        for _ in 0..2 {
            let y = tape.tensor(1, 1);
            let inputs = vec![(0, kind)];
            tape.record(y, EagerNode { inputs, ..EagerNode::default() });
        }
        let z = tape.tensor(1, 1);
        let both = vec![(1, Gradient::New(1)), (2, Gradient::New(1))];
        let z = tape.record(z, EagerNode { inputs: both, ..EagerNode::default() });
        drop(x);
        tape.backward(&z);
        // The first gradient, the second, and where they are seen through views their sum.
        assert_eq!(tape.figures().live / MIB, live - 1, "{view}");
    }
}
