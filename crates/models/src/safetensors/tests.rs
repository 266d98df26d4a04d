use std::fs::File;
use std::io::{Cursor, Write};
use std::time::Instant;

use proptest::prelude::*;

use super::*;

/// A file with this header, and this many bytes of data that are a hole.
fn write(path: &Path, header: &str, data: u64) {
    let mut file = File::create(path).expect("made");
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("written");
    file.write_all(header.as_bytes()).expect("written");
    file.set_len(8 + header.len() as u64 + data).expect("a hole");
}

fn bytes(header: &str, data: usize) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; data]].concat()
}

fn refused(bytes: &[u8]) -> String {
    SafetensorsTensors::read(Cursor::new(bytes)).expect_err("refused").to_string()
}

const TWO: &str = r#"{"__metadata__":{"format":"pt"},
    "a":{"dtype":"BF16","shape":[2,3],"data_offsets":[0,12]},
    "b":{"dtype":"F32","shape":[],"data_offsets":[12,16]}}"#;

#[test]
fn weights_are_summed_by_type() {
    let tensors = SafetensorsTensors::read(Cursor::new(bytes(TWO, 16))).expect("read");
    assert_eq!((tensors.count, tensors.bytes(), tensors.largest_bytes), (2, 16, 12));
    assert_eq!(tensors.by_type["bf16"], (12, 6));
}

#[test]
fn a_truncated_file_is_told_from_a_whole_one() {
    assert!(refused(&bytes(TWO, 15)).contains("truncated"));
    assert!(refused(&bytes(TWO, 16)[..20]).contains("truncated"));
    assert!(refused(&bytes(TWO, 17)).contains("behind its last tensor"));
}

