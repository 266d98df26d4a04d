use std::io::Cursor;

use crate::{Bytes, ElementType, ModelShape, WeightType};
use proptest::prelude::*;

use super::*;

fn llama3() -> ModelShape {
    ModelShape::new(4096, 14336, 32, 128_256, 32).with_kv_heads(8).with_weights(WeightType::Q4KM)
}

/// Reads a header as if the data were behind it.
fn read(writer: &GgufWriter) -> Result<GgufModel, GgufError> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.gguf");
    writer.write(&path)?;
    open(&path)
}

fn number(n: i64) -> GgufValue {
    GgufValue::Number(n)
}

/// A model of four layers with these keys and one tensor.
fn small(architecture: &str, keys: &[(&str, GgufValue)]) -> GgufModel {
    let mut writer = GgufWriter::new(architecture);
    let usual = [("block_count", number(4)), ("embedding_length", number(64))];
    let unsaid = usual.iter().filter(|(key, _)| keys.iter().all(|(said, _)| said != key));
    for (key, value) in unsaid.chain(keys) {
        writer = writer.with(&format!("{architecture}.{key}"), value.clone());
    }
    read(&writer.tensor("token_embd.weight", ElementType::F16, &[64, 1000])).expect("read")
}

fn layers(model: &GgufModel, context: u64) -> Vec<u64> {
    let shape =
        model.shape.clone().expect("a shape").with_context(context).with_flash_attention(true);
    shape.cache_by_layer().into_iter().map(Bytes::get).collect()
}

#[test]
fn a_plain_model_comes_back_as_its_shape() {
    let model = read(&GgufWriter::of_shape("llama", &llama3())).expect("read");
    assert_eq!(model.architecture, "llama");
    let plain = llama3().estimate().expect("sound");
    assert_eq!(model.tensors.bytes(), plain.model_bytes.get());
    assert_eq!(model.tensors.by_type.keys().copied().collect::<Vec<_>>(), ["f32", "q4_k", "q6_k"]);
    let shape = model.shape.expect("a shape");
    let terms = shape.estimate_with(plain.weights).expect("sound");
    assert_eq!(terms, plain);
}

#[test]
fn a_model_of_seventy_gigabytes_is_told_from_one_that_broke_off() {
    let shape = ModelShape::new(8192, 28672, 80, 128_256, 64).with_kv_heads(8);
    let writer = GgufWriter::of_shape("llama", &shape.with_weights(WeightType::Q8_0))
        .with("tokenizer.ggml.tokens", GgufValue::Skipped(128_256));
    assert!(writer.file_bytes() > 70_000_000_000);
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("70b.gguf");
    writer.write(&path).expect("written");
    let model = open(&path).expect("read");
    assert_eq!(model.tensors.by_layer.len(), 80);
    // The same with the last byte missing is a download that broke off.
    let file = std::fs::OpenOptions::new().write(true).open(&path).expect("opened");
    file.set_len(writer.file_bytes() - 1).expect("cut");
    let error = open(&path).expect_err("truncated").to_string();
    assert!(error.contains("truncated") && error.contains("99 %"), "{error}");
}

#[test]
fn windows_follow_the_family_or_the_list_of_the_file() {
    let heads = [("attention.head_count", number(2)), ("attention.sliding_window", number(1024))];
    let full = 8192 * 128 * 2;
    let window = 1536 * 128 * 2;
    assert_eq!(layers(&small("gpt-oss", &heads), 8192), [window, full, window, full]);
    assert_eq!(layers(&small("smallthinker", &heads), 8192)[..2], [full, 4608 * 256]);
    assert_eq!(layers(&small("llama", &heads), 8192), [full; 4], "the engine does not use it");
    let list = GgufValue::Numbers(vec![0, 0, 1, 0]);
    let listed = [heads.as_slice(), &[("attention.sliding_window_pattern", list)]].concat();
    assert_eq!(layers(&small("anew", &listed), 8192), [full, full, window, full]);
}

#[test]
fn families_that_only_sometimes_have_windows() {
    let heads = ("attention.head_count", number(2));
    let window = |n| ("attention.sliding_window", number(n));
    let full = 16_384 * 128 * 2;
    let chunk = (8192 + 512) * 128 * 2;
    let llama4 = small("llama4", std::slice::from_ref(&heads));
    assert_eq!(layers(&llama4, 16_384), [chunk, chunk, chunk, full]);
    let scout = small("llama4", &[heads.clone(), window(0)]);
    assert_eq!(layers(&scout, 16_384), [full; 4], "it says that it has none");
    let exaone = small("exaone4", &[heads.clone(), window(4096)]);
    assert_eq!(layers(&exaone, 16_384), [full; 4], "only the one of 64 layers has them");
    let wide = small("exaone4", &[heads.clone(), ("block_count", number(64))]);
    assert_eq!(layers(&wide, 16_384)[2..4], [(4096 + 512) * 128 * 2, full]);
    let lfm2 = small("lfm2moe", &[heads.clone(), window(1024)]);
    assert_eq!(layers(&lfm2, 16_384), [full; 4], "the engine does not use it");
    let period = ("attention.sliding_window_pattern", number(2));
    let muse = small("muse-glimmer", &[heads, window(1024), period]);
    assert_eq!(layers(&muse, 16_384)[..2], [1536 * 128 * 2, full]);
}

