use plimsoll::{Bytes, WeightType};

use super::super::gguf::Writer;
use super::*;

fn llama3(folder: &Path) -> PathBuf {
    let shape = plimsoll::ModelShape::new(4096, 14336, 32, 128_256, 32)
        .with_kv_heads(8)
        .with_context(8192)
        .with_weights(WeightType::Q4KM);
    let path = folder.join("llama3.gguf");
    Writer::of_shape("llama", &shape).write(&path).expect("written");
    path
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn a_gguf_file_and_its_shape_agree() {
    let folder = folder();
    let request = Request { context: Some(8192), ..Request::default() };
    let terms = estimate(&llama3(folder.path()), &request).expect("read");
    let shape = plimsoll::ModelShape::new(4096, 14336, 32, 128_256, 32)
        .with_kv_heads(8)
        .with_context(8192)
        .with_weights(WeightType::Q4KM);
    let plain = shape.estimate().expect("sound");
    assert_eq!(Bytes(terms.total_bytes), plain.total_bytes);
    assert_eq!(terms.cache_by_layer.len(), 32);
    assert_eq!(terms.overhead.bytes, 0);
}

#[test]
fn layers_left_on_the_host_are_not_in_the_total() {
    let folder = folder();
    let path = llama3(folder.path());
    let at = |layers| {
        let request = Request { gpu_layers: Some(layers), ..Request::default() };
        estimate(&path, &request).expect("read")
    };
    let (none, half, all) = (at(0), at(16), at(33));
    assert_eq!((none.weights_bytes, none.kv_cache_bytes), (0, 0));
    assert_eq!(half.kv_cache_bytes * 2, all.kv_cache_bytes);
    assert!(half.weights_bytes < all.weights_bytes);
    let whole = estimate(&path, &Request::default()).expect("read");
    assert!(all.weights_bytes < whole.weights_bytes, "the embedding stays on the host");
}

#[test]
fn another_type_changes_weights_and_not_norms_alone() {
    let folder = folder();
    let path = llama3(folder.path());
    let request = Request { dtype: Some(ElementType::F16), ..Request::default() };
    let terms = estimate(&path, &request).expect("read");
    assert_eq!(terms.weights.len(), 1);
    let elements: u64 = terms.weights.iter().map(|part| part.elements).sum();
    assert_eq!((elements, terms.weights_bytes), (8_030_261_248, 2 * 8_030_261_248));
}

#[test]
fn overhead_says_where_it_came_from() {
    assert_eq!(Overhead::of(None, None).bytes, 0);
    let ort = Overhead::of(Some(Runner::Ort), Some(true));
    assert!(ort.recorded && ort.bytes > 0 && ort.source.contains("H200"), "{ort:?}");
    let none = Overhead::of(Some(Runner::TensorRt), Some(true));
    assert!(!none.recorded && none.bytes == 0 && none.source.contains("no record"), "{none:?}");
}

#[test]
fn what_is_no_model_is_refused_with_the_formats() {
    let folder = folder();
    for (name, text, word) in [
        ("a.txt", "hello", "safetensors"),
        ("a.engine", "x", "TensorRT"),
        ("a.bin", "", "empty"),
        ("a.gguf", "GGUF", "early end"),
        ("a.onnx", "x", "ONNX"),
        ("a.safetensors", "x", "first number"),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        let error = estimate(&path, &Request::default()).expect_err("refused").to_string();
        assert!(error.contains(word) && error.contains(name), "{error}");
    }
    let error = estimate(&folder.path().join("nowhere"), &Request::default());
    assert!(error.expect_err("missing").to_string().contains("nowhere"));
}
