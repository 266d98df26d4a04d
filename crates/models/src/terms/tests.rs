use std::fs::File;
use std::io::{Seek, SeekFrom};

use crate::{Bytes, WeightType};

use super::super::gguf::{self, GgufWriter};
use super::super::safetensors;
use super::*;

fn llama3(folder: &Path) -> PathBuf {
    let shape = crate::estimate::ModelShape::new(4096, 14336, 32, 128_256, 32)
        .with_kv_heads(8)
        .with_context(8192)
        .with_weights(WeightType::Q4KM);
    let path = folder.join("llama3.gguf");
    GgufWriter::of_shape("llama", &shape).write(&path).expect("written");
    path
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn a_gguf_file_and_its_shape_agree() {
    let folder = folder();
    let request = EstimateRequest { context: Some(8192), ..EstimateRequest::default() };
    let terms = estimate(&llama3(folder.path()), &request).expect("read");
    let shape = crate::estimate::ModelShape::new(4096, 14336, 32, 128_256, 32)
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
        let request = EstimateRequest { gpu_layers: Some(layers), ..EstimateRequest::default() };
        estimate(&path, &request).expect("read")
    };
    let (none, half, all) = (at(0), at(16), at(33));
    assert_eq!((none.weights_bytes, none.kv_cache_bytes), (0, 0));
    assert_eq!(half.kv_cache_bytes * 2, all.kv_cache_bytes);
    assert!(half.weights_bytes < all.weights_bytes);
    let whole = estimate(&path, &EstimateRequest::default()).expect("read");
    assert!(all.weights_bytes < whole.weights_bytes, "the embedding stays on the host");
}

#[test]
fn a_shared_matrix_is_on_both_sides() {
    let folder = folder();
    let path = folder.path().join("tied.gguf");
    let shape = crate::estimate::ModelShape::new(256, 512, 4, 1000, 4).with_tied_embeddings(true);
    GgufWriter::of_shape("llama", &shape).write(&path).expect("written");
    let at = |gpu_layers| {
        let request = EstimateRequest { gpu_layers, ..EstimateRequest::default() };
        estimate(&path, &request).expect("read")
    };
    let (whole, device) = (at(None), at(Some(5)));
    assert_eq!(device.weights_bytes, whole.weights_bytes, "the device needs all of it");
    assert_eq!(device.host_bytes, whole.host_bytes + 256 * 1000 * 2, "and the host a copy");
}

#[test]
fn the_cache_has_room_for_whole_steps_and_two_types() {
    let folder = folder();
    let path = llama3(folder.path());
    let cache = |context, kinds: &str| {
        let kv_dtype = Some(kinds.parse().expect("types"));
        let request =
            EstimateRequest { context: Some(context), kv_dtype, ..EstimateRequest::default() };
        estimate(&path, &request).expect("read")
    };
    let token = 32 * 1024;
    assert_eq!(cache(1000, "f16").kv_cache_bytes, 1024 * token * 4);
    assert!(cache(1000, "f16").notes.iter().any(|note| note.contains("1024 tokens")));
    assert_eq!(cache(1024, "f32").kv_cache_bytes, 1024 * token * 8);
    let mixed = cache(1024, "q8_0,q4_0");
    assert_eq!(mixed.kv_cache_bytes, 1024 * token / 32 * (34 + 18));
    assert_eq!(mixed.kv_dtype.as_deref(), Some("q8_0,q4_0"));
}

/// Counts what is read of it.
struct Watched<F> {
    inner: F,
    read: u64,
}

impl<F: Read> Read for &mut Watched<F> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        let count = self.inner.read(into)?;
        self.read += count as u64;
        Ok(count)
    }
}

impl<F: Seek> Seek for &mut Watched<F> {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        self.inner.seek(to)
    }
}

