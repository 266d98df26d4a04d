//! `plimsoll chunk` as a user meets it.

#[expect(dead_code, reason = "recordings are for other verbs")]
mod common;
#[path = "common/driver.rs"]
mod driver;

use common::{Result, complaint, json, plimsoll, run, text};
use driver::fake_cuda;
use serde_json::Value;

const PLAN: [&str; 7] = ["chunk", "--items", "64", "--item-bytes", "134MiB", "--available", "3GiB"];

#[test]
fn a_plan_has_every_field() -> Result {
    let plan = json(&PLAN, 0)?;
    assert_eq!(plan["num_chunks"], 4);
    assert_eq!(plan["chunk_size"], 16);
    assert_eq!(plan["last_chunk_size"], 16);
    assert_eq!(plan["memory_per_chunk_bytes"], 16 * (134u64 << 20));
    assert_eq!(plan["available_bytes"], 3u64 << 30);
    assert_eq!(plan["available_source"], "given");
    assert_eq!(plan["safety"], 0.7);
    assert_eq!(plan["fits"], true);
    let page = text(&run(&PLAN)?.stdout);
    assert!(page.starts_with("4 chunks of 16 items, 2.09 GiB a chunk\n"), "{page}");
    assert!(page.contains("available     3.00 GiB  given"), "{page}");
    Ok(())
}

#[test]
fn flags_work_in_snake_case_and_change_the_plan() -> Result {
    let words = [
        "chunk",
        "--items",
        "1000",
        "--item_bytes",
        "64MiB",
        "--fixed_bytes=3GiB",
        "--available",
        "8GiB",
    ];
    assert_eq!(json(&words, 0)?["chunk_size"], 41);
    let all = json(&[&words[..], &["--safety", "1"]].concat(), 0)?;
    assert_eq!(all["chunk_size"], 80);
    assert_eq!(all["last_chunk_size"], 40);
    Ok(())
}

#[test]
fn what_is_available_is_read_where_it_is_not_given() -> Result {
    if !cfg!(target_os = "linux") {
        println!("skipped: no /proc/meminfo here");
        return Ok(());
    }
    let plan = json(&["chunk", "--items", "3", "--item-bytes", "1"], 0)?;
    let source = plan["available_source"].as_str().ok_or("no source")?;
    assert!(source.starts_with("sampled: "), "{source}");
    assert!(plan["available_bytes"].as_u64() > Some(0));
    assert_eq!(plan["device"], "cpu");
    Ok(())
}

/// What a GPU has counts for a plan on it: here a driver whose device is made up.
#[test]
#[cfg(target_os = "linux")]
fn a_plan_for_a_gpu_is_made_from_what_it_has() -> Result {
    let driver = fake_cuda()?;
    let answer = |words: &[&str]| -> Result<Value> {
        let ran = plimsoll(&[words, &["--json"]].concat())
            .env("LD_LIBRARY_PATH", driver.path())
            .output()?;
        assert!(ran.status.success(), "{words:?}: {}", text(&ran.stderr));
        Ok(serde_json::from_slice(&ran.stdout)?)
    };
    let told = answer(&["chunk", "--items", "3", "--item-bytes", "1", "--device", "cuda:0"])?;
    assert_eq!(told["device"], "cuda:0");
    assert_eq!(told["available_source"], "sampled: what the device says is free");
    let free = told["available_bytes"].as_u64().ok_or("no figure")?;
    let half = (free / 2).to_string();
    let plan = answer(&["chunk", "--items", "3", "--item-bytes", &half, "--device", "cuda:0"])?;
    assert_eq!((&plan["num_chunks"], &plan["chunk_size"]), (&3.into(), &1.into()), "{plan}");
    let words = ["cost", "--batch", "64", "--grid", "32,32,32", "--device", "cuda:0"];
    let cost = answer(&words)?;
    let plan = &cost["memory"]["plan"];
    assert_eq!((&plan["device"], &plan["available_bytes"]), (&"cuda:0".into(), &free.into()));
    assert_eq!(plan["fits"], true, "{plan}");
    Ok(())
}

#[test]
fn a_device_that_is_not_here_is_named_with_the_remedy() -> Result {
    let ran = run(&["chunk", "--items", "3", "--item-bytes", "1", "--device", "rocm:99"])?;
    assert_eq!(ran.status.code(), Some(3));
    let said = text(&ran.stderr);
    assert!(said.contains("rocm:99") && said.contains("--available SIZE"), "{said}");
    let complaint = complaint(&["chunk", "--items", "3", "--item-bytes", "1", "--device", "gpu"])?;
    assert!(complaint.contains("cuda:N"), "{complaint}");
    Ok(())
}

#[test]
fn an_item_that_never_fits_is_the_answer_no() -> Result {
    let words = ["chunk", "--items", "64", "--item-bytes", "3GiB", "--available", "3GiB"];
    let plan = json(&words, 1)?;
    assert_eq!(plan["fits"], false);
    assert_eq!(plan["num_chunks"], Value::Null);
    let page = text(&run(&words)?.stdout);
    assert!(page.contains("can never fit") && page.contains('–'), "{page}");
    Ok(())
}

#[test]
fn bad_input_names_the_flag() -> Result {
    let with = |flag: &'static str, value: &'static str| [&PLAN[..], &[flag, value]].concat();
    for (words, flag) in [
        (vec!["chunk", "--items", "x", "--item-bytes", "1"], "--items"),
        (vec!["chunk", "--items", "1", "--item-bytes", "8parsec"], "--item-bytes"),
        (vec!["chunk", "--items", "1"], "--item-bytes"),
        (vec!["chunk", "--items", "-1", "--item-bytes", "1"], "-1"),
        (with("--safety", "0"), "--safety"),
        (with("--safety", "1.1"), "--safety"),
        (with("--safety", "NaN"), "--safety"),
        (with("--fixed-bytes", "many"), "--fixed-bytes"),
        (vec!["chunk", "--items", "1", "--item-bytes", "1", "--available", "?"], "--available"),
    ] {
        let message = complaint(&words)?;
        assert!(message.contains(flag), "{words:?}: {message}");
    }
    Ok(())
}
