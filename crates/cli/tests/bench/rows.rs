//! `plimsoll bench MODEL… [SOURCE…]`: a row for each model and engine.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::common::{Result, complaint, json, run, text};
use crate::{place, report};

fn fixture(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join(name).display().to_string()
}

/// A folder of small pictures.
fn pictures(folder: &Path, count: u8) -> Result<String> {
    let place = folder.join("frames");
    fs::create_dir_all(&place)?;
    for number in 0..count {
        // A portable bitmap of 24 bits, 32 × 32.
        let mut bytes = b"BM".to_vec();
        for value in [54 + 3 * 32 * 32, 0, 54, 40, 32, 32u32] {
            bytes.extend(value.to_le_bytes());
        }
        bytes.extend([1, 0, 24, 0]);
        bytes.extend([0; 24]);
        bytes.resize(54 + 3 * 32 * 32, number * 20);
        fs::write(place.join(format!("{number}.bmp")), bytes)?;
    }
    Ok(place.display().to_string())
}

fn rows(record: &Value) -> Vec<&Value> {
    record["models"].as_array().map(|all| all.iter().collect()).unwrap_or_default()
}

#[test]
fn models_and_engines_give_a_row_each_over_the_same_frames() -> Result {
    let folder = tempfile::tempdir()?;
    let (dir, frames) = (place(&folder)?, pictures(folder.path(), 3)?);
    let models = ["models/tests/fixtures/small11.pt", "../docs/examples/small8.pt"];
    let models = models.map(fixture);
    let found = json(
        &[
            "bench",
            &models[0],
            &frames,
            &models[1],
            "--engine",
            "rten,auto",
            "--imgsz",
            "64",
            "--warmup",
            "1",
            "--output-dir",
            &dir,
            "--run-name",
            "a",
        ],
        0,
    )?;
    assert_eq!(found["schema_version"], "2.1");
    assert_eq!(
        (&found["config"]["mode"], &found["config"]["engine"]),
        (&"rows".into(), &"rten,auto".into())
    );
    let names: Vec<&str> = rows(&found).iter().filter_map(|row| row["row"].as_str()).collect();
    let want = ["small11.pt, rten", "small11.pt, auto", "small8.pt, rten", "small8.pt, auto"];
    assert_eq!(names, want);
    for (number, row) in rows(&found).into_iter().enumerate() {
        assert_eq!((&row["slot"], &row["slot_name"]), (&number.into(), &Value::Null));
        assert_eq!(row["status"], "completed", "{row}");
        assert_eq!(row["performance"]["frames"], 3, "all rows see all frames");
        let engine = row["model_info"]["engine"].as_str();
        assert!(number % 2 == 1 || engine == Some("rten"), "{row}");
    }
    assert_eq!(found["input_source"]["streams"][0]["slots"], serde_json::json!([0, 1, 2, 3]));
    assert_eq!(report(&folder.path().join("a"))?, found);
    let lines = fs::read_to_string(folder.path().join("a/summary.csv"))?;
    assert_eq!(lines.lines().count(), 5, "{lines}");
    assert!(lines.contains("\"small8.pt, rten\",") && lines.contains(",64x64,3,"), "{lines}");
    let html = fs::read_to_string(folder.path().join("a/report.html"))?;
    assert!(html.contains("<table class=\"results\">") && html.contains("small8.pt, rten"));
    // Rows are compared by their names.
    let run_folder = folder.path().join("a").display().to_string();
    let both = json(&["compare", &run_folder, &run_folder], 0)?;
    assert_eq!(both["slots"].as_array().map(Vec::len), Some(4));
    assert_eq!(both["slots"][3]["label"], "small8.pt, auto");
    Ok(())
}