/// The header of a safetensors file of this many tensors of a GiB each.
fn gibibytes(count: u64) -> Vec<u8> {
    let entry = |n: u64| {
        let (from, to) = (n << 30, (n + 1) << 30);
        format!(r#""t{n}":{{"dtype":"U8","shape":[1073741824],"data_offsets":[{from},{to}]}}"#)
    };
    let header = format!("{{{}}}", (0..count).map(entry).collect::<Vec<_>>().join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()
}

#[test]
fn of_seventy_gigabytes_only_the_header_is_read() {
    let shape = crate::estimate::ModelShape::new(8192, 28672, 80, 128_256, 64).with_kv_heads(8);
    let writer = GgufWriter::of_shape("llama", &shape.with_weights(WeightType::Q8_0));
    let folder = folder();
    let path = folder.path().join("70b.gguf");
    writer.write(&path).expect("a file with a hole");
    let mut file = Watched { inner: File::open(&path).expect("opened"), read: 0 };
    let header = gguf::GgufHeader::read(&mut file).expect("read");
    assert!(header.file_bytes > 70_000_000_000);
    assert!(file.read <= writer.header().len() as u64 + (1 << 16), "{} bytes read", file.read);

    let path = folder.path().join("70.safetensors");
    let header = gibibytes(70);
    std::fs::write(&path, &header).expect("written");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.set_len(header.len() as u64 + (70 << 30)).expect("a hole");
    let mut file = Watched { inner: File::open(&path).expect("opened"), read: 0 };
    let tensors = safetensors::SafetensorsTensors::read(&mut file).expect("read");
    assert_eq!(tensors.bytes(), 70 << 30);
    assert!(file.read <= header.len() as u64 + (1 << 16), "{} bytes read", file.read);
}

#[test]
fn a_download_that_broke_off_is_told_in_every_format() {
    let folder = folder();
    let small = crate::estimate::ModelShape::new(64, 128, 2, 100, 2);
    let gguf = GgufWriter::of_shape("llama", &small);
    let path = folder.path().join("whole.gguf");
    gguf.write(&path).expect("written");
    let gguf = std::fs::read(&path).expect("read");
    let header = r#"{"a":{"dtype":"F32","shape":[256],"data_offsets":[0,1024]}}"#;
    let tensors =
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 1024]].concat();
    for (name, bytes) in [
        ("m.gguf", gguf),
        ("m.safetensors", tensors),
        ("m.onnx", include_bytes!("../../tests/fixtures/tiny.onnx").to_vec()),
        ("m.pt", include_bytes!("../../tests/fixtures/small11.pt").to_vec()),
    ] {
        let path = folder.path().join(name);
        let request = EstimateRequest {
            image: (name == "m.pt").then_some((64, 64)),
            ..EstimateRequest::default()
        };
        std::fs::write(&path, &bytes).expect("written");
        estimate(&path, &request).unwrap_or_else(|error| panic!("whole: {error}"));
        for cut in [bytes.len() - 1, bytes.len() / 2, bytes.len() / 10] {
            std::fs::write(&path, &bytes[..cut]).expect("written");
            let error = estimate(&path, &request).expect_err("cut").to_string();
            let told = ["truncated", "cut short", "early end"].iter().any(|w| error.contains(w));
            assert!(told && error.contains(name), "{cut}: {error}");
        }
    }
}

#[test]
fn another_type_changes_weights_and_not_norms_alone() {
    let folder = folder();
    let path = llama3(folder.path());
    let request = EstimateRequest { dtype: Some(ElementType::F16), ..EstimateRequest::default() };
    let terms = estimate(&path, &request).expect("read");
    assert_eq!(terms.weights.len(), 1);
    let elements: u64 = terms.weights.iter().map(|part| part.elements).sum();
    assert_eq!((elements, terms.weights_bytes), (8_030_261_248, 2 * 8_030_261_248));
}

