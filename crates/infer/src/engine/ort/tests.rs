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
    let options = EngineOptions { input_size: Some((320, 416)), ..EngineOptions::default() };
    assert_eq!(probe_shape(&model(&[0, 3, 0, 0], &[1]), &options), [1, 3, 320, 416]);
    assert_eq!(probe_shape(&model(&[], &[1]), &options), [1, 3, 320, 416]);
    assert_eq!(probe_shape(&model(&[0, 7], &[1]), &options), [1, 7]);
}

/// What runs on a GPU, on the CPU's memory: the copies and the binding are the same.
#[test]
fn bound_buffers_give_the_same_answers() {
    let runtime = match Runtime::get(None) {
        Ok(runtime) => runtime,
        Err(error) => {
            let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name == NAME), "{error}");
            println!("skipped: ort: {error}");
            return;
        }
    };
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/fixtures/tiny.onnx");
    let model = plimsoll_models::ModelSource::path(path).read().expect("read");
    let options = EngineOptions { device: EngineDevice::Cpu, ..EngineOptions::default() };
    let mut engine = Ort::try_plan(ProviderPlan::Cpu, &runtime, &model, &options).expect("opened");
    let mut input = Tensor::zeros(&model.info.input_shape);
    for round in 0..3 {
        for (index, value) in input.data.iter_mut().enumerate() {
            *value = ((index + round) % 17) as f32 / 8.0 - 1.0;
        }
        let want = engine.run(&input).expect("run").to_vec();
        let place = (SessionMemory::Host, ProviderPlan::Cpu.memory().expect("memory"));
        let outputs = fixed_outputs(&model.info).expect("fixed");
        let mut bound =
            Bound::new(&engine.session, place, &model.info.input_shape, outputs).expect("bound");
        for _ in 0..2 {
            bound.input().copy_from_slice(&input.data);
            assert_eq!(bound.run(&mut engine.session).expect("run"), want);
        }
    }
}
