//! `plimsoll fit MODEL`: the largest setting from a file alone, and the command line for it.
#![cfg(target_os = "linux")]

#[expect(dead_code, reason = "no recordings are read here")]
mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Result, complaint, json, run, text};
use plimsoll::{ModelShape, WeightType};
use plimsoll_models::gguf::GgufWriter;
use serde_json::Value;

const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/small8.pt");

/// A GGUF file of Llama 3 8B, its header alone.
fn llama3(folder: &Path) -> Result<PathBuf> {
    let shape = ModelShape::new(4096, 14336, 32, 128_256, 32)
        .with_kv_heads(8)
        .with_context(131_072)
        .with_weights(WeightType::Q4KM);
    let path = folder.join("my model.gguf");
    GgufWriter::of_shape("llama", &shape).write(&path)?;
    Ok(path)
}

/// A folder with the weights of a small language model, which are all zero.
fn safetensors(folder: &Path, config: &str) -> Result<PathBuf> {
    let header = r#"{"w":{"dtype":"BF16","shape":[1000,1000],"data_offsets":[0,2000000]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + 2_000_000, 0);
    fs::write(folder.join("model.safetensors"), &file)?;
    if !config.is_empty() {
        fs::write(folder.join("config.json"), config)?;
    }
    Ok(folder.to_path_buf())
}

const CONFIG: &str = r#"{"model_type":"llama","num_hidden_layers":4,"hidden_size":512,
    "vocab_size":1000,"num_attention_heads":8,"num_key_value_heads":2,"intermediate_size":1024,
    "max_position_embeddings":4096}"#;

fn words<'a>(verb: &'a str, path: &'a Path, flags: &'a str) -> Vec<&'a str> {
    let path = path.to_str().unwrap_or_default();
    [verb, path].into_iter().chain(flags.split_whitespace()).collect()
}

fn fit(path: &Path, flags: &str, code: i32) -> Result<Value> {
    json(&words("fit", path, flags), code)
}

/// The upper end of the estimate for these flags.
fn upper(path: &Path, flags: &str) -> Result<u64> {
    let answer = json(&words("estimate", path, flags), 0)?;
    Ok(answer["range"]["high_bytes"].as_u64().ok_or("no range")?)
}

/// The answer's value fits by `estimate` with what is kept free, and the next does not. PyTorch may
/// free its cache on the way: then a smaller value is named that needs nothing of the kind.
fn check(answer: &Value, upper: impl Fn(&str) -> Result<u64>) -> Result {
    let number = |key: &str| answer[key].as_u64().ok_or(format!("no {key} in {answer:#}"));
    let room = number("limit_bytes")? - number("reserve_bytes")?;
    let words = |value: &Value| value.to_string().trim_matches('"').to_string();
    let (largest, cached) = (&answer["largest"], &answer["estimate"]["cached_largest"]);
    let most = upper(&words(largest))?;
    if largest == cached {
        assert!(most <= room, "{answer:#}");
    } else {
        assert_eq!(answer["estimate"]["engine"], "pytorch");
        assert!(cached.as_u64() < largest.as_u64() && most > room, "{answer:#}");
        assert!(upper(&words(cached))? <= room, "{answer:#}");
    }
    assert_eq!(number("largest_bytes")?, most.min(room));
    let next = upper(&words(&answer["smallest_failed"]))?;
    assert!(next > room && number("smallest_failed_bytes")? == next, "{answer:#}");
    Ok(())
}

