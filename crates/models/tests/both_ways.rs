//! Estimates from files alone against the model's own program, which agreed with an H200
//! (docs/results), row by row: `scripts/estimates-gpu/exact-rows.jsonl`.
//!
//! Ranges come from here. Of each family and job (running, training, adapters) the largest error in
//! each direction times 1.5, at least 1 %, is how far the range reaches; a family with fewer than
//! three rows, or one whose range would reach more than 5 %, is not checked, and neither are
//! optimizers, precisions and checkpointing that none of its rows has. For one of several GPUs, which
//! ran on an H200 (`shard-rows-h200.jsonl`), a kind of sharing stands for a family. The table is
//! `src/families/checked.tsv`; with `PLIMSOLL_WRITE_CHECKED=1` this test writes it.

#![expect(clippy::panic, clippy::unwrap_used, reason = "helpers of a test, which may fail loudly")]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_models::terms::{EstimateRequest, Runner, Terms, TrainingRequest, estimate};
use serde_json::{Value, json};

const MIB: f64 = 1_048_576.0;
/// Thousandths: the narrowest and the widest reach of a range.
const NARROWEST: u64 = 10;
const WIDEST: u64 = 50;
/// What the largest error that was seen is multiplied by.
const ROOM: f64 = 1.5;
const FEWEST: usize = 3;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn rows(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(root().join("scripts/estimates-gpu").join(name)).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn text<'a>(row: &'a Value, key: &str) -> Option<&'a str> {
    row.get(key)?.as_str()
}

fn number(row: &Value, key: &str) -> Option<u64> {
    row.get(key)?.as_u64()
}

/// The model's folder: its configuration, and a file of weights that is a header and a hole.
fn write_model(folder: &Path, row: &Value) {
    let wide = text(row, "dtype") == Some("float32")
        || matches!(text(row, "precision"), Some("fp32" | "amp"));
    let (kind, width) = match text(row, "dtype") {
        Some("float16") => ("F16", 2),
        _ if wide => ("F32", 4),
        _ => ("BF16", 2),
    };
    fs::write(folder.join("config.json"), row["config"].to_string()).unwrap();
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for run in row["tensors"].as_array().unwrap() {
        for _ in 0..run[0].as_u64().unwrap() {
            for count in run[1].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()) {
                let size = count * width;
                let tensor =
                    json!({"dtype": kind, "shape": [count], "data_offsets": [end, end + size]});
                header.insert(format!("t{:06}", header.len()), tensor);
                end += size;
            }
        }
    }
    let header = Value::Object(header).to_string();
    let path = folder.join("model.safetensors");
    fs::write(&path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat())
        .unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(8 + header.len() as u64 + end).unwrap();
}

fn request(row: &Value) -> EstimateRequest {
    let mut request = EstimateRequest::default();
    request.runner = Some(Runner::PyTorch);
    request.on_gpu = Some(true);
    request.batch = number(row, "batch").unwrap();
    request.context = number(row, "tokens");
    if text(row, "kind") == Some("train") {
        let mut train = TrainingRequest::default();
        train.optimizer = text(row, "optimizer").unwrap().parse().unwrap();
        train.precision = text(row, "precision").unwrap().parse().unwrap();
        train.checkpointing = row.get("checkpointing") == Some(&Value::Bool(true));
        train.lora = number(row, "lora");
        train.base_dtype = text(row, "base_dtype").map(|word| word.parse().unwrap());
        train.grad_accumulation = number(row, "grad_accumulation").unwrap_or(1);
        train.gpus = number(row, "gpus").unwrap_or(1);
        train.shard =
            text(row, "shard").map_or_else(Default::default, |word| word.parse().unwrap());
        request.train = Some(train);
    }
    request
}

fn estimated(row: &Value) -> Terms {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), row);
    estimate(folder.path(), &request(row))
        .unwrap_or_else(|error| panic!("{}: {error}", row["name"]))
}

fn job(row: &Value) -> &'static str {
    match (text(row, "kind"), number(row, "lora")) {
        (Some("infer"), _) => "run",
        (_, None) => "train",
        (_, Some(_)) if text(row, "base_dtype") == Some("int8") => "adapt-int8",
        (_, Some(_)) => "adapt",
    }
}

/// The rows of a family and job.
#[derive(Default)]
struct FamilyRows {
    /// The true value over the estimate, less one.
    errors: Vec<f64>,
    /// Optimizers, precisions and checkpointing.
    tried: BTreeSet<String>,
}

impl FamilyRows {
    fn add(&mut self, row: &Value, off: f64) {
        self.errors.push(off);
        let words = ["optimizer", "precision"].into_iter().filter_map(|key| text(row, key));
        let checkpoints = row.get("checkpointing") == Some(&Value::Bool(true));
        let words = words.chain(checkpoints.then_some("checkpointing"));
        self.tried.extend(words.map(str::to_string));
    }
}

