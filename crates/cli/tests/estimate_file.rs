//! `plimsoll estimate MODEL` as a user meets it: files that are headers alone, and logs.

mod common;

use std::fs;
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use common::{Result, complaint, json, run, shared, text};
use plimsoll::{Biases, ElementType, Mlp, ModelShape, WeightType};
use plimsoll_models::gguf::{GgufValue as Field, GgufWriter};
use serde_json::Value;

fn llama3() -> ModelShape {
    ModelShape::new(4096, 14336, 32, 128_256, 32)
        .with_kv_heads(8)
        .with_context(8192)
        .with_weights(WeightType::Q4KM)
}

fn gguf(folder: &Path, architecture: &str, shape: &ModelShape) -> Result<PathBuf> {
    let path = folder.join("model.gguf");
    GgufWriter::of_shape(architecture, shape).write(&path)?;
    Ok(path)
}

fn words<'a>(path: &'a Path, flags: &'a str) -> Vec<&'a str> {
    let path = path.to_str().unwrap_or_default();
    ["estimate", path].into_iter().chain(flags.split_whitespace()).collect()
}

fn number(answer: &Value, key: &str) -> u64 {
    answer[key].as_u64().unwrap_or(u64::MAX)
}

#[test]
fn the_terms_of_a_file_add_up() -> Result {
    let folder = tempfile::tempdir()?;
    let path = gguf(folder.path(), "llama", &llama3())?;
    let answer = json(&words(&path, "--context 8192"), 0)?;
    let keys = ["weights_bytes", "kv_cache_bytes", "activation_bytes"];
    let sum: u64 = keys.iter().map(|key| number(&answer, key)).sum();
    assert_eq!(sum, number(&answer, "total_bytes"));
    assert_eq!(number(&answer, "kv_cache_bytes"), 1 << 30);
    assert_eq!(answer["overhead_bytes"], Value::Null);
    assert_eq!((&answer["fits"], &answer["verdict"]), (&Value::Null, &Value::Null));
    assert_eq!(answer["weights"].as_array().map(Vec::len), Some(3));
    let named = json(&words(&path, "--engine pytorch --device cuda:0"), 0)?;
    assert!(named["notes"].to_string().contains("Transformers unpacks GGUF"), "{named:#}");
    let half = json(&words(&path, "--engine pytorch --device cuda:0 --dtype f16"), 0)?;
    assert_eq!(named["weights_bytes"], half["weights_bytes"]);
    assert!(number(&named, "overhead_bytes") > 0);
    assert!(named["overhead"]["source"].as_str().is_some_and(|text| text.contains("H200")));
    Ok(())
}

/// llama.cpp's cache is f16 unless it is told otherwise, whatever the weights are.
#[test]
fn an_f32_file_has_llama_cpps_own_cache_type() -> Result {
    let folder = tempfile::tempdir()?;
    let path = gguf(folder.path(), "llama", &llama3().with_weights(WeightType::F32))?;
    for flags in ["--context 8192", "--context 8192 --engine llama.cpp"] {
        let answer = json(&words(&path, flags), 0)?;
        assert_eq!(answer["kv_dtype"], "f16", "{flags}");
        assert_eq!(number(&answer, "kv_cache_bytes"), 1 << 30, "{flags}");
    }
    let told = json(&words(&path, "--context 8192 --kv-dtype f32"), 0)?;
    assert_eq!(number(&told, "kv_cache_bytes"), 2 << 30);
    Ok(())
}

#[test]
fn the_verdict_decides_the_exit_code_and_advice_really_fits() -> Result {
    let folder = tempfile::tempdir()?;
    let path = gguf(folder.path(), "llama", &llama3())?;
    for (limit, verdict, code) in [
        ("8GiB", "fits", 0),
        ("6.3GiB", "tight", 0),
        ("5GiB", "does_not_fit", 1),
        ("3GiB", "does_not_fit", 1),
    ] {
        let flags = format!("--context 8192 --limit {limit}");
        let answer = json(&words(&path, &flags), code)?;
        assert_eq!(answer["verdict"], verdict, "{limit}");
        assert_eq!(answer["fits"], code == 0);
        let advice = answer["advice"].as_array().ok_or("no advice")?;
        assert_eq!(advice.is_empty(), code == 0, "{limit}");
        for advice in advice {
            let command = advice["command"].as_str().ok_or("no command")?;
            let line: Vec<&str> = command.split_whitespace().skip(1).collect();
            let again = json(&line, 0)?;
            assert_eq!(again["total_bytes"], advice["total_bytes"], "{command}");
        }
    }
    let page = text(&run(&words(&path, "--context 8192 --limit 5GiB"))?.stdout);
    for word in ["does not fit into", "layers on the device", "--gpu-layers", "tokens of context"] {
        assert!(page.contains(word), "{word}: {page}");
    }
    Ok(())
}

