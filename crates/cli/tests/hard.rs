//! `plimsoll voxelize --hard` as a user meets it.

#[expect(dead_code, reason = "recordings and streams are for other verbs")]
mod common;

use std::fs;
use std::path::Path;

use common::{Result, complaint, json, run, text};

/// Six points: three in one voxel, one in another, one outside, one that is no point.
const POINTS: [[f32; 4]; 6] = [
    [2.5, 1.5, 0.5, 1.0],
    [0.5, 0.5, 0.5, 2.0],
    [0.75, 0.25, 0.5, 4.0],
    [0.25, 0.25, 0.25, 6.0],
    [9.0, 0.5, 0.5, 8.0],
    [f32::NAN, 0.5, 0.5, 16.0],
];
const HARD: [&str; 11] = [
    "--hard",
    "--max-points",
    "2",
    "--max-voxels",
    "9",
    "--range",
    "0,0,0,4,2,1",
    "--voxel-size",
    "1",
    "--backend",
    "host",
];

fn cloud(path: &Path, points: &[[f32; 4]]) -> Result<String> {
    let bytes: Vec<u8> = points.iter().flatten().flat_map(|value| value.to_le_bytes()).collect();
    fs::write(path, bytes)?;
    Ok(path.display().to_string())
}

/// Shape and numbers of each array of an archive that compresses nothing, in order.
fn arrays(path: &str) -> Result<Vec<(String, Vec<[u8; 4]>)>> {
    let bytes = fs::read(path)?;
    let magic = b"\x93NUMPY";
    let starts = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(magic));
    Ok(starts
        .map(|at| {
            let head = text(&bytes[at..at + 128]);
            let shape = head.split("'shape': (").nth(1).and_then(|rest| rest.split(')').next());
            let shape = shape.unwrap_or_default().trim_end_matches(',').to_string();
            let count: usize = shape.split(", ").map(|n| n.parse().unwrap_or(0)).product();
            let numbers = bytes[at + 128..at + 128 + 4 * count].chunks_exact(4);
            (shape, numbers.map(|four| [four[0], four[1], four[2], four[3]]).collect())
        })
        .collect())
}