#[test]
fn overhead_says_where_it_came_from() {
    assert_eq!(EngineOverhead::of(None, None).bytes, 0);
    let ort = EngineOverhead::of(Some(Runner::Ort), Some(true));
    assert!(ort.recorded && ort.bytes > 0 && ort.source.contains("H200"), "{ort:?}");
    let none = EngineOverhead::of(Some(Runner::TensorRt), Some(true));
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
        let error = estimate(&path, &EstimateRequest::default()).expect_err("refused").to_string();
        assert!(error.contains(word) && error.contains(name), "{error}");
    }
    let error = estimate(&folder.path().join("nowhere"), &EstimateRequest::default());
    assert!(error.expect_err("missing").to_string().contains("nowhere"));
}

#[test]
fn a_checkpoints_outline_takes_what_the_whole_of_it_does() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/small11.pt");
    let request = EstimateRequest {
        runner: Some(Runner::Ort),
        on_gpu: Some(false),
        ..EstimateRequest::default()
    };
    let outline = estimate(&file, &request).expect("read");
    let options = super::super::GraphOptions::sized((640, 640));
    let bytes = std::fs::read(&file).expect("there");
    let whole = super::super::pt::to_onnx(&bytes, &options).expect("a graph");
    let whole = estimate_onnx("whole", &whole, &request).expect("read");
    assert_eq!(outline.weights, whole.weights);
    assert_eq!((outline.peak, outline.arena), (whole.peak, whole.arena));
    assert_eq!(outline.total_bytes, whole.total_bytes);
}