#[test]
fn the_longest_context_has_llama_cpps_command_line() -> Result {
    let folder = tempfile::tempdir()?;
    let path = llama3(folder.path())?;
    let answer = fit(&path, "--limit 8GiB --vary context --kv-dtype q8_0 --flash-attn", 0)?;
    let engine = "--engine llama.cpp --kv-dtype q8_0 --flash-attn --context";
    check(&answer, |context| upper(&path, &format!("{engine} {context}")))?;
    let largest = answer["largest"].as_u64().ok_or("no answer")?;
    assert_eq!(largest % 256, 0);
    let line = format!(
        "llama-server -m '{}' -c {largest} -ngl 33 -ctk q8_0 -ctv q8_0 -fa on",
        path.display()
    );
    assert_eq!(answer["command"], line);
    assert_eq!(
        (&answer["how"], &answer["estimate"]["engine"]),
        (&"estimated".into(), &"llama.cpp".into())
    );
    // No record says what llama.cpp's context takes, so more is kept free, and it says so.
    assert_eq!(answer["reserve_bytes"], (128 + 700) << 20);
    assert!(answer["reserve_reason"].to_string().contains("nothing is on record"));
    Ok(())
}

#[test]
fn every_setting_of_a_language_model_can_be_varied() -> Result {
    let folder = tempfile::tempdir()?;
    let path = llama3(folder.path())?;
    let batch = fit(&path, "--limit 8GiB --vary batch --context 2048", 0)?;
    let at = |batch: &str| -> Result<u64> {
        let tokens = 2048 * batch.parse::<u64>()?;
        upper(&path, &format!("--engine llama.cpp --batch {batch} --context {tokens}"))
    };
    check(&batch, at)?;
    let line = batch["command"].as_str().ok_or("no command")?;
    assert!(line.contains(&format!("-np {} ", batch["largest"])) && line.ends_with("--kv-unified"));
    let layers = fit(&path, "--limit 4GiB --vary gpu-layers", 0)?;
    check(&layers, |n| upper(&path, &format!("--engine llama.cpp --gpu-layers {n}")))?;
    assert!(layers["command"].to_string().contains(&format!("-ngl {} ", layers["largest"])));
    let dtype = fit(&path, "--limit 5GiB --vary dtype", 0)?;
    check(&dtype, |kind| upper(&path, &format!("--engine llama.cpp --dtype {kind}")))?;
    assert!(
        dtype["command"].as_str().is_some_and(|line| line.starts_with("llama-quantize --pure "))
    );
    Ok(())
}

/// Steps are counted from the smallest value, and the largest is tried whether or not they reach it.
#[test]
fn steps_begin_at_the_smallest_value_and_end_at_the_largest() -> Result {
    let folder = tempfile::tempdir()?;
    let path = llama3(folder.path())?;
    let upper_end = |n: &str| upper(&path, &format!("--engine llama.cpp --gpu-layers {n}"));
    let all = fit(&path, "--limit 80GiB --vary gpu-layers --step 5", 0)?;
    assert_eq!((&all["largest"], &all["smallest_failed"]), (&33.into(), &Value::Null));
    assert_eq!(all["why"], "that is all of them, and the output matrix");
    let some = fit(&path, "--limit 4GiB --vary gpu-layers --step 5", 0)?;
    check(&some, upper_end)?;
    let (largest, next) = (some["largest"].as_u64(), some["smallest_failed"].as_u64());
    assert_eq!(largest.map(|n| (n % 5, n + 5)), next.map(|n| (0, n)), "{some:#}");
    assert_eq!(some["why"], Value::Null);
    // Between the last step and the end nothing is left out, either.
    let (least, room) = (upper_end("30")?, 828 << 20);
    let last = format!("--limit {}B --vary gpu-layers --step 5", least + room);
    let last = fit(&path, &last, 0)?;
    assert_eq!((&last["largest"], &last["smallest_failed"]), (&30.into(), &33.into()));
    assert_eq!(last["why"], Value::Null);
    let given = fit(&path, "--limit 80GiB --vary gpu-layers=2..9 --step 3", 0)?;
    assert_eq!(
        (&given["largest"], &given["why"]),
        (&9.into(), &"larger values were not asked for".into())
    );
    let trained = fit(&path, "--limit 80GiB --vary context --step 1000", 0)?;
    assert_eq!(trained["largest"], 131_072);
    Ok(())
}