#[test]
fn everything_but_a_model_has_a_default() -> Result {
    let folder = tempfile::tempdir()?;
    let model = fixture("models/tests/fixtures/small11.pt");
    let flags =
        ["bench", &model, "--engine", "rten", "--imgsz", "64", "--max-frames", "2", "--json"];
    let ran = crate::plimsoll(&flags).current_dir(folder.path()).output()?;
    assert!(ran.status.success(), "{}", text(&ran.stderr));
    let found: Value = serde_json::from_slice(&ran.stdout)?;
    assert_eq!(found["input_source"]["streams"][0]["kind"], "synthetic");
    assert_eq!(rows(&found).len(), 1);
    // The drawn scenes are not what the model was made for.
    assert_eq!(rows(&found)[0]["accuracy"], Value::Null);
    assert!(!rows(&found)[0]["unknown"]["accuracy"].is_null());
    // The link to the last run.
    let latest = folder.path().join("outputs/latest");
    assert_eq!(report(&latest)?, found);
    let name = found["metadata"]["run_name"].as_str().ok_or("no name")?;
    assert_eq!(fs::read_link(&latest)?, PathBuf::from(name));
    Ok(())
}

#[test]
fn latest_leads_to_the_last_run_and_replaces_nothing_else() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder)?;
    let echo = |name: &str| {
        run(&[
            "bench",
            "x.onnx",
            "synthetic:size=64x64",
            "--engine=echo",
            "--imgsz=96",
            "--max-frames=2",
            "--quiet",
            "--output-dir",
            &dir,
            "--run-name",
            name,
        ])
    };
    let latest = folder.path().join("latest");
    for name in ["one", "two"] {
        let ran = echo(name)?;
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        let shown = text(&ran.stdout);
        assert!(shown.contains(&format!("{name}/report.html")), "{shown}");
        assert_eq!(fs::read_link(&latest)?, PathBuf::from(name));
    }
    assert!(text(&echo("latest")?.stderr).contains("link to the last run"));
    fs::remove_file(&latest)?;
    fs::create_dir(&latest)?;
    assert!(echo("three")?.status.success(), "a folder of that name stays");
    assert!(latest.is_dir() && !latest.is_symlink());
    Ok(())
}

#[test]
fn a_short_source_starts_over_only_when_asked() -> Result {
    let folder = tempfile::tempdir()?;
    let (dir, frames) = (place(&folder)?, pictures(folder.path(), 3)?);
    let measured = |more: &[&str]| -> Result<(Value, Value)> {
        let flags = [
            "bench",
            "x.onnx",
            &frames,
            "--engine",
            "echo",
            "--imgsz",
            "96",
            "--max-frames",
            "8",
            "--output-dir",
            &dir,
        ];
        let found = json(&[&flags[..], more].concat(), 0)?;
        Ok((found["models"][0]["performance"]["frames"].clone(), found["doubts"].clone()))
    };
    let early = |doubts: &Value| doubts.to_string().contains("source_ended_early");
    let (frames, doubts) = measured(&[])?;
    assert!(frames == 3 && early(&doubts), "{frames} {doubts}");
    let (frames, doubts) = measured(&["--loop"])?;
    assert!(frames == 8 && !early(&doubts), "{frames} {doubts}");
    Ok(())
}

#[test]
fn several_sources_follow_each_other() -> Result {
    let folder = tempfile::tempdir()?;
    let (dir, frames) = (place(&folder)?, pictures(folder.path(), 4)?);
    let one = Path::new(&frames).join("1.bmp").display().to_string();
    let found = json(
        &[
            "bench",
            "x.onnx",
            &one,
            &frames,
            "synthetic:frames=2,size=64x64",
            "--engine",
            "echo",
            "--imgsz",
            "96",
            "--output-dir",
            &dir,
        ],
        0,
    )?;
    assert_eq!(found["models"][0]["performance"]["frames"], 1 + 4 + 2);
    Ok(())
}

