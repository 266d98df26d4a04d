//! tests that need the library are in `tests/engines.rs`; here are those of the parts.

use super::*;

fn model(input: &[usize], output: &[usize]) -> ModelInfo {
    ModelInfo {
        input_shape: input.to_vec(),
        outputs: vec![("out".into(), output.to_vec())],
        ..ModelInfo::default()
    }
}

#[test]
fn buffers_are_made_only_for_fixed_shapes() {
    let made = fixed_outputs(&model(&[1, 3, 8, 8], &[1, 84, 5])).expect("fixed");
    assert_eq!(made[0].data.len(), 420);
    assert!(fixed_outputs(&model(&[1, 3, 0, 0], &[1, 84, 5])).is_none());
    assert!(fixed_outputs(&model(&[1, 3, 8, 8], &[1, 0, 6])).is_none());
    assert!(fixed_outputs(&model(&[1, 3, 8, 8], &[usize::MAX, 2])).is_none());
}

#[test]
fn what_is_not_fixed_is_probed_with_one_image_of_the_size_to_come() {
    let options = EngineOptions { input_size: (320, 416), ..EngineOptions::default() };
    assert_eq!(probe_shape(&model(&[0, 3, 0, 0], &[1]), &options), [1, 3, 320, 416]);
    assert_eq!(probe_shape(&model(&[], &[1]), &options), [1, 3, 320, 416]);
    assert_eq!(probe_shape(&model(&[0, 7], &[1]), &options), [1, 7]);
}