#[test]
fn seventy_gigabytes_take_milliseconds_and_a_truncated_file_is_told() -> Result {
    let folder = tempfile::tempdir()?;
    let shape = ModelShape::new(8192, 28672, 80, 128_256, 64)
        .with_kv_heads(8)
        .with_weights(WeightType::Q8_0);
    let path = gguf(folder.path(), "llama", &shape)?;
    let length = fs::metadata(&path)?.len();
    assert!(length > 70_000_000_000);
    let start = Instant::now();
    json(&words(&path, ""), 0)?;
    // To read them takes longer on any machine.
    assert!(start.elapsed().as_secs() < 6, "{:?}", start.elapsed());
    fs::OpenOptions::new().write(true).open(&path)?.set_len(length / 2)?;
    let message = complaint(&words(&path, ""))?;
    assert!(message.contains("truncated") && message.contains("download it again"), "{message}");
    Ok(())
}

/// A checkpoint with three gigabytes more in it, of which nothing is on the disk: one more
/// entry before the directory.
#[test]
fn a_large_checkpoint_is_read_by_its_directory_and_pickle() -> Result {
    const LARGE: u32 = 3 << 30;
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("large.pt");
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/small8.pt");
    let bytes = fs::read(&small)?;
    let end = bytes.windows(4).rposition(|word| word == b"PK\x05\x06").ok_or("no end")?;
    let field =
        |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let (size, start) = (field(end + 12), field(end + 16));
    let name = b"small8/data/large";
    let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for number in [0, LARGE, LARGE] {
        common.extend(number.to_le_bytes());
    }
    common.extend([name.len() as u8, 0, 0, 0]);
    let local = [b"PK\x03\x04", &common[..], name].concat();
    let central = [b"PK\x01\x02\x14\0", &common[..], &[0; 10], &start.to_le_bytes(), name].concat();
    let count = bytes[end + 10] as u16 + 256 * bytes[end + 11] as u16 + 1;
    let mut last = b"PK\x05\x06\0\0\0\0".to_vec();
    last.extend([count.to_le_bytes(), count.to_le_bytes()].concat());
    let directory = start + local.len() as u32 + LARGE;
    last.extend((size + central.len() as u32).to_le_bytes());
    last.extend(directory.to_le_bytes());
    last.extend([0, 0]);
    let mut file = fs::File::create(&path)?;
    file.write_all(&[&bytes[..start as usize], &local].concat())?;
    file.seek(SeekFrom::Start(u64::from(directory)))?;
    file.write_all(&bytes[start as usize..(start + size) as usize])?;
    file.write_all(&[central, last].concat())?;
    drop(file);
    let large = json(&words(&path, ""), 0)?;
    let small = json(&words(&small, ""), 0)?;
    assert_eq!(large["total_bytes"], small["total_bytes"]);
    // In a quarter of the room that the file would take. The shell's count has what its program read.
    let line = format!(
        "ulimit -v 800000; '{}' estimate '{}' && cat /proc/$$/io",
        env!("CARGO_BIN_EXE_plimsoll"),
        path.display()
    );
    let held = std::process::Command::new("sh").args(["-c", &line]).output()?;
    assert!(held.status.success(), "{}", text(&held.stderr));
    let said = text(&held.stdout);
    let read = said.lines().find_map(|line| line.strip_prefix("rchar: ")).ok_or("no count")?;
    assert!(read.parse::<u64>()? < 100 << 20, "it read {read} bytes");
    fs::OpenOptions::new().write(true).open(&path)?.set_len(u64::from(LARGE))?;
    assert!(complaint(&words(&path, ""))?.contains("cut short"));
    Ok(())
}