#[test]
fn hostile_headers_are_refused() {
    let entry = |text: &str| refused(&bytes(&format!("{{\"a\":{text}}}"), 16));
    assert!(refused(b"").contains("first number"));
    assert!(refused(&u64::MAX.to_le_bytes()).contains("at most"));
    assert!(
        entry(r#"{"dtype":"F32","shape":[4],"data_offsets":[0,12]}"#).contains("12 bytes for 4")
    );
    assert!(entry(r#"{"dtype":"F32","shape":[4],"data_offsets":[16,0]}"#).contains("before"));
    let huge = r#"{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,16]}"#;
    assert!(entry(huge).contains("beyond counting"));
    assert!(entry(r#"{"dtype":"Q9","shape":[4],"data_offsets":[0,16]}"#).contains("Q9"));
    let overlap = r#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]},
        "b":{"dtype":"U8","shape":[8],"data_offsets":[4,12]}}"#;
    assert!(refused(&bytes(overlap, 12)).contains("overlap"));
    assert!(refused(&bytes(&overlap.replace("[4,12]", "[9,17]"), 17)).contains("hole"));
    let twice = overlap.replace("\"b\"", "\"a\"").replace("[4,12]", "[8,16]");
    assert!(refused(&bytes(&twice, 16)).contains("two tensors named a"));
    let half = r#"{"dtype":"F4","shape":[3],"data_offsets":[0,2]}"#;
    assert!(entry(half).contains("2 bytes for 3"));
    let deep = format!("{{\"__metadata__\":{}{}}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(refused(&bytes(&deep, 0)).contains("invalid type"));
}

#[test]
fn shards_are_found_by_their_index_and_the_index_by_a_shard() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    let shard = r#"{"w":{"dtype":"BF16","shape":[1000000000,10],"data_offsets":[0,20000000000]}}"#;
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    write(&at(names[0]), shard, 20_000_000_000);
    let error = open(&at(names[0])).expect_err("no index").to_string();
    assert!(error.contains("model.safetensors.index.json"), "{error}");
    let index = format!(r#"{{"weight_map":{{"a":"{}","b":"{}"}}}}"#, names[0], names[1]);
    fs::write(at("model.safetensors.index.json"), index).expect("written");
    let error = open(folder.path()).expect_err("a shard is missing").to_string();
    assert!(error.contains(names[1]), "{error}");
    write(&at(names[1]), shard, 20_000_000_000);
    let start = Instant::now();
    for path in [folder.path().to_path_buf(), at(names[1]), at("model.safetensors.index.json")] {
        let (tensors, config) = open(&path).expect("read");
        assert_eq!((tensors.bytes(), tensors.files), (40_000_000_000, 2));
        assert_eq!(config, None);
    }
    // To read 120 GB takes longer on any machine.
    assert!(start.elapsed().as_secs() < 5, "{:?}", start.elapsed());
    fs::write(at("model.safetensors.index.json"), r#"{"weight_map":{"a":"../../etc/passwd"}}"#)
        .expect("written");
    assert!(open(folder.path()).expect_err("elsewhere").to_string().contains("outside"));
}

fn caches(text: &str) -> Vec<LayerBytes> {
    let shape = HfConfig::parse(text).expect("read").shape.expect("a shape");
    let shape = shape.with_context(8192).with_flash_attention(true);
    shape.cache_by_layer().into_iter().map(plimsoll_machine::Bytes::get).collect()
}

type LayerBytes = u64;

#[test]
fn a_config_says_what_each_layer_keeps() {
    let plain = r#"{"model_type":"llama","num_hidden_layers":2,"hidden_size":64,"vocab_size":10,
        "num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":128,
        "max_position_embeddings":4096}"#;
    assert_eq!(caches(plain), [8192 * 64 * 2; 2]);
    assert_eq!(HfConfig::parse(plain).expect("read").trained_context, Some(4096));
    let with =
        |more: &str| plain.replace("\"vocab_size\":10", &format!("\"vocab_size\":10,{more}"));
    let window = 1536 * 64 * 2;
    let typed =
        with(r#""sliding_window":1024,"layer_types":["sliding_attention","full_attention"]"#);
    assert_eq!(caches(&typed), [window, 8192 * 64 * 2]);
    assert_eq!(caches(&with(r#""sliding_window":1024"#)), [window; 2]);
    let off = with(r#""sliding_window":1024,"use_sliding_window":false"#);
    assert_eq!(caches(&off), [8192 * 64 * 2; 2]);
    assert_eq!(caches(&with(r#""kv_lora_rank":512,"qk_rope_head_dim":64"#)), [8192 * 576 * 2; 2]);
    let heads = plain.replace("\"num_key_value_heads\":2,", "");
    let shared = heads.replace("\"vocab_size\"", "\"multi_query\":true,\"vocab_size\"");
    assert_eq!(
        (caches(&heads), caches(&shared)),
        (vec![8192 * 128 * 2; 2], vec![8192 * 32 * 2; 2])
    );
    let newer =
        shared.replace("\"vocab_size\"", "\"new_decoder_architecture\":true,\"vocab_size\"");
    assert_eq!(caches(&newer), caches(&heads));
    let conv = with(r#""conv_L_cache":3,"layer_types":["conv","full_attention"]"#);
    assert_eq!(caches(&conv), [64 * 3 * 4, 8192 * 64 * 2]);
    assert_eq!(caches(&with(r#""num_kv_shared_layers":1"#)), [8192 * 64 * 2, 0]);
    let inside = format!(r#"{{"vision_config":{{}},"text_config":{plain}}}"#);
    assert_eq!(caches(&inside), [8192 * 64 * 2; 2]);
}

#[test]
fn configs_of_other_models_have_no_shape_and_wrong_ones_are_refused() {
    let clip = HfConfig::parse(r#"{"model_type":"clip_vision_model"}"#).expect("read");
    assert_eq!(clip.shape, None);
    assert!(HfConfig::parse("[]").is_err());
    let huge = r#"{"num_hidden_layers":99999999,"vocab_size":1,"hidden_size":1}"#;
    assert!(HfConfig::parse(huge).expect_err("refused").contains("num_hidden_layers"));
    let negative = r#"{"num_hidden_layers":2,"vocab_size":1,"hidden_size":-1}"#;
    assert!(HfConfig::parse(negative).expect_err("refused").contains("hidden_size"));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(text in "[ -~]{0,200}", data in 0usize..64) {
        let _ = SafetensorsTensors::read(Cursor::new(bytes(&text, data)));
        let _ = HfConfig::parse(&text);
    }
}

/// As Python writes it: the default of Mamba 2's `time_step_limit`.
const MAMBA2: &str = r#"{"model_type":"mamba2","hidden_size":64,"num_hidden_layers":2,"vocab_size":100,
    "state_size":16,"time_step_limit":[0.0, Infinity],"a":-Infinity,"b":NaN}"#;

#[test]
fn numbers_that_json_has_no_word_for_are_read_as_python_reads_them() {
    let config = HfConfig::parse(MAMBA2).expect("Python reads it");
    assert_eq!(config.shape.expect("a shape").layers, 2);
    for wrong in ["[1NaN]", "[-NaN]", "[NaNs]", "{\"a\":Infinity"] {
        assert!(HfConfig::parse(wrong).is_err(), "{wrong}");
    }
    let refused = MAMBA2.replace("\"num_hidden_layers\":2", "\"num_hidden_layers\":Infinity");
    assert!(HfConfig::parse(&refused).expect_err("no layers").contains("no model has"));
}

proptest! {
    /// Strings are never touched, whatever is in them.
    #[test]
    fn words_within_strings_stay(
        parts in proptest::collection::vec(
            prop_oneof![Just("NaN"), Just("-Infinity"), Just("\""), Just("\\"), Just("é"), Just(" ")], 0..12)
    ) {
        let name = parts.concat();
        let json = serde_json::to_string(&name).expect("a string");
        let text = MAMBA2.replace("\"mamba2\"", &json).replace("\"a\"", &json);
        prop_assert_eq!(HfConfig::parse(&text).map(|config| config.model_type), Ok(name));
    }

    /// Any text is refused or read.
    #[test]
    fn any_text_is_refused_or_read(text in "[\"\\\\NaInfty:,{}0-9é-]{0,40}") {
        let _ = HfConfig::parse(&text);
    }
}