/// A decoder as a header without data and its configuration: hidden, inner, layers, vocabulary,
/// heads, and those of keys and values.
fn decoder(folder: &Path, shape: [u64; 6], tied: bool) {
    let [hidden, inner, layers, vocab, heads, kv] = shape;
    let narrow = hidden / heads * kv;
    let mut tensors = vec![("embed".to_string(), vocab, hidden), ("norm".to_string(), 1, hidden)];
    if !tied {
        tensors.push(("head".to_string(), vocab, hidden));
    }
    for n in 0..layers {
        for (name, rows, columns) in [
            ("q", hidden, hidden),
            ("k", narrow, hidden),
            ("v", narrow, hidden),
            ("o", hidden, hidden),
            ("gate", inner, hidden),
            ("up", inner, hidden),
            ("down", hidden, inner),
            ("n1", 1, hidden),
            ("n2", 1, hidden),
        ] {
            tensors.push((format!("{n}.{name}"), rows, columns));
        }
    }
    let mut at = 0;
    let entries = tensors.iter().map(|(name, rows, columns)| {
        let (from, to) = (at, at + 2 * rows * columns);
        at = to;
        format!(
            r#""{name}":{{"dtype":"F16","shape":[{rows},{columns}],"data_offsets":[{from},{to}]}}"#
        )
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    let path = folder.join("model.safetensors");
    std::fs::write(&path, &bytes).expect("written");
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.set_len(bytes.len() as u64 + at).expect("a hole");
    let config = serde_json::json!({
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "vocab_size": vocab, "num_attention_heads": heads,
        "num_key_value_heads": kv, "tie_word_embeddings": tied, "max_position_embeddings": 8192,
    });
    std::fs::write(folder.join("config.json"), config.to_string()).expect("written");
}

/// What an H200 held for four decoders in PyTorch (docs/results), in MiB.
#[test]
fn decoders_in_pytorch_take_what_is_on_record() {
    for (shape, tied, tokens, measured) in [
        ([2048, 5632, 22, 32_000, 32, 4], false, 2048, 3115.0),
        ([4096, 14336, 32, 32_000, 32, 8], false, 4096, 15_807.0),
        ([4096, 11008, 32, 32_000, 32, 32], false, 4096, 16_793.0),
        ([2048, 8192, 24, 49_152, 32, 32], true, 8192, 6280.0),
    ] {
        let folder = folder();
        decoder(folder.path(), shape, tied);
        let request = |on_gpu| EstimateRequest {
            runner: Some(Runner::PyTorch),
            on_gpu: Some(on_gpu),
            context: Some(tokens),
            ..EstimateRequest::default()
        };
        let terms = estimate(folder.path(), &request(true)).expect("read");
        let off = terms.total_bytes as f64 / (measured * f64::from(1 << 20)) - 1.0;
        assert!(off.abs() < 0.05, "{shape:?}: {:+.1} %", 100.0 * off);
        let held = terms.held.expect("by its allocator");
        let parts = terms.weights_bytes + terms.kv_cache_bytes + terms.activation_bytes;
        assert_eq!(parts, held.reserved);
        let host = estimate(folder.path(), &request(false)).expect("read");
        assert_eq!((host.held, host.workspace_bytes), (None, 0));
        assert_eq!(host.activation_bytes, held.live);
    }
}

/// Whether Transformers stores scores is known by family. Where versions differ, or the family is new, the
/// upper end has them and the lower end has not.
#[test]
fn the_upper_end_has_scores_where_they_may_be_stored() {
    let folder = folder();
    decoder(folder.path(), [4096, 14336, 8, 32_000, 32, 8], false);
    let path = folder.path().join("config.json");
    let llama = std::fs::read_to_string(&path).expect("there");
    let at = |family: &str, on_gpu, train: Option<TrainingRequest>| {
        let config = llama.replace("\"llama\"", &format!("\"{family}\""));
        std::fs::write(&path, config).expect("written");
        let request = EstimateRequest {
            runner: Some(Runner::PyTorch),
            on_gpu,
            context: Some(4096),
            train,
            ..EstimateRequest::default()
        };
        estimate(folder.path(), &request).expect("read")
    };
    let reach = |terms: &Terms| terms.range.high_bytes as f64 / terms.total_bytes as f64;
    let known = at("llama", Some(true), None);
    assert!(reach(&known) < 1.02 && known.stored_scores.is_none());
    // Their own layers differ from Llama's, but no scores are in question.
    assert!(reach(&at("seed_oss", Some(true), None)) < 1.26);
    for (on_gpu, train) in
        [(None, None), (Some(true), None), (Some(true), Some(TrainingRequest::default()))]
    {
        let new = at("made_up_yesterday", on_gpu, train);
        let stored = at("xglm", on_gpu, train);
        assert!(new.total_bytes < stored.total_bytes, "{on_gpu:?}");
        assert_eq!(new.range.high_bytes, stored.range.high_bytes, "{on_gpu:?}");
        assert!(new.range.low_bytes < new.total_bytes && !new.range.checked);
        assert!(new.range.basis.contains("not known"), "{}", new.range.basis);
    }
    let varies = at("gemma2", Some(true), None);
    assert!(varies.range.checked && varies.range.basis.contains("5.23"));
    assert!(
        reach(&varies) > 1.2 && varies.range.low_bytes as f64 > 0.98 * varies.total_bytes as f64
    );
}

/// A detector's training grows with its batch and its precision, and says that it was not checked.
#[test]
fn a_detector_is_trained() {
    let fixture = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    for name in ["../../docs/examples/small8.pt", "tests/fixtures/small11.pt"] {
        let of = |batch, precision| {
            let train = TrainingRequest { precision, ..TrainingRequest::default() };
            let request = EstimateRequest {
                batch,
                runner: Some(Runner::PyTorch),
                on_gpu: Some(true),
                train: Some(train),
                ..EstimateRequest::default()
            };
            estimate(&fixture(name), &request).expect("a detector")
        };
        let (one, four) = (of(1, TrainingPrecision::Amp), of(4, TrainingPrecision::Amp));
        // A graph with an open batch computes what another has as constants.
        let off = four.activation_bytes as f64 / (4.0 * one.activation_bytes as f64) - 1.0;
        assert!(off.abs() < 0.01, "{name}: {off}");
        // The network's results are half as wide; what the loss makes is not.
        let wide = of(1, TrainingPrecision::Fp32).activation_bytes;
        assert!((wide / 2 + 1..wide).contains(&one.activation_bytes), "{name}");
        let training = one.training.expect("trained");
        assert_eq!(training.optimizer_bytes, 2 * training.gradient_bytes);
        assert_eq!(one.weights_bytes, 2 * training.gradient_bytes, "weights and their average");
        assert!(!one.range.checked && one.range.basis.contains("detector"));
    }
    let request =
        EstimateRequest { train: Some(TrainingRequest::default()), ..EstimateRequest::default() };
    let refused =
        estimate(&fixture("tests/fixtures/tiny.onnx"), &request).expect_err("no graph is trained");
    assert!(refused.to_string().contains("training is estimated"), "{refused}");
}

#[test]
fn a_graph_is_held_by_who_runs_it() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/small11.pt");
    let of = |runner, on_gpu| {
        let request =
            EstimateRequest { runner, on_gpu: Some(on_gpu), ..EstimateRequest::default() };
        estimate(&file, &request).expect("read")
    };
    let plain = of(None, false);
    let (pool, torch) = (of(None, true), of(Some(Runner::PyTorch), true));
    assert_eq!((plain.workspace_bytes, plain.held.is_none()), (0, true));
    assert_eq!(pool.total_bytes % (2 << 20), 0, "whole pages");
    assert_eq!(pool.activation_bytes - pool.workspace_bytes, plain.activation_bytes);
    let held = torch.held.expect("by its allocator");
    assert_eq!(torch.activation_bytes, held.reserved - torch.weights_bytes);
    assert!(held.copies > 0 && held.allocated > held.live + held.copies, "{held:?}");
    assert_eq!(torch.total_bytes, held.reserved + torch.overhead.bytes);
    assert_eq!(of(Some(Runner::PyTorch), false).activation_bytes, plain.activation_bytes);
    let products = EngineOverhead::of(Some(Runner::PyTorch), Some(true)).bytes;
    assert_eq!(products - torch.overhead.bytes, if held.products > 0 { 0 } else { 64 << 20 });
}

/// What is not modelled is refused, not guessed.
#[test]
fn training_of_recurrent_layers_names_the_other_way() {
    let folder = folder();
    let config = r#"{"model_type":"mamba","hidden_size":64,"num_hidden_layers":2,"state_size":16,
        "vocab_size":100}"#;
    std::fs::write(folder.path().join("config.json"), config).expect("written");
    let header = gibibytes(0);
    std::fs::write(folder.path().join("model.safetensors"), header).expect("written");
    let request = EstimateRequest {
        runner: Some(Runner::PyTorch),
        train: Some(TrainingRequest::default()),
        ..EstimateRequest::default()
    };
    let error = estimate(folder.path(), &request).expect_err("refused");
    assert!(error.to_string().contains("--exact"), "{error}");
}

#[test]
fn recurrent_layers_that_were_never_compared_name_the_other_way() {
    let folder = folder();
    let header = gibibytes(0);
    std::fs::write(folder.path().join("model.safetensors"), header).expect("written");
    let request = EstimateRequest { runner: Some(Runner::PyTorch), ..EstimateRequest::default() };
    for (kind, more, is_followed) in [
        ("mamba", r#","state_size":16"#, true),
        ("mamba2", r#","state_size":16"#, false),
        // Each layer has attention and a state; states that the configuration does not tell.
        ("falcon_h1", r#","mamba_d_state":16"#, false),
        ("recurrent_gemma", "", false),
        ("rwkv", "", false),
        ("llama", "", true),
    ] {
        let config = format!(
            r#"{{"model_type":"{kind}","hidden_size":64,"num_hidden_layers":2,"vocab_size":100,
            "num_attention_heads":2,"intermediate_size":64{more}}}"#
        );
        std::fs::write(folder.path().join("config.json"), config).expect("written");
        match estimate(folder.path(), &request) {
            Ok(_) => assert!(is_followed, "{kind}"),
            Err(error) => assert!(!is_followed && error.to_string().contains("--exact"), "{error}"),
        }
    }
}