#[test]
fn layers_that_differ_are_counted_one_by_one() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("gemma.gguf");
    let shape = ModelShape::new(3840, 15360, 48, 262_208, 16)
        .with_kv_heads(8)
        .with_head_dim(256)
        .with_tied_embeddings(true);
    GgufWriter::of_shape("gemma3", &shape)
        .with("gemma3.attention.sliding_window", Field::Number(1024))
        .write(&path)?;
    let answer = json(&words(&path, "--context 131072"), 0)?;
    let (full, window) = (131_072u64 * 4096 * 2, 1536u64 * 4096 * 2);
    assert_eq!(number(&answer, "kv_cache_bytes"), 8 * full + 40 * window);
    let whole = json(&words(&path, "--context 131072 --swa-full"), 0)?;
    assert_eq!(number(&whole, "kv_cache_bytes"), 48 * full, "windows keep everything");
    let shared = json(&words(&path, "--context 131072 --parallel 4"), 0)?;
    let of_four = 4608u64 * 4096 * 2;
    assert_eq!(number(&shared, "kv_cache_bytes"), 8 * full + 40 * of_four);
    assert!(shared["notes"].to_string().contains("--no-kv-unified"), "{shared}");
    let apart = json(&words(&path, "--context 131072 --parallel 4 --no-kv-unified"), 0)?;
    assert_eq!(number(&apart, "kv_cache_bytes"), 8 * full + 40 * 4 * window);
    assert!(number(&apart, "activation_bytes") < number(&shared, "activation_bytes"));
    let limit = "--context 131072 --swa-full --flash-attn --limit 40GiB";
    let fits = json(&words(&path, limit), 1)?["advice"].to_string();
    assert!(fits.contains("no --swa-full"), "{fits}");
    let rows = answer["cache_by_layer"].as_array().ok_or("no layers")?;
    assert_eq!((rows.len(), &rows[0]["last"], &rows[1]["first"]), (16, &4.into(), &5.into()));
    Ok(())
}

#[test]
fn a_folder_of_safetensors_is_read_with_its_config() -> Result {
    let folder = tempfile::tempdir()?;
    let header = r#"{"w":{"dtype":"BF16","shape":[1000,1000],"data_offsets":[0,2000000]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + 2_000_000, 0);
    fs::write(folder.path().join("model.safetensors"), &file)?;
    let bare = json(&words(folder.path(), ""), 0)?;
    // What is not known is neither 0 nor an answer; that the weights alone are too much is one.
    assert!(bare["kv_cache_bytes"].is_null() && bare["activation_bytes"].is_null());
    assert!(bare["notes"].to_string().contains("config.json"));
    let unknown = json(&words(folder.path(), "--limit 1GiB --fleet"), 1)?;
    assert_eq!((&unknown["fits"], &unknown["verdict"]), (&Value::Null, &"unknown".into()));
    assert_eq!(unknown["fleet"][0]["verdict"], "unknown");
    // A device has room to compare with, so the exit code says that there is no answer.
    for (flags, code, is_noted) in [
        ("", 0, false),
        ("--engine pytorch", 0, true),
        ("--engine tensorrt", 0, false),
        ("--engine pytorch --device cpu", 1, false),
    ] {
        let notes = json(&words(folder.path(), flags), code)?["notes"].to_string();
        let noted = notes.contains("no --device is named, so this is for the CPU");
        assert_eq!(noted, is_noted, "{flags}: {notes}");
    }
    let no = json(&words(folder.path(), "--limit 1MiB"), 1)?;
    assert_eq!((&no["fits"], &no["verdict"]), (&false.into(), &"does_not_fit".into()));
    fs::write(
        folder.path().join("config.json"),
        r#"{"model_type":"llama","num_hidden_layers":4,"hidden_size":512,"vocab_size":1000,
            "num_attention_heads":8,"num_key_value_heads":2,"intermediate_size":1024}"#,
    )?;
    let answer = json(&words(folder.path(), "--context 1000"), 0)?;
    assert_eq!(number(&answer, "weights_bytes"), 2_000_000);
    assert_eq!(number(&answer, "kv_cache_bytes"), 4 * 1000 * 128 * 2 * 2);
    let half = json(&words(folder.path(), "--context 1000 --dtype q8_0"), 0)?;
    assert_eq!(number(&half, "weights_bytes"), 1_062_500);
    let refused = complaint(&words(folder.path(), "--engine ort"))?;
    assert!(refused.contains("ort runs no language model in safetensors"), "{refused}");
    Ok(())
}