#[test]
fn what_cannot_be_told_apart_or_joined_is_refused_before_anything_starts() -> Result {
    let folder = tempfile::tempdir()?;
    let (dir, frames) = (place(&folder)?, pictures(folder.path(), 1)?);
    let notes = folder.path().join("notes.txt");
    fs::write(&notes, "hello")?;
    let notes = notes.display().to_string();
    let before = fs::read_dir(folder.path())?.count();
    for (words, says) in [
        (&[notes.as_str()][..], "cannot be told whether this is a model or a source"),
        (&["nowhere"], "no such file or folder"),
        (&["nowhere.onnx"], "nowhere.onnx"),
        (&[&frames], "no model was named"),
        (&["a.onnx", "--model0", "b.onnx"], "--model0 is of the form with two slots"),
        (&["a.onnx", "--mode", "rgb"], "--mode is of the form with two slots"),
        (&["a.onnx", "--parallel", "--engine=echo"], "--parallel is for the two slots"),
        (&["--engine", "ort,rten"], "several engines need a model"),
        (&["a.onnx", "--engine", "ort,onnx"], "rten"),
        (&["a.onnx", "rtsp://127.0.0.1/x", &frames, "--engine=echo"], "must be the only source"),
    ] {
        let said = complaint(&[&["bench", "--output-dir", &dir][..], words].concat())?;
        assert!(said.contains(says), "{words:?}: {said}");
    }
    assert_eq!(fs::read_dir(folder.path())?.count(), before, "nothing is written");
    Ok(())
}

/// A row that fails does not stop the others.
#[test]
fn a_row_that_fails_is_said_and_the_others_go_on() -> Result {
    let folder = tempfile::tempdir()?;
    let (dir, frames) = (place(&folder)?, pictures(folder.path(), 2)?);
    let broken = folder.path().join("broken.onnx");
    fs::write(&broken, [&[0x3a, 5, 0x5a, 3][..], b"\x0a\x01x\x42\x02\x10\x11"].concat())?;
    let (broken, good) = (broken.display().to_string(), fixture("../docs/examples/small8.pt"));
    let flags = ["--engine", "rten", "--output-dir", &dir, "--run-name", "a"];
    let ran = run(&[&["bench", &broken, &good, &frames][..], &flags].concat())?;
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let found = report(&folder.path().join("a"))?;
    let statuses: Vec<&Value> = rows(&found).iter().map(|row| &row["status"]).collect();
    assert_eq!(statuses, ["failed", "completed"]);
    assert!(text(&ran.stdout).contains("broken.onnx failed: "), "{}", text(&ran.stdout));
    Ok(())
}

/// A page of a comparison, which is not written over a report.
#[test]
fn a_comparison_is_a_table_and_a_page() -> Result {
    let folder = tempfile::tempdir()?;
    let dir = place(&folder)?;
    for name in ["a", "b"] {
        let flags = ["--engine=echo", "--imgsz=96", "--max-frames=40", "--quiet"];
        let words =
            ["bench", "x.onnx", "synthetic:size=64x64", "--output-dir", &dir, "--run-name", name];
        assert!(run(&[&words[..], &flags].concat())?.status.success());
    }
    let [a, b] = ["a", "b"].map(|name| folder.path().join(name).display().to_string());
    let page = folder.path().join("compare.html").display().to_string();
    let ran = run(&["compare", &a, &b, "--tolerance", "1000%", "--html", &page])?;
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));
    let shown = text(&ran.stdout);
    for part in [
        "first",
        "second",
        "change",
        "fps",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "mAP",
        "peak memory",
        "energy a frame",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let html = fs::read_to_string(&page)?;
    assert!(html.contains("a against b") && html.contains("x.onnx") && !html.contains("http://"));
    let over = format!("{a}/report.json");
    assert!(complaint(&["compare", &a, &b, "--html", &over])?.contains("same file"));
    // A report of the first form is refused, and says what to do.
    fs::write(&over, "{\"schema_version\": \"1.0\", \"models\": []}")?;
    let said = complaint(&["compare", &a, &b])?;
    assert!(said.contains("form 1.0") && said.contains("measure again"), "{said}");
    Ok(())
}
