//! `plimsoll estimate --exact`: what is asked of Python, and what becomes of its answers. A script
//! stands in for Python; what the real one says is tested in python/tests/test_torch_estimate.py.
#![cfg(unix)]

#[expect(dead_code, reason = "it starts the program in its own way")]
mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Output;

use common::{Result, plimsoll, text};
use serde_json::Value;

const ANSWER: &str = r#"{"total_bytes": 3221225472, "range": {"low_bytes": 3000000000, "high_bytes": 3382286745},
"peak_allocated_bytes": 2147483648, "peak_reserved_bytes": 2462056448, "context_bytes": 759169024,
"allocator": "caching", "peak": null, "lines": [{"file": "/x/modeling_llama.py", "line": 175, "function": "forward",
"bytes": 1073741824, "blocks": 4}], "limit_bytes": LIMIT, "fits": FITS}"#;

/// A Python that writes down its arguments, says this, and ends with the code.
fn python(name: &str, says: &str, code: i32) -> Result<PathBuf> {
    let folder = std::env::temp_dir().join(format!("plimsoll-exact-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let script = folder.join("python3");
    let says = says.replace('\n', " ");
    let text =
        format!("#!/bin/sh\necho \"$@\" > \"$0.words\"\ncat <<'END'\n{says}\nEND\nexit {code}\n");
    fs::write(&script, text)?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    Ok(script)
}

fn run(python: &std::path::Path, words: &[&str]) -> Result<Output> {
    Ok(plimsoll(words).env("PLIMSOLL_PYTHON", python).output()?)
}

const MODEL: [&str; 5] = ["estimate", "some-model", "--engine", "pytorch", "--exact"];

#[test]
fn the_answer_is_pythons() -> Result {
    let said = ANSWER.replace("LIMIT", "null").replace("FITS", "null");
    let python = python("answer", &said, 0)?;
    let words = [&MODEL[..], &["--batch", "2", "--context", "512", "--json"]].concat();
    let ran = run(&python, &words)?;
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let answer: Value = serde_json::from_slice(&ran.stdout)?;
    assert_eq!(answer["total_bytes"], 3_221_225_472_u64);
    assert_eq!(answer["allocator"], "caching", "what this version does not know is kept");
    let asked = fs::read_to_string(python.with_file_name("python3.words"))?;
    assert_eq!(asked.trim(), "-m plimsoll.torch.estimate_model some-model --batch 2 --context 512");
    let page = text(&run(&python, &MODEL)?.stdout);
    for part in ["3.00 GiB", "at most 3.15 GiB", "modeling_llama.py:175 forward"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    Ok(())
}

#[test]
fn training_is_asked_for_in_the_same_words() -> Result {
    let said = ANSWER.replace("LIMIT", "1073741824").replace("FITS", "false");
    let python = python("train", &said, 0)?;
    let more =
        ["--train", "--lora", "16", "--base-dtype", "nf4", "--checkpointing", "--limit", "1GiB"];
    let ran = run(&python, &[&MODEL[..], &more].concat())?;
    assert_eq!(ran.status.code(), Some(1), "it does not fit: {}", text(&ran.stderr));
    let asked = fs::read_to_string(python.with_file_name("python3.words"))?;
    for part in [
        "--optimizer adamw ",
        "--precision ",
        "--lora 16",
        "--base-dtype nf4",
        "--limit 1073741824",
    ] {
        assert!(asked.contains(part), "{part}: {asked}");
    }
    assert!(asked.trim().ends_with("--train --checkpointing"), "{asked}");
    Ok(())
}

#[test]
fn flags_that_the_program_has_no_use_for_are_refused() -> Result {
    let said = ANSWER.replace("LIMIT", "null").replace("FITS", "null");
    let python = python("unused", &said, 0)?;
    for (flags, part) in [
        (&["--fleet"][..], "--fleet"),
        (&["--device", "cuda:0"], "--device"),
        (&["--imgsz", "320"], "--imgsz"),
        (&["--kv-dtype", "q8_0"], "--kv-dtype"),
        (&["--ubatch", "64"], "--ubatch"),
        (&["--flash-attn"], "--flash-attn"),
        (&["--swa-full"], "--swa-full"),
        (&["--no-kv-unified"], "--no-kv-unified"),
        (&["--gpu-layers", "3"], "--gpu-layers"),
        (&["--input", "tokens:1=256"], "--input"),
        (&["--dtype", "q4_k_m"], "f32, f16 and bf16"),
        (&["--train", "--dtype", "f16"], "--precision"),
        (&["--train", "--gpus", "2"], "--gpus"),
    ] {
        let ran = run(&python, &[&MODEL[..], flags].concat())?;
        let said = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains("--exact") && said.contains(part), "{flags:?}: {said}");
        assert!(ran.stdout.is_empty() && !python.with_file_name("python3.words").exists());
    }
    let ran = run(&python, &[&MODEL[..], &["--dtype", "bf16"]].concat())?;
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let asked = fs::read_to_string(python.with_file_name("python3.words"))?;
    assert!(asked.trim().ends_with("--batch 1 --dtype bf16"), "{asked}");
    Ok(())
}

#[test]
fn what_is_missing_is_named() -> Result {
    let missing =
        python("missing", r#"{"unavailable": "PyTorch is not installed: pip install torch"}"#, 3)?;
    let broken = python("broken", "no JSON", 1)?;
    let wrong = python("wrong", r#"{"error": "ValueError: config.json names no model_type"}"#, 2)?;
    let nowhere = PathBuf::from("/nowhere/python3");
    for (python, part) in [
        (&missing, "--exact is not available: PyTorch is not installed: pip install torch"),
        (&broken, "pip install torch transformers; pip install . in a checkout"),
        (&wrong, "names no model_type"),
        (&nowhere, "PLIMSOLL_PYTHON"),
    ] {
        let ran = run(python, &MODEL)?;
        assert_eq!(ran.status.code(), Some(2));
        assert!(text(&ran.stderr).contains(part), "{part}: {}", text(&ran.stderr));
        assert!(ran.stdout.is_empty());
    }
    let ran = run(&nowhere, &["estimate", "some-model", "--exact"])?;
    assert!(text(&ran.stderr).contains("add --engine pytorch"), "{}", text(&ran.stderr));
    Ok(())
}