#[test]
fn a_graph_says_where_its_peak_is() -> Result {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/fixtures");
    let fixed = fixtures.join("tiny.onnx");
    let answer = json(&words(&fixed, ""), 0)?;
    assert!(answer["peak"]["operator"].as_str().is_some_and(|text| text.contains("conv")));
    assert!(answer["peak"]["largest"].as_array().is_some_and(|list| !list.is_empty()));
    let message = complaint(&words(&fixed, "--imgsz 640"))?;
    assert!(message.contains("fixed at 8x8"), "{message}");
    let dynamic = fixtures.join("dynamic.onnx");
    let at = |flags: &str| json(&words(&dynamic, flags), 0).map(|a| number(&a, "activation_bytes"));
    assert_eq!(at("--imgsz 64")? * 4, at("--imgsz 128")?);
    assert_eq!(at("--imgsz 32x128")?, at("--imgsz 64")?);
    let arena = json(&words(&dynamic, "--imgsz 640 --engine ort --device cpu"), 0)?;
    assert!(number(&arena["arena"], "reserved_bytes") >= number(&arena["arena"], "peak_bytes"));
    Ok(())
}

#[test]
fn a_fleet_is_sorted_and_has_every_verdict() -> Result {
    let folder = tempfile::tempdir()?;
    let path = gguf(folder.path(), "llama", &llama3().with_weights(WeightType::F16))?;
    let answer = json(&words(&path, "--fleet --context 49152 --flash-attn"), 0)?;
    let fleet = answer["fleet"].as_array().ok_or("no fleet")?;
    assert!(fleet.len() > 30);
    for verdict in ["fits", "tight", "does_not_fit"] {
        assert!(fleet.iter().any(|board| board["verdict"] == verdict), "{verdict}");
    }
    let page = text(&run(&words(&path, "--fleet"))?.stdout);
    assert!(page.contains("Jetson Orin Nano 8GB") && page.contains("H200"), "{page}");
    Ok(())
}

#[test]
fn bad_files_and_flags_are_told_apart() -> Result {
    let folder = tempfile::tempdir()?;
    let path = gguf(folder.path(), "llama", &llama3())?;
    for (flags, word) in [
        ("--engine vllm", "llama.cpp"),
        ("--device gpu", "cuda:N"),
        ("--imgsz wide", "--imgsz"),
        ("--batch 0", "--batch"),
        ("--context 0", "--context"),
        ("--dtype decimal", "--dtype"),
        ("--input tokens", "--input"),
        ("--engine tensorrt", "does not read GGUF"),
        ("--engine pytorch --dtype q5_k", "q5_k is a type of llama.cpp's"),
        ("--engine pytorch --kv-dtype q8_0", "q8_0 is a type of llama.cpp's"),
        ("--engine pytorch --gpu-layers 3", "--gpu-layers"),
        ("--engine pytorch --swa-full", "--swa-full"),
        ("--engine pytorch --ubatch 64", "--ubatch"),
        ("--imgsz 640", "(--imgsz) can be chosen for ONNX and .pt alone"),
        ("--input x:0=1", "(--input) can be chosen for ONNX and .pt alone"),
    ] {
        let message = complaint(&words(&path, flags))?;
        assert!(message.contains(word), "{flags}: {message}");
    }
    let small = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/small8.pt");
    let message = complaint(&words(&small, "--context 5"))?;
    assert!(message.contains("an open number of tokens: leave --context out"), "{message}");
    let fixed = folder.path().join("fixed.onnx");
    let [from, to] = [&small, &fixed].map(|path| path.to_str().unwrap_or_default());
    assert!(run(&["export", from, "--to", to])?.status.success());
    let message = complaint(&words(&fixed, "--batch 4"))?;
    assert!(message.contains("plimsoll export --dynamic"), "{message}");
    let message = complaint(&["estimate", "nowhere.gguf"])?;
    assert!(message.contains("nowhere.gguf"), "{message}");
    let hostile = folder.path().join("hostile.gguf");
    let overlap = GgufWriter::new("llama").tensor("a", ElementType::F32, &[64]).tensor_at(
        "b",
        ElementType::F32,
        &[64],
        128,
    );
    fs::write(&hostile, [overlap.header(), vec![0; 1024]].concat())?;
    assert!(complaint(&words(&hostile, ""))?.contains("overlap"));
    Ok(())
}

/// A row of the logs, by its columns.
struct Row<'a>(Vec<(&'a str, &'a str)>);

