//! `plimsoll cost` as a user meets it.

#[expect(dead_code, reason = "recordings are for other verbs")]
mod common;

use std::fs;

use common::{Result, complaint, json, run, text};
use serde_json::{Value, json as value};

fn near(got: &Value, want: f64) -> bool {
    got.as_f64().is_some_and(|got| (got - want).abs() <= want.abs() * 1e-9)
}

#[test]
fn a_price_is_spread_over_its_years() -> Result {
    let words = [
        "cost",
        "--throughput",
        "12000",
        "--price",
        "15000",
        "--lifetime",
        "3",
        "--power",
        "400",
        "--electricity",
        "0.15",
        "--utilisation",
        "0.5",
    ];
    let cost = json(&words, 0)?;
    let (first, items) = (&cost["first"], 12_000.0 * 86_400.0 * 0.5);
    assert_eq!(first["throughput_source"], "given");
    assert!(near(&first["cost"]["items_per_day"], items));
    let electricity = 0.4 * 24.0 * 365.0 * 0.5 * 0.15;
    assert!(near(&first["cost"]["electricity_per_year"], electricity));
    assert!(near(&first["cost"]["per_year"], 5000.0 + electricity));
    assert!(near(&first["cost"]["per_day"], (5000.0 + electricity) / 365.0));
    let million = (5000.0 + electricity) / (items * 365.0) * 1e6;
    assert!(near(&first["cost"]["per_million_items"], million), "{cost}");
    let without = json(&["cost", "--throughput", "1", "--price", "3"], 0)?;
    assert_eq!(without["first"]["cost"]["electricity_per_year"], Value::Null);
    let page = text(&run(&["cost", "--throughput", "1", "--price", "3"])?.stdout);
    assert!(page.contains("Electricity is not counted"), "{page}");
    Ok(())
}

#[test]
fn a_record_of_voxelize_gives_the_throughput() -> Result {
    let folder = tempfile::tempdir()?;
    let (cloud, record) = (folder.path().join("a.bin"), folder.path().join("record.json"));
    fs::write(&cloud, [0; 32])?;
    let name = |path: &std::path::Path| path.display().to_string();
    let (input, out) = (name(&cloud), name(&folder.path().join("out.npy")));
    let words = [
        "voxelize",
        &input,
        "--grid",
        "2,2,2",
        "--voxel-size",
        "1",
        "--origin",
        "0,0,0",
        "--backend",
        "host",
        "--out",
        &out,
    ];
    let made = json(&words, 0)?;
    fs::write(&record, made.to_string())?;
    let cost = json(&["cost", "--record", &name(&record), "--price", "100"], 0)?;
    assert_eq!(cost["first"]["throughput_per_second"], made["clouds_per_second"]);
    let source = cost["first"]["throughput_source"].as_str().unwrap_or_default();
    assert!(source.starts_with("recorded: clouds a second of "), "{source}");
    Ok(())
}

/// Slots that run at once add up; slots in turn share the time.
#[test]
fn a_report_of_bench_gives_the_throughput() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("report.json");
    let slot = |frames: u32, wall: f64| value!({"performance": {"frames": frames, "wall_s": wall, "fps": f64::from(frames) / wall}});
    for (parallel, want) in [(true, 150.0), (false, 400.0 / 6.0)] {
        let report = value!({
            "config": {"parallel": parallel},
            "models": [slot(200, 2.0), slot(200, 4.0), {"performance": null}],
        });
        fs::write(&path, report.to_string())?;
        let cost = json(&["cost", "--record", &path.display().to_string(), "--price", "1"], 0)?;
        assert!(near(&cost["first"]["throughput_per_second"], want), "{cost}");
    }
    Ok(())
}

#[test]
fn two_gpus_break_even_where_the_dearer_saves_power() -> Result {
    let words = [
        "cost",
        "--throughput",
        "2000",
        "--price",
        "20000",
        "--power",
        "500",
        "--electricity",
        "0.2",
        "--other_throughput",
        "1000",
        "--other-price",
        "10000",
        "--other-power",
        "500",
    ];
    let cost = json(&words, 0)?;
    let per_item = 0.5 / 3600.0 * 0.2;
    let items = 10_000.0 / (per_item / 1000.0 - per_item / 2000.0);
    assert!(near(&cost["break_even"]["items"], items), "{cost}");
    assert!(near(&cost["break_even"]["days"], items / (2000.0 * 86_400.0)));
    assert_eq!(cost["break_even"]["cheaper"], "first");
    let page = text(&run(&words)?.stdout);
    assert!(page.contains("4167 days of the first, which is past its years"), "{page}");
    let same = ["--throughput", "9", "--price", "5", "--other-throughput", "9", "--other-price"];
    let page = text(&run(&[&["cost"], &same[..], &["5"]].concat())?.stdout);
    assert!(page.contains("both cost the same from the first item on"), "{page}");
    Ok(())
}