#[test]
fn a_model_that_loops_keeps_a_cache_for_every_time() {
    let keys = [("attention.head_count", number(2)), ("num_loops", number(3))];
    assert_eq!(layers(&small("nanbeige", &keys), 256), [256 * 128 * 2; 12]);
    let writer = GgufWriter::new("nanbeige")
        .with("nanbeige.block_count", number(4000))
        .with("nanbeige.embedding_length", number(64))
        .with("nanbeige.num_loops", number(1 << 39));
    assert!(read(&writer).expect_err("too many").to_string().contains("num_loops"));
}

#[test]
fn only_listed_layers_have_an_index() {
    let compressed = [
        ("attention.head_count", number(4)),
        ("attention.head_count_kv", number(1)),
        ("attention.key_length", number(576)),
        ("attention.key_length_mla", number(192)),
        ("attention.indexer.key_length", number(128)),
    ];
    assert_eq!(layers(&small("deepseek32", &compressed), 256), [256 * 704 * 2; 4]);
    let types = ("attention.indexer.types", GgufValue::Numbers(vec![1, 1, 0, 0]));
    let listed = [compressed.as_slice(), &[types]].concat();
    let (with, without) = (256 * 704 * 2, 256 * 576 * 2);
    assert_eq!(layers(&small("glm-dsa", &listed), 256), [with, with, without, without]);
}

#[test]
fn heads_may_differ_by_layer_and_keys_from_values() {
    let kv_heads = GgufValue::Numbers(vec![2, 0, 1, 2]);
    let model = small(
        "deci",
        &[
            ("attention.head_count", number(4)),
            ("attention.head_count_kv", kv_heads),
            ("attention.key_length", number(192)),
            ("attention.value_length", number(128)),
        ],
    );
    assert_eq!(layers(&model, 100), [100 * 640 * 2, 0, 100 * 320 * 2, 100 * 640 * 2]);
}

#[test]
fn a_compressed_cache_has_no_values() {
    let model = small(
        "deepseek2",
        &[
            ("attention.head_count", number(128)),
            ("attention.head_count_kv", number(1)),
            ("attention.key_length", number(576)),
            ("attention.value_length", number(512)),
            ("attention.key_length_mla", number(192)),
            ("attention.value_length_mla", number(128)),
        ],
    );
    assert_eq!(layers(&model, 4096), [4096 * 576 * 2; 4]);
}

#[test]
fn hybrids_keep_states_where_they_have_no_heads() {
    let heads = |list: [i64; 4]| GgufValue::Numbers(list.to_vec());
    let lfm2 = small(
        "lfm2",
        &[
            ("attention.head_count", number(4)),
            ("attention.head_count_kv", heads([0, 0, 2, 0])),
            ("shortconv.l_cache", number(3)),
        ],
    );
    assert_eq!(layers(&lfm2, 1000), [64 * 2 * 4, 64 * 2 * 4, 1000 * 64 * 2, 64 * 2 * 4]);
    let ssm = [
        ("ssm.conv_kernel", number(4)),
        ("ssm.inner_size", number(128)),
        ("ssm.state_size", number(16)),
        ("ssm.group_count", number(2)),
        ("attention.head_count", number(4)),
    ];
    let state = (3 * (128 + 2 * 2 * 16) + 16 * 128) * 4;
    let next = small("qwen3next", &ssm);
    assert_eq!(layers(&next, 1000), [state, state, state, 1000 * 128 * 2]);
    assert_eq!(layers(&small("mamba2", &ssm), 1000), [state; 4]);
    let falcon = small("falcon-h1", &ssm);
    assert_eq!(layers(&falcon, 1000), [1000 * 128 * 2 + state; 4], "both at once");
    let jamba = [ssm.as_slice(), &[("attention.head_count_kv", heads([0, 4, 0, 0]))]].concat();
    assert_eq!(layers(&small("jamba", &jamba), 1000), [state, 1000 * 128 * 2, state, state]);
    let nemotron = [jamba.as_slice(), &[("feed_forward_length", heads([0, 0, 256, 256]))]].concat();
    assert_eq!(layers(&small("nemotron_h", &nemotron), 1000), [state, 1000 * 128 * 2, 0, 0]);
    let rwkv = small("rwkv7", &[("wkv.head_size", number(16)), ("token_shift_count", number(2))]);
    assert_eq!(layers(&rwkv, 1000), [64 * 18 * 4; 4]);
}