#[test]
fn pytorch_gets_lines_of_python() -> Result {
    let folder = tempfile::tempdir()?;
    let path = safetensors(folder.path(), CONFIG)?;
    let answer = fit(&path, "--limit 4GiB --vary batch --context 1024", 0)?;
    let engine = "--engine pytorch --device cuda:0 --context 1024";
    check(&answer, |batch| upper(&path, &format!("{engine} --batch {batch}")))?;
    assert_eq!(answer["reserve_bytes"], 128 << 20);
    let text = answer["command"].as_str().ok_or("no command")?;
    assert!(text.contains("dtype=torch.bfloat16") && text.contains("max_length=1024"), "{text}");
    // A range that the user gives, and a limit that holds the whole of it.
    let all = fit(&path, "--limit 4GiB --vary context=100..200 --step 50", 0)?;
    assert_eq!((&all["largest"], &all["smallest_failed"]), (&200.into(), &Value::Null));
    assert_eq!(all["why"], "larger values were not asked for");
    let trained = fit(&path, "--limit 80GiB --vary context", 0)?;
    assert_eq!(trained["largest"], 4096);
    assert!(trained["why"].to_string().contains("trained for 4096 tokens"));
    Ok(())
}

/// Qwen 2.5 0.5B in 16 bits: its configuration, and a file of weights that is a header and a hole.
fn qwen2(folder: &Path) -> Result<PathBuf> {
    let config = r#"{"model_type":"qwen2","hidden_size":896,"intermediate_size":4864,
        "num_hidden_layers":24,"num_attention_heads":14,"num_key_value_heads":2,"vocab_size":151936,
        "max_position_embeddings":131072,"tie_word_embeddings":true,"dtype":"bfloat16"}"#;
    fs::write(folder.join("config.json"), config)?;
    let square = 896 * 896;
    let layer = [
        square,
        896,
        128 * 896,
        128,
        128 * 896,
        128,
        square,
        4864 * 896,
        4864 * 896,
        4864 * 896,
        896,
        896,
    ];
    let layers = std::iter::repeat_n(layer, 24).flatten();
    let mut header = serde_json::Map::new();
    let mut end = 0_u64;
    for (n, count) in [151_936 * 896].into_iter().chain(layers).chain([896]).enumerate() {
        let next = end + count * 2;
        let tensor =
            serde_json::json!({"dtype": "BF16", "shape": [count], "data_offsets": [end, next]});
        header.insert(format!("t{n:03}"), tensor);
        end = next;
    }
    let header = Value::Object(header).to_string();
    let path = folder.join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat())?;
    fs::OpenOptions::new().write(true).open(&path)?.set_len(8 + header.len() as u64 + end)?;
    Ok(folder.to_path_buf())
}

/// On an H200 80,896 tokens ran within 6 GiB and 81,408 did not. In between PyTorch's allocator holds more
/// for some lengths than for longer ones.
#[test]
fn what_fits_is_found_beyond_what_does_not() -> Result {
    let folder = tempfile::tempdir()?;
    let path = qwen2(folder.path())?;
    let answer = fit(
        &path,
        "--engine pytorch --limit 6GiB --vary context=512..131072 --step 512 --batch 1",
        0,
    )?;
    let engine = "--engine pytorch --device cuda:0 --batch 1 --context";
    check(&answer, |n| upper(&path, &format!("{engine} {n}")))?;
    assert_eq!((&answer["largest"], &answer["smallest_failed"]), (&80_896.into(), &81_408.into()));
    let notes = answer["notes"].to_string();
    assert!(notes.contains("not every smaller context fits"), "{notes}");
    assert!(upper(&path, &format!("{engine} 75776"))? > 6 << 30, "one of those");
    Ok(())
}