#[test]
fn the_smallest_memory_has_the_margin() -> Result {
    let cost = json(&["cost", "--batch", "64", "--points", "100000", "--grid", "128,128,128"], 0)?;
    let memory = &cost["memory"];
    let points = 64u64 * 100_000 * 12;
    let output = 64u64 * 128 * 128 * 128 * 4;
    assert_eq!(memory["points_bytes"], points);
    assert_eq!(memory["output_bytes"], output);
    let required = memory["required_bytes"].as_u64().unwrap_or_default();
    assert!(required >= points + output);
    let smallest = memory["smallest_bytes"].as_u64().unwrap_or_default();
    assert!((smallest as f64 * 0.7 - required as f64).abs() < 1.0, "{cost}");
    assert_eq!(memory["sold_gb"], 8);
    Ok(())
}

/// The documents' tables from the rule, beside what they print, and what was put right.
#[test]
fn the_documents_tables_are_corrected_and_it_is_said() -> Result {
    let tables = &json(&["cost", "--table"], 0)?["tables"];
    let bytes: Vec<_> = tables["grids"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| row["f32_bytes"].clone())
        .collect();
    assert_eq!(bytes, [64u64, 128, 256, 512].map(|side| Value::from(side.pow(3) * 4)));
    assert_eq!(tables["corrections"].as_array().map(Vec::len), Some(4));
    let documents: Vec<_> = tables["grids"].as_array().into_iter().flatten().collect();
    assert_eq!(documents.last().map(|row| &row["documents"]), Some(&"536 MB".into()));
    let page = text(&run(&["cost", "--table", "--verbose"])?.stdout);
    for word in ["536.9 MB", "print 536", "whole price by one day's output", "1,491 a year less"] {
        assert!(page.contains(word), "{word}: {page}");
    }
    // Whoever has never seen the documents reads nothing of them.
    let page = text(&run(&["cost", "--table"])?.stdout);
    assert!(page.contains("536.9 MB") && !page.contains("documents"), "{page}");
    Ok(())
}

#[test]
fn what_is_wrong_is_said() -> Result {
    let folder = tempfile::tempdir()?;
    let (text_file, other) = (folder.path().join("a.json"), folder.path().join("b.json"));
    fs::write(&text_file, "not JSON")?;
    fs::write(&other, "{\"models\": []}")?;
    let (text_file, other) = (text_file.display().to_string(), other.display().to_string());
    let both = "cost --throughput 2 --price 1 --electricity 1 --other-throughput 1 --other-price 2";
    let both: Vec<&str> = both.split(' ').collect();
    for (words, word) in [
        (&["cost"][..], "nothing to work out"),
        (&["cost", "--price", "1"], "give --throughput or --record"),
        (&["cost", "--throughput", "1"], "without --price"),
        (&["cost", "--throughput", "0", "--price", "1"], "above 0"),
        (&["cost", "--throughput", "1", "--price", "1", "--utilisation", "1.5"], "at most 1"),
        (
            &["cost", "--throughput", "1", "--price", "1", "--other-price", "1"],
            "--other-throughput",
        ),
        (&["cost", "--batch", "4"], "--grid"),
        (&["cost", "--batch", "0", "--grid", "1,1,1"], "0 is not in 1.."),
        (&[&both[..], &["--power", "400"]].concat(), "give --other-power, too"),
        (&[&both[..], &["--other-power", "300"]].concat(), "give --power, too"),
        (&["cost", "--record", &text_file, "--price", "1"], "is not JSON"),
        (&["cost", "--record", &other, "--price", "1"], "has no throughput"),
        (&["cost", "--record", "/nowhere.json", "--price", "1"], "cannot read"),
    ] {
        let error = complaint(words)?;
        assert!(error.contains(word), "{words:?}: {error}");
    }
    Ok(())
}