#[test]
fn layers_may_share_a_cache_and_encoders_have_none() {
    let heads = [("attention.head_count", number(2)), ("attention.shared_kv_layers", number(3))];
    assert_eq!(layers(&small("gemma4", &heads), 100), [100 * 128 * 2, 0, 0, 0]);
    assert_eq!(layers(&small("bert", &heads), 100), [0; 4]);
}

#[test]
fn all_parts_of_a_split_model_are_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let part = |n: i64| {
        let writer =
            if n == 0 { GgufWriter::of_shape("llama", &llama3()) } else { GgufWriter::default() };
        let tensor = format!("blk.{}.extra", 32 + n);
        writer.with("split.count", number(2)).with("split.no", number(n)).tensor(
            &tensor,
            ElementType::F32,
            &[256],
        )
    };
    let first = folder.path().join("m-00001-of-00002.gguf");
    part(0).write(&first).expect("written");
    let error = open(&first).expect_err("one is missing").to_string();
    assert!(error.contains("m-00002-of-00002.gguf"), "{error}");
    let second = folder.path().join("m-00002-of-00002.gguf");
    part(1).write(&second).expect("written");
    let model = open(&first).expect("read");
    assert_eq!(model.tensors.by_layer[33], 1024);
    let error = open(&second).expect_err("not the first").to_string();
    assert!(error.contains("m-00001-of-00002.gguf"), "{error}");
}

#[test]
fn hostile_headers_are_refused() {
    let refused =
        |bytes: &[u8]| GgufHeader::read(Cursor::new(bytes)).expect_err("refused").to_string();
    assert!(refused(b"").contains("early end"));
    assert!(refused(b"GGML....").contains("magic"));
    let mut bytes = GgufWriter::new("llama").header();
    bytes[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(refused(&bytes).contains("more keys"));
    bytes[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    assert!(refused(&bytes).contains("more tensors"));
    bytes[4..8].copy_from_slice(&3u32.to_be_bytes());
    assert!(refused(&bytes).contains("big-endian"));
    let f32s = ElementType::F32;
    let overlap =
        GgufWriter::new("llama").tensor("a", f32s, &[64]).tensor_at("b", f32s, &[64], 128);
    let overlap = [overlap.header(), vec![0; 1024]].concat();
    assert!(refused(&overlap).contains("overlap"));
    let past = GgufWriter::new("llama").tensor_at("a", f32s, &[8], 1 << 60);
    assert!(refused(&past.header()).contains("truncated"));
    let huge = GgufWriter::new("llama").tensor("a", f32s, &[u64::MAX, u64::MAX]);
    assert!(refused(&huge.header()).contains("beyond counting"));
    let row = GgufWriter::new("llama").tensor("a", ElementType::Q4K, &[100, 3]);
    assert!(refused(&row.header()).contains("blocks"));
    let twice = GgufWriter::new("llama").with("general.architecture", number(1));
    assert!(refused(&twice.header()).contains("before"));
}

#[test]
fn numbers_that_cannot_be_are_named() {
    for (keys, word) in [
        (vec![("block_count", number(1 << 40))], "block_count"),
        (vec![("block_count", number(-1))], "block_count"),
        (vec![("block_count", number(4))], "embedding_length"),
        (
            vec![
                ("block_count", number(4)),
                ("embedding_length", number(8)),
                ("attention.head_count", GgufValue::Numbers(vec![1])),
            ],
            "head_count",
        ),
    ] {
        let mut writer = GgufWriter::new("llama");
        for (key, value) in keys {
            writer = writer.with(&format!("llama.{key}"), value);
        }
        let error = read(&writer).expect_err("refused").to_string();
        assert!(error.contains(word), "{error}");
    }
}

#[test]
fn other_models_in_the_format_have_weights_alone() {
    let writer = GgufWriter::new("clip").tensor("v.patch", ElementType::F16, &[64, 64]);
    let model = read(&writer).expect("read");
    assert_eq!((model.tensors.bytes(), model.shape), (8192, None));
    assert!(model.notes[0].contains("only weights"), "{:?}", model.notes);
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let bytes = [b"GGUF\x03\0\0\0".as_slice(), &bytes].concat();
        let _ = GgufHeader::read(Cursor::new(bytes)).map(|header| GgufModel::new(&header));
    }

    #[test]
    fn a_damaged_header_is_read_or_refused(at in 0usize..2000, byte in any::<u8>()) {
        let shape = ModelShape::new(256, 256, 2, 100, 4);
        let writer = GgufWriter::of_shape("gemma3", &shape).with("gemma3.attention.sliding_window", number(64));
        let mut bytes = writer.header();
        let at = at % bytes.len();
        bytes[at] = byte;
        bytes.resize(bytes.len() + 1_000_000, 0);
        let _ = GgufHeader::read(Cursor::new(bytes)).map(|header| GgufModel::new(&header));
    }
}