#[test]
fn training_is_fitted_too() -> Result {
    let folder = tempfile::tempdir()?;
    let path = safetensors(folder.path(), CONFIG)?;
    let flags = "--train --precision bf16 --optimizer adamw-fused --checkpointing";
    let train = format!("--engine pytorch --device cuda:0 {flags}");
    let batch = fit(&path, &format!("--limit 4GiB --vary batch --context 512 {flags}"), 0)?;
    check(&batch, |n| upper(&path, &format!("{train} --context 512 --batch {n}")))?;
    let inference = fit(&path, "--limit 4GiB --vary batch --context 512", 0)?;
    assert!(batch["largest"].as_u64() < inference["largest"].as_u64());
    let text = batch["command"].as_str().ok_or("no command")?;
    for part in ["adamw_torch_fused", "gradient_checkpointing=True", "torch.bfloat16"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(text.contains(&format!("per_device_train_batch_size={},", batch["largest"])), "{text}");
    let context = fit(
        &path,
        &format!("--limit 2GiB --vary context=64..4096 --step 64 --batch 16 {flags}"),
        0,
    )?;
    check(&context, |n| upper(&path, &format!("{train} --batch 16 --context {n}")))?;
    let other = complaint(&words("fit", &path, "--limit 4GiB --vary batch --train --engine ort"))?;
    assert!(other.contains("--engine pytorch"), "{other}");
    Ok(())
}

#[test]
fn detectors_vary_batch_and_images() -> Result {
    let path = Path::new(SMALL);
    let engine = "--engine pytorch --device cuda:0";
    let batch = fit(path, "--limit 4GiB --vary batch", 0)?;
    check(&batch, |n| upper(path, &format!("{engine} --batch {n}")))?;
    assert!(batch["command"].to_string().contains(&format!("batch={}", batch["largest"])));
    let images = fit(path, "--limit 2GiB --vary imgsz=32..8192 --step 32", 0)?;
    check(&images, |n| upper(path, &format!("{engine} --imgsz {n}")))?;
    let trained = fit(path, "--limit 8GiB --vary batch --train", 0)?;
    check(&trained, |n| upper(path, &format!("{engine} --train --batch {n}")))?;
    assert!(trained["command"].to_string().contains(".train("), "{trained:#}");
    let types = fit(path, "--limit 2GiB --vary dtype --engine ort", 0)?;
    assert_eq!(types["largest"], "f32");
    assert!(types["command"].to_string().contains("plimsoll bench "));
    Ok(())
}

#[test]
fn what_does_not_fit_or_is_not_known_is_no_answer() -> Result {
    let folder = tempfile::tempdir()?;
    let path = safetensors(folder.path(), "")?;
    let bare = fit(&path, "--limit 4GiB --vary batch", 1)?;
    assert_eq!(bare["largest"], Value::Null);
    assert!(bare["why"].to_string().contains("it cannot be known: no config.json"), "{bare:#}");
    let small = fit(Path::new(SMALL), "--limit 200MiB --vary batch", 1)?;
    assert!(small["why"].to_string().contains("not even batch 1 fits"), "{small:#}");
    Ok(())
}

#[test]
fn what_a_model_does_not_have_is_refused() -> Result {
    let folder = tempfile::tempdir()?;
    let path = llama3(folder.path())?;
    for (path, flags, says) in [
        (path.as_path(), "--limit 8GiB --vary imgsz", "no images"),
        (
            path.as_path(),
            "--limit 8GiB --vary steps",
            "batch, context, imgsz, gpu-layers and dtype",
        ),
        (path.as_path(), "--vary batch", "--limit"),
        (Path::new(SMALL), "--limit 8GiB --vary context", "only language models"),
        (Path::new(SMALL), "--limit 8GiB --vary gpu-layers", "only GGUF"),
        (Path::new(SMALL), "--limit 8GiB --vary dtype=1..5", "types are no numbers"),
        (Path::new(SMALL), "--limit 8GiB --vary dtype --step 2", "types are no numbers"),
        (Path::new("/no/such.gguf"), "--limit 8GiB --vary batch", "/no/such.gguf"),
    ] {
        let said = complaint(&words("fit", path, flags))?;
        assert!(said.contains(says), "{flags}: {said}");
    }
    let quiet = run(&words("fit", &path, "--limit 8GiB --vary dtype -q"))?;
    // The file is a mix of q4_k and q6_k, which fits as it is.
    assert_eq!(text(&quiet.stdout), "own\n");
    Ok(())
}

/// What is pasted is for the engine, the device and the kind of file.
#[test]
fn a_line_to_paste_can_be_run_by_its_engine() -> Result {
    let folder = tempfile::tempdir()?;
    let command =
        |path: &Path, flags: &str| -> Result<Value> { Ok(fit(path, flags, 0)?["command"].clone()) };
    let batch =
        |flags: &str| command(Path::new(SMALL), &format!("--vary batch --limit 2GiB {flags}"));
    let ort = batch("--engine ort")?.to_string();
    assert!(
        ort.contains("plimsoll export ") && ort.contains("small8.onnx\\\", providers=[\\\"CUDA"),
        "{ort}"
    );
    assert!(batch("--engine ort --device cpu")?.to_string().contains("CPUExecutionProvider"));
    assert_eq!(batch("--engine rten")?, Value::Null, "no command of its own takes a batch");
    let none = fit(Path::new(SMALL), "--vary batch --limit 2GiB --engine rten", 0)?;
    assert!(none["notes"].to_string().contains("there is no command to paste"), "{none:#}");
    // `bench` takes engines alone, which must be built before.
    let engine = command(Path::new(SMALL), "--vary imgsz --limit 6.9GiB --engine tensorrt")?;
    let lines: Vec<&str> = engine.as_str().unwrap_or_default().lines().collect();
    assert!(lines[0].starts_with("plimsoll export ") && lines[0].contains("small8.engine --imgsz"));
    assert!(lines[1].contains("small8.engine --engine tensorrt") && !lines[1].contains("--imgsz"));
    assert!(lines[1].ends_with("--gpu-mem-limit 6.9GiB"), "{engine}");
    let built = batch("--engine tensorrt")?.to_string();
    assert!(built.contains("trtexec ") && built.contains("--shapes=images:"), "{built}");
    let gguf = llama3(folder.path())?;
    let python = command(&gguf, "--vary context --engine pytorch --limit 40GiB")?.to_string();
    assert!(python.contains("gguf_file=\\\"my model.gguf\\\""), "{python}");
    let smaller = command(&gguf, "--vary dtype --limit 5GiB")?.to_string();
    assert!(smaller.contains("--allow-requantize"), "{smaller}");
    let own = command(&gguf, "--vary dtype --limit 40GiB")?.to_string();
    assert!(own.starts_with("\"llama-server -m "), "{own}");
    let tensors = safetensors(folder.path(), CONFIG)?;
    let flags = "--vary dtype --engine llama.cpp --limit 1GiB --device cpu";
    let line = command(&tensors, flags)?.to_string();
    assert!(line.contains("convert_hf_to_gguf.py ") && line.contains(" -ngl 0"), "{line}");
    Ok(())
}

/// Where a version of Transformers may store scores, what fits has room for them.
#[test]
fn what_may_store_scores_fits_with_them() -> Result {
    let folder = tempfile::tempdir()?;
    let path = safetensors(folder.path(), &CONFIG.replace("llama", "gemma2"))?;
    let answer = fit(&path, "--limit 2GiB --vary context=256..65536", 0)?;
    let at = "--engine pytorch --device cuda:0 --context";
    let high = upper(&path, &format!("{at} {}", answer["largest"]))?;
    let room =
        answer["limit_bytes"].as_u64().unwrap_or(0) - answer["reserve_bytes"].as_u64().unwrap_or(0);
    assert!(high <= room, "{high}: {answer:#}");
    assert!(answer["estimate"]["basis"].to_string().contains("5.23"), "{answer:#}");
    Ok(())
}
