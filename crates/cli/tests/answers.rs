//! The bare answer of every verb, and slips of units, which get a word and not a guess.

#[expect(dead_code, reason = "each test file uses its own part")]
mod common;

use std::path::Path;

use common::{Result, complaint, plimsoll, run, text};

fn examples() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples")
}

/// `-q` prints what was asked for and nothing about it: no heading, no table, no advice.
#[test]
fn every_verb_has_a_bare_answer() -> Result {
    let folder = tempfile::tempdir()?;
    let example = |name: &str| examples().join(name).display().to_string();
    let [pt, csv, ply] = ["small8.pt", "training.csv", "helix.ply"].map(example);
    let llm = "estimate llm --hidden 4096 --intermediate 14336 --layers 32 --vocab 32000 \
               --heads 32 --kv-heads 8 --context 4096";
    let bench = "bench --engine echo --model0 echo --imgsz 96 --max-frames 3 \
                 --source synthetic:size=64x64 --run-name";
    let voxels = "--grid 4,4,4 --voxel-size 1 --origin 0,0,0 --backend host --out helix.npy";
    let cases: [(String, i32, &[&str]); 16] = [
        ("chunk --items 64 --item-bytes 134MiB --available 3GiB".into(), 0, &["4 chunks of 16"]),
        ("chunk --items 1 --item-bytes 9GiB --available 3GiB".into(), 1, &["9.00 GiB"]),
        (llm.into(), 0, &["14.28 GiB"]),
        (format!("{llm} --limit 8GiB"), 1, &["14.28 GiB does not fit into 8.00 GiB"]),
        (format!("estimate {pt} --limit 8GiB"), 0, &["fits into 8.00 GiB"]),
        ("cost --throughput 12000 --price 15000".into(), 0, &["a million items"]),
        ("cost --batch 64 --points 100000 --grid 128,128,128".into(), 0, &["iB"]),
        ("doctor".into(), 0, &["host"]),
        ("doctor --require host,metal,rocm".into(), 1, &["host", "missing: metal rocm"]),
        ("report --device cpu".into(), 0, &["used"]),
        ("monitor --once --interval 50ms".into(), 0, &["used"]),
        (format!("replay {csv}"), 0, &["an event, 116.00 MiB reserved"]),
        (format!("export {pt} --to small8.onnx --imgsz 64"), 0, &["small8.onnx"]),
        (format!("voxelize {ply} {voxels}"), 0, &["helix.npy"]),
        (format!("{bench} a"), 0, &["slot", "yolo11n_rgb", "yolo11n_thermal", "slot 1", "Report"]),
        (format!("{bench} b"), 0, &["slot", "yolo11n_rgb", "yolo11n_thermal", "slot 1", "Report"]),
    ];
    let bare = |line: &str| -> Result<(Option<i32>, String, String)> {
        let words: Vec<&str> = line.split_whitespace().chain(["-q"]).collect();
        let ran = plimsoll(&words).current_dir(folder.path()).output()?;
        Ok((ran.status.code(), text(&ran.stdout), text(&ran.stderr)))
    };
    for (line, code, parts) in cases {
        let (ended, said, errors) = bare(&line)?;
        assert_eq!((ended, errors.as_str()), (Some(code), ""), "{line}: {said}");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), parts.len(), "{line}:\n{said}");
        for (shown, part) in lines.iter().zip(parts) {
            assert!(shown.contains(part), "{line}: no {part:?} in\n{said}");
        }
    }
    let (_, said, _) = bare("compare outputs/a outputs/b --tolerance 1000%")?;
    assert_eq!(said.lines().count(), 2, "{said}");
    let log = examples().join("tegrastats.log");
    let (_, said, _) = bare(&format!("monitor --replay {}", log.display()))?;
    assert_eq!(said.lines().count(), 97, "a header and the samples: {said}");
    Ok(())
}

#[test]
fn slips_of_units_are_refused_with_what_to_say() -> Result {
    let llm =
        "estimate llm --hidden 1 --intermediate 1 --layers 1 --vocab 1 --heads 1 --kv-heads 1";
    for (line, word) in [
        ("monitor --once --alert-free 20", "say 20% or 20GiB"),
        ("monitor --once --alert-free 0.2", "say 0.2% or 0.2GiB"),
        ("compare a b --tolerance 5", "say 5%, or 500% if you mean it"),
        ("compare a b --tolerance 1", "say 1%, or 100% if you mean it"),
        ("bench --conf 25", "--conf must be from 0 to 1; 25 % is 0.25"),
        ("bench --iou 45", "--iou must be from 0 to 1; 45 % is 0.45"),
        ("estimate a.gguf --context 4k", "in digits: 4096, or 4000"),
        ("estimate a.gguf --context 0", "such as 4096"),
        (&format!("{llm} --context 32K"), "in digits: 32768, or 32000"),
        ("estimate a.gguf --limit 8", "say 8GiB or 8MiB"),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let said = complaint(&words)?;
        assert!(said.contains(word), "{line}: {said}");
    }
    Ok(())
}

#[test]
fn a_config_alone_is_told_from_a_model() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("config.json");
    std::fs::write(&path, r#"{"hidden_size": 4096, "num_hidden_layers": 32}"#)?;
    let ran = run(&["estimate", &path.display().to_string()])?;
    assert_eq!(ran.status.code(), Some(2));
    let said = text(&ran.stderr);
    assert!(said.contains("give the folder") && said.contains("estimate llm"), "{said}");
    Ok(())
}