fn floats(numbers: &[[u8; 4]]) -> Vec<f32> {
    numbers.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

fn integers(numbers: &[[u8; 4]]) -> Vec<i32> {
    numbers.iter().map(|four| i32::from_le_bytes(*four)).collect()
}

#[test]
fn one_cloud_has_three_arrays() -> Result {
    let folder = tempfile::tempdir()?;
    let input = cloud(&folder.path().join("a.bin"), &POINTS)?;
    let out = folder.path().join("out.npz").display().to_string();
    let words = [&["voxelize", &input, "--out", &out][..], &HARD].concat();
    let made = json(&words, 0)?;
    for (field, value) in
        [("clouds", 1), ("voxels", 2), ("points_in", 6), ("points_kept", 3), ("columns", 4)]
    {
        assert_eq!(made[field], value, "{field}");
    }
    let dropped = &made["dropped"];
    for field in ["not_finite", "out_of_range", "past_maximum"] {
        assert_eq!(dropped[field], 1, "{field}");
    }
    let arrays = arrays(&out)?;
    let shapes: Vec<&str> = arrays.iter().map(|(shape, _)| shape.as_str()).collect();
    assert_eq!(shapes, ["2, 2, 4", "2, 3", "2"]);
    let want = [POINTS[0], [0.0; 4], POINTS[1], POINTS[2]].concat();
    assert_eq!(floats(&arrays[0].1), want);
    assert_eq!(integers(&arrays[1].1), [0, 1, 2, 0, 0, 0], "z, y, x");
    assert_eq!(integers(&arrays[2].1), [1, 2]);
    let bytes = fs::read(&out)?;
    for name in ["voxels.npy", "coordinates.npy", "num_points.npy"] {
        assert!(bytes.windows(name.len()).any(|window| window == name.as_bytes()), "{name}");
    }
    Ok(())
}

#[test]
fn a_batch_has_the_number_of_the_cloud_in_front() -> Result {
    let folder = tempfile::tempdir()?;
    let scans = folder.path().join("scans");
    fs::create_dir(&scans)?;
    cloud(&scans.join("1.bin"), &POINTS[1..])?;
    cloud(&scans.join("2.bin"), &POINTS[..1])?;
    let (scans, out) = (scans.display().to_string(), folder.path().join("out.npz"));
    let out = out.display().to_string();
    for (order, want) in [("zyx", [0, 0, 0, 0, 1, 0, 1, 2]), ("xyz", [0, 0, 0, 0, 1, 2, 1, 0])] {
        let more = ["--order", order, "--chunk", "1"];
        json(&[&["voxelize", &scans, "--out", &out][..], &HARD, &more].concat(), 0)?;
        assert_eq!(integers(&arrays(&out)?[1].1), want, "{order}");
    }
    Ok(())
}

#[test]
fn a_small_limit_gives_the_same_file() -> Result {
    let folder = tempfile::tempdir()?;
    let points: Vec<[f32; 4]> = (0..60_000u32)
        .map(|n| [n % 40, n / 40 % 40, n / 1600, n].map(|cell| cell as f32 * 0.1))
        .collect();
    let input = cloud(&folder.path().join("a.bin"), &points)?;
    let (one, two) = (folder.path().join("1.npz"), folder.path().join("2.npz"));
    let (one, two) = (one.display().to_string(), two.display().to_string());
    let hard = [
        "--hard",
        "--max-points",
        "20",
        "--max-voxels",
        "50000",
        "--range",
        "0,0,0,4,4,4",
        "--voxel-size",
        "0.1",
        "--backend",
        "host",
    ];
    json(&[&["voxelize", &input, "--out", &one][..], &hard].concat(), 0)?;
    // Its points and what they are worked on with; then not even the points; and the least there is.
    for (limit, reads) in [(12 << 20, 1), (1 << 20, 2), (384 << 10, 50)] {
        let words = ["--gpu-mem-limit".to_string(), format!("{limit}B")];
        let words = words.each_ref().map(String::as_str);
        let made = json(&[&["voxelize", &input, "--out", &two][..], &hard, &words].concat(), 0)?;
        assert!(made["peak_bytes"].as_u64() <= Some(limit), "{made}");
        assert!(made["reads"].as_u64() >= Some(reads), "{made}");
        assert!(fs::read(&one)? == fs::read(&two)?, "{limit}");
    }
    // Not even a bit for each point.
    let limit = ["--gpu-mem-limit", "64KiB"];
    let refused = run(&[&["voxelize", &input, "--out", &two][..], &hard, &limit].concat())?;
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    Ok(())
}

#[test]
fn what_is_wrong_is_named_and_nothing_is_written() -> Result {
    let folder = tempfile::tempdir()?;
    let input = cloud(&folder.path().join("a.bin"), &POINTS)?;
    let out = folder.path().join("out.npz").display().to_string();
    let wrong = folder.path().join("out.npy").display().to_string();
    let plain = [&["voxelize", &input, "--out", &out][..], &HARD].concat();
    let with = |at: usize, value: &'static str| {
        let mut words = plain.clone();
        words[4 + at] = value;
        words
    };
    for (words, what) in [
        (with(2, "0"), "max_points"),
        (with(4, "0"), "max_voxels"),
        (with(4, "many"), "max-voxels"),
        (with(6, "0,0,0,4,2"), "six numbers"),
        (with(6, "0,0,0,-4,2,1"), "range"),
        (with(8, "0"), "voxel_size"),
        ([&plain[..], &["--order", "yxz"]].concat(), "order"),
        ([&plain[..], &["--grid", "1,1,1"]].concat(), "--grid"),
        ([&plain[..], &["--mode", "mean"]].concat(), "--mode"),
        ([&["voxelize", &input, "--out", &wrong][..], &HARD].concat(), ".npz"),
        (vec!["voxelize", &input, "--out", &out, "--hard", "--voxel-size", "1"], "--range"),
    ] {
        let said = complaint(&words)?;
        assert!(said.contains(what), "{words:?}: {said}");
    }
    let names: Vec<_> = fs::read_dir(folder.path())?.filter_map(|entry| entry.ok()).collect();
    assert_eq!(names.len(), 1, "nothing was written");
    Ok(())
}

/// A range that misses the cloud is said, with one that holds it.
#[test]
fn a_range_that_misses_most_points_is_said_with_one_that_holds_them() -> Result {
    let folder = tempfile::tempdir()?;
    let points: Vec<[f32; 4]> =
        (0..40).map(|n| [100.0 + 0.37 * n as f32, -3.0 * n as f32, 0.1, 1.0]).collect();
    let input = cloud(&folder.path().join("far.bin"), &points)?;
    let out = folder.path().join("far.npz").display().to_string();
    let shown = run(&[&["voxelize", &input, "--out", &out][..], &HARD[..]].concat())?;
    let shown = text(&shown.stdout);
    assert!(shown.contains("warning: most points were dropped: 100.0 %"), "{shown}");
    let line = shown.lines().find_map(|line| line.split("all of them: --range ").nth(1));
    let range = line.ok_or("no range")?.trim().to_string();
    let mut words = HARD.map(str::to_string);
    words[4] = "40".to_string();
    words[6] = range;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let again = folder.path().join("held.npz").display().to_string();
    let all = json(&[&["voxelize", &input, "--out", &again][..], &words].concat(), 0)?;
    assert_eq!(all["dropped"]["out_of_range"], 0, "{all}");
    assert_eq!(all["extent"], serde_json::Value::Null);
    Ok(())
}