/// The table that rows make.
fn table(all: &BTreeMap<(&'static str, String), FamilyRows>) -> String {
    let mut table = String::from(
        "# job, family, rows, the reach of its range below and above in thousandths, and what was tried\n",
    );
    let reach = |worst: f64| ((worst * ROOM * 1000.0).ceil() as u64).max(NARROWEST);
    for ((job, family), FamilyRows { errors, tried }) in all {
        let above = reach(errors.iter().copied().fold(0.0, f64::max));
        let below = reach(errors.iter().map(|off| -off).fold(0.0, f64::max));
        if errors.len() >= FEWEST && above.max(below) <= WIDEST {
            let tried: Vec<&str> = tried.iter().map(String::as_str).collect();
            let (rows, tried) = (errors.len(), tried.join(","));
            writeln!(table, "{job}\t{family}\t{rows}\t{below}\t{above}\t{tried}").unwrap();
        }
    }
    table
}

#[test]
fn ranges_are_what_the_rows_say() {
    let mut families: BTreeMap<(&'static str, String), FamilyRows> = BTreeMap::new();
    let all = rows("exact-rows.jsonl");
    for row in &all {
        let terms = estimated(row);
        let held = terms.held.as_ref().unwrap();
        let truth = number(row, "device").or_else(|| number(row, "total")).unwrap() as f64;
        let off = truth / terms.total_bytes as f64 - 1.0;
        let over = |a: u64, key: &str| (a as f64 / number(row, key).unwrap() as f64 - 1.0) * 100.0;
        println!(
            "{:6} {:32} {:9.0} MiB, estimated {:+6.2} %, allocated {:+6.2} %, reserved {:+6.2} %",
            job(row),
            text(row, "name").unwrap(),
            truth / MIB,
            (1.0 / (1.0 + off) - 1.0) * 100.0,
            over(held.allocated, "allocated"),
            over(held.reserved, "reserved"),
        );
        let family = terms.family.clone().unwrap();
        families.entry((job(row), family)).or_default().add(row, off);
        // What is checked holds, and 25 % hold for everything.
        let range = &terms.range;
        let held = (range.low_bytes as f64..=range.high_bytes as f64).contains(&truth);
        assert!(held || writes(), "{} is at {truth}, outside of {range:?}", row["name"]);
    }
    for row in rows(SHARES) {
        let terms = estimated(&row);
        let reserved = terms.held.as_ref().unwrap().reserved;
        // What the driver takes besides was not measured and is taken as estimated.
        let truth = number(&row, "reserved").unwrap() + (terms.total_bytes - reserved);
        let off = truth as f64 / terms.total_bytes as f64 - 1.0;
        let shard = text(&row, "shard").unwrap().to_string();
        families.entry(("share", shard)).or_default().add(&row, off);
        let range = &terms.range;
        let held = (range.low_bytes..=range.high_bytes).contains(&truth);
        assert!(held || writes(), "{} is at {truth}, outside of {range:?}", row["name"]);
    }
    let path = root().join("crates/models/src/families/checked.tsv");
    let made = table(&families);
    if writes() {
        fs::write(&path, &made).unwrap();
    }
    let known = fs::read_to_string(&path).unwrap();
    assert_eq!(known, made, "run this test with PLIMSOLL_WRITE_CHECKED=1 and look at the change");
}

/// Rows of shares that ran on an H200.
const SHARES: &str = "shard-rows-h200.jsonl";

/// What one of several GPUs holds more or less than one alone, against PyTorch's fake process group
/// (`scripts/estimates-gpu/shards.py`).
#[test]
fn one_of_several_holds_what_the_fake_process_group_showed() {
    for row in rows("shard-rows.jsonl") {
        let mut alone = row.clone();
        alone["gpus"] = json!(1);
        let of = |row: &Value| estimated(row).held.unwrap();
        let (several, single) = (of(&row), of(&alone));
        let estimated = several.allocated as f64 - single.allocated as f64;
        let [held, one] = ["held", "alone"].map(|key| number(&row, key).unwrap() as f64);
        let off = (estimated - (held - one)) / held;
        println!(
            "{:30} alone {:6.1} MiB, of several {:6.1}, difference {:+7.1}, estimated {:+7.1}: {:+5.2} %; reserved {:.3}, alone {:.3}",
            text(&row, "name").unwrap(),
            one / MIB,
            held / MIB,
            (held - one) / MIB,
            estimated / MIB,
            off * 100.0,
            several.reserved as f64 / several.allocated as f64,
            single.reserved as f64 / single.allocated as f64,
        );
        // These hold some MiB more on the processor than on an H200, which is followed (the next test).
        let least = match text(&row, "name") {
            Some("llama fsdp2 4 checkpointing") => -0.035,
            Some("gpt2 fsdp2 8") => -0.025,
            _ => -0.02,
        };
        assert!((least..0.01).contains(&off), "{}: {off}", row["name"]);
    }
}

/// What one of several GPUs holds on an H200 with that group: what is allocated, and what PyTorch's
/// allocator reserves for it. Ranges follow from the latter (`ranges_are_what_the_rows_say`).
#[test]
fn one_of_several_holds_on_an_h200_what_is_estimated() {
    for row in rows(SHARES) {
        let found = estimated(&row).held.unwrap();
        let off = |guess: u64, key: &str| guess as f64 / number(&row, key).unwrap() as f64 - 1.0;
        let (allocated, reserved) = (off(found.allocated, "held"), off(found.reserved, "reserved"));
        println!(
            "{:28} allocated {:8.1} MiB, estimated {:8.1}: {:+5.2} %; reserved {:6.0}, estimated {:6.0}: {:+6.2} %",
            text(&row, "name").unwrap(),
            number(&row, "held").unwrap() as f64 / MIB,
            found.allocated as f64 / MIB,
            allocated * 100.0,
            number(&row, "reserved").unwrap() as f64 / MIB,
            found.reserved as f64 / MIB,
            reserved * 100.0,
        );
        assert!((-0.006..0.01).contains(&allocated), "{}: {allocated}", row["name"]);
    }
}

fn writes() -> bool {
    std::env::var_os("PLIMSOLL_WRITE_CHECKED").is_some()
}