impl Row<'_> {
    fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(column, _)| *column == name).map_or("", |(_, text)| text)
    }

    fn number(&self, name: &str) -> Result<u64> {
        Ok(self.text(name).parse()?)
    }

    fn mib(&self, name: &str) -> Option<f64> {
        self.text(name).parse().ok()
    }

    /// The header of its model, as the converter would write it.
    fn writer(&self) -> Result<GgufWriter> {
        let model = self.text("model");
        let shape = ModelShape::new(
            self.number("n_embd")?,
            self.number("n_ff")?,
            self.number("n_layer")?,
            self.number("n_vocab")?,
            self.number("n_head")?,
        )
        .with_kv_heads(self.number("n_head_kv")?)
        .with_head_dim(self.number("head_dim")?)
        .with_weights(self.text("ftype").parse()?);
        Ok(match model {
            m if m.starts_with("pythia") => {
                let shape =
                    shape.with_mlp(Mlp::Plain).with_biases(Biases::All).with_fused_qkv(true);
                GgufWriter::of_shape("gptneox", &shape.with_parallel_residual(true))
            }
            m if m.starts_with("qwen2") => {
                GgufWriter::of_shape("qwen2", &shape.with_biases(Biases::Attention))
            }
            m if m.starts_with("gemma") => {
                GgufWriter::of_shape("gemma", &shape.with_tied_embeddings(true))
            }
            _ => GgufWriter::of_shape("llama", &shape),
        })
    }

    /// Runs that are whole: a named type, every term in the log, all layers on one side.
    fn is_regular(&self) -> bool {
        let backend = self.text("backend");
        !self.text("ftype").contains('?')
            && self.text("identity").starts_with("stated")
            && !backend.starts_with("CANN")
            && !backend.contains("0 layers offloaded")
            && self.mib("log_weights_MiB").is_some()
            && self.mib("log_kv_MiB").is_some()
            && self.mib("log_compute_MiB").is_some()
    }
}

#[test]
fn totals_agree_with_the_logs_of_an_engine_within_a_hundredth() -> Result {
    let Some(path) = shared("llm-memory/llamacpp_buffers.tsv") else {
        println!("skipped: no logs beside the workspace");
        return Ok(());
    };
    let logs = fs::read_to_string(path)?;
    let mut lines = logs.lines();
    let header: Vec<&str> = lines.next().ok_or("empty")?.split('\t').collect();
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("model.gguf");
    let mut checked = 0;
    for line in lines {
        let row = Row(header.iter().copied().zip(line.split('\t')).collect());
        if !row.is_regular() {
            continue;
        }
        row.writer()?.write(&path)?;
        let mut flags = format!(
            "--context {} --ubatch {} --kv-dtype {} --engine llama.cpp",
            row.text("n_ctx"),
            row.text("n_ubatch"),
            row.text("type_k")
        );
        if row.text("flash_attn") == "1" {
            flags += " --flash-attn";
        }
        let answer = json(&words(&path, &flags), 0)?;
        let parts = ["log_weights_MiB", "log_kv_MiB", "log_compute_MiB"];
        let logged: f64 = parts.iter().filter_map(|name| row.mib(name)).sum();
        let found = number(&answer, "total_bytes") as f64 / f64::from(1 << 20);
        let off = 100.0 * (found - logged).abs() / logged;
        assert!(
            off < 1.0,
            "{}: {found:.2} for {logged:.2} MiB, off by {off:.2} %",
            row.text("model")
        );
        checked += 1;
    }
    assert!(checked >= 5, "only {checked} rows are whole");
    Ok(())
}

/// A folder with a small decoder's configuration and the header of its tensors.
fn decoder(folder: &Path) -> Result {
    let config = r#"{"model_type":"llama","hidden_size":256,"intermediate_size":512,
        "num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"vocab_size":1000}"#;
    fs::write(folder.join("config.json"), config)?;
    let header = r#"{"a":{"dtype":"BF16","shape":[1000,1000],"data_offsets":[0,2000000]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.resize(file.len() + 2_000_000, 0);
    fs::write(folder.join("model.safetensors"), file)?;
    Ok(())
}

/// Training has weights, gradients, states, activations and the context, which add up.
#[test]
fn training_is_estimated_term_by_term() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    decoder(path)?;
    let at = |flags: &str| {
        let flags = format!("--engine pytorch --train --batch 2 --context 128 {flags}");
        json(&words(path, &flags), 0)
    };
    let adam = at("")?;
    let keys = [
        "weights_bytes",
        "gradient_bytes",
        "optimizer_bytes",
        "kv_cache_bytes",
        "activation_bytes",
        "overhead_bytes",
    ];
    let sum: u64 = keys.iter().map(|key| number(&adam, key)).sum();
    assert_eq!(sum, number(&adam, "total_bytes"));
    assert_eq!(number(&adam, "gradient_bytes"), 2_000_000);
    assert_eq!(number(&adam, "optimizer_bytes"), 4_000_000);
    assert!(number(&adam["range"], "high_bytes") > number(&adam, "total_bytes"));
    assert_eq!(at("--optimizer sgd")?["optimizer_bytes"], 0);
    assert_eq!(number(&at("--precision fp32")?, "gradient_bytes"), 4_000_000);
    let lora = at("--lora 4 --base-dtype nf4 --checkpointing --grad-accumulation 2")?;
    assert!(number(&lora, "gradient_bytes") < 2_000_000);
    let many = at("--gpus 4 --shard fsdp2")?;
    assert!(number(&many, "optimizer_bytes") <= 1_000_000 && many["checked"] == true);
    assert!(many["basis"].to_string().contains("fake process group"), "{many}");
    assert_eq!(at("--gpus 4 --shard ddp")?["checked"], false);
    let gathered = |base: &str| {
        let many = at(&format!("--lora 4 --base-dtype {base} --gpus 4 --shard fsdp2"));
        many.map(|many| number(&many, "total_bytes"))
    };
    assert!(gathered("nf4")? < gathered("bf16")?, "packed weights are gathered as they are");
    let page = run(&words(path, "--engine pytorch --train --batch 2 --context 128"))?;
    assert!(text(&page.stdout).contains("gradients"), "{}", text(&page.stdout));
    for (flags, word) in [
        ("--train", "--engine pytorch"),
        ("--engine pytorch --optimizer sgd", "--train"),
        ("--engine pytorch --train --base-dtype nf4", "--lora"),
        ("--engine pytorch --train --optimizer lion", "adafactor"),
    ] {
        let told = run(&words(path, flags))?;
        assert_eq!(told.status.code(), Some(2), "{flags}");
        assert!(text(&told.stderr).contains(word), "{flags}: {}", text(&told.stderr));
    }
    Ok(())
}

/// A fleet is of GPUs, whatever is not named.
#[test]
fn a_fleet_is_judged_by_what_a_gpu_takes() -> Result {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/small8.pt");
    let fleet = json(&words(&model, "--engine ort --batch 16 --fleet"), 0)?;
    let on_gpu = json(&words(&model, "--engine ort --batch 16 --device cuda:0 --limit 900GiB"), 0)?;
    assert_eq!(fleet["total_bytes"], on_gpu["total_bytes"]);
    assert!(!fleet["notes"].to_string().contains("for the CPU"), "{fleet:#}");
    let refused = complaint(&words(&model, "--fleet --device cpu"))?;
    assert!(refused.contains("--fleet compares with GPUs"), "{refused}");
    Ok(())
}

/// What an engine and a driver take is unknown where it is not on record: it is no 0, and `estimate` and `fit`
/// keep the same free for it.
#[test]
fn an_unknown_overhead_is_shown_as_unknown_and_kept_free() -> Result {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples/small8.pt");
    let tensorrt = "--engine tensorrt --device cuda:0 --imgsz 320 --limit";
    let tight = json(&words(&model, &format!("{tensorrt} 100MiB")), 1)?;
    assert_eq!(
        (&tight["overhead_bytes"], &tight["overhead"]["bytes"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!((&tight["verdict"], &tight["fits"]), (&"may_not_fit".into(), &false.into()));
    assert_eq!(number(&tight["overhead"], "kept_free_bytes"), 700 << 20);
    let page = text(&run(&words(&model, &format!("{tensorrt} 900MiB")))?.stdout);
    assert!(page.contains("fits into 900.00 MiB, with 700.00 MiB kept free"), "{page}");
    assert!(page.lines().any(|line| line.contains("overhead") && line.contains('–')), "{page}");
    let fit =
        ["fit", model.to_str().unwrap_or_default(), "--engine", "tensorrt", "--vary", "imgsz"];
    let fit = json(&[&fit[..], &["--limit", "900MiB"]].concat(), 0)?;
    assert_eq!(number(&fit, "reserve_bytes"), (700 + 128) << 20);
    let bare = text(&run(&words(&model, "--imgsz 320 --limit 100MiB --quiet"))?.stdout);
    assert!(
        bare.contains("fits into 100.00 MiB, without what the engine and the driver take"),
        "{bare}"
    );
    let known =
        text(&run(&words(&model, "--engine ort --device cuda:0 --limit 90GiB --quiet"))?.stdout);
    assert!(known.ends_with("fits into 90.00 GiB\n"), "{known}");
    Ok(())
}
