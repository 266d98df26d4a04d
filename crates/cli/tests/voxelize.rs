//! `plimsoll voxelize` as a user meets it.

#[expect(dead_code, reason = "recordings are for other verbs")]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use common::{Result, complaint, json, plimsoll, run, text};
use serde_json::Value;
use tempfile::TempDir;

/// Five points: two in one voxel, one in another, one outside, one that is no point.
const POINTS: [[f32; 4]; 5] = [
    [0.5, 0.5, 0.5, 2.0],
    [0.75, 0.25, 0.5, 4.0],
    [2.5, 1.5, 0.0, -1.0],
    [9.0, 0.5, 0.5, 8.0],
    [f32::NAN, 0.5, 0.5, 16.0],
];
const GRID: [&str; 6] = ["--grid", "1,2,4", "--voxel-size", "1", "--origin", "0,0,0"];

struct Folder(TempDir);

impl Folder {
    fn new() -> Result<Folder> {
        Ok(Folder(tempfile::tempdir()?))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<String> {
        if let Some(folder) = self.path(name).parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(self.path(name), bytes)?;
        Ok(self.name(name))
    }

    fn names(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(self.0.path())? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }
}

fn npy(kind: &str, fortran: &str, shape: &str, numbers: &[u8]) -> Vec<u8> {
    let head = format!("{{'descr': '{kind}', 'fortran_order': {fortran}, 'shape': {shape}, }}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((head.len() as u16).to_le_bytes());
    bytes.extend(head.bytes());
    bytes.extend(numbers);
    bytes
}

fn plain(points: &[[f32; 4]]) -> Vec<u8> {
    let numbers: Vec<u8> = points.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
    npy("<f4", "False", &format!("({}, 4)", points.len()), &numbers)
}

/// Where points fall everywhere, for work that takes a while.
fn many(points: usize, side: f32) -> Vec<[f32; 4]> {
    let mut state = 7u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32
    };
    (0..points).map(|_| [next() * side, next() * side, next() * side, next() - 0.5]).collect()
}

/// The shape that a file's header tells, and its numbers.
fn array(path: &Path) -> Result<(String, Vec<u8>)> {
    let bytes = fs::read(path)?;
    let head = text(&bytes[..128]);
    let shape = head.split("'shape': ").nth(1).and_then(|rest| rest.split(", }").next());
    Ok((shape.unwrap_or_default().to_string(), bytes[128..].to_vec()))
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn words<'a>(input: &'a str, out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["voxelize", input][..], &GRID, &["--out", out, "--backend", "host"], more].concat()
}

#[test]
fn the_answer_has_every_field() -> Result {
    let folder = Folder::new()?;
    let (input, out) = (folder.write("a.npy", &plain(&POINTS))?, folder.name("out.npy"));
    let made = json(&words(&input, &out, &[]), 0)?;
    for (field, value) in [
        ("clouds", Value::from(1)),
        ("grid", vec![1, 2, 4].into()),
        ("voxel_size", vec![1.0, 1.0, 1.0].into()),
        ("origin", vec![0.0, 0.0, 0.0].into()),
        ("mode", "occupancy".into()),
        ("dtype", "f32".into()),
        ("points_in", 5.into()),
        ("occupied_voxels", 2.into()),
        ("voxels", 8.into()),
        ("backend", "host".into()),
        ("chunks", 1.into()),
        ("clouds_per_chunk", 1.into()),
        ("slabs", 1.into()),
        ("retries", 0.into()),
        ("fallback", Value::Null),
        ("preview", Value::Null),
        ("output_bytes", 32.into()),
        ("written_bytes", 160.into()),
        ("peak_source", "estimated".into()),
    ] {
        assert_eq!(made[field], value, "{field}");
    }
    assert_eq!(made["dropped"]["not_finite"], 1);
    assert_eq!(made["dropped"]["out_of_range"], 1);
    for field in ["seconds", "points_per_second", "clouds_per_second", "output_bytes_per_second"] {
        assert!(made[field].as_f64() > Some(0.0), "{field}");
    }
    assert!(made["available_bytes"].as_u64() > Some(0) && made["peak_bytes"].as_u64() > Some(0));
    let (shape, bytes) = array(&folder.path("out.npy"))?;
    assert_eq!(
        (shape.as_str(), floats(&bytes)),
        ("(1, 2, 4)", vec![1., 0., 0., 0., 0., 0., 1., 0.])
    );
    let page = text(&run(&words(&input, &out, &[]))?.stdout);
    assert!(page.starts_with("1 grid of 1 x 2 x 4 voxels, occupancy as f32: "), "{page}");
    Ok(())
}

#[test]
fn modes_and_types_are_written_as_the_rules_say() -> Result {
    let folder = Folder::new()?;
    let (input, out) = (folder.write("a.npy", &plain(&POINTS))?, folder.name("out.npy"));
    for (more, shape, want) in [
        (&["--mode", "count"][..], "(1, 2, 4)", [2u32, 0, 0, 0, 0, 0, 1, 0].map(u32::to_le_bytes)),
        (
            &["--mode", "count", "--dtype", "f32"],
            "(1, 2, 4)",
            lit([2., 0., 0., 0., 0., 0., 1., 0.]),
        ),
        (&["--mode", "mean"], "(1, 1, 2, 4)", lit([3., 0., 0., 0., 0., 0., -1., 0.])),
        (&["--mode", "max"], "(1, 1, 2, 4)", lit([4., 0., 0., 0., 0., 0., -1., 0.])),
    ] {
        json(&words(&input, &out, more), 0)?;
        assert_eq!(array(&folder.path("out.npy"))?, (shape.to_string(), want.concat()), "{more:?}");
    }
    json(&words(&input, &out, &["--dtype", "u8"]), 0)?;
    assert_eq!(array(&folder.path("out.npy"))?.1, [1, 0, 0, 0, 0, 0, 1, 0]);
    // Rows of four voxels are no whole bytes: one row for the cloud.
    json(&words(&input, &out, &["--dtype", "bits"]), 0)?;
    assert_eq!(array(&folder.path("out.npy"))?, ("(1,)".to_string(), vec![0b0100_0001]));
    json(&words(&input, &out, &["--dtype", "sparse"]), 0)?;
    let (shape, bytes) = array(&folder.path("out.npy"))?;
    let coordinates = [0i32, 0, 0, 0, 1, 2].map(i32::to_le_bytes).concat();
    assert_eq!((shape.as_str(), bytes), ("(2, 3)", coordinates));
    let page = text(&run(&words(&input, &out, &["--dtype", "sparse"]))?.stdout);
    let written = page.lines().find(|line| line.trim_start().starts_with("written"));
    assert!(written.is_some_and(|line| line.contains("152 B")), "{page}");
    Ok(())
}

fn lit(values: [f32; 8]) -> [[u8; 4]; 8] {
    values.map(f32::to_le_bytes)
}

/// The same five points in every file that is read.
#[test]
fn every_reader_says_the_same() -> Result {
    let folder = Folder::new()?;
    let columns: Vec<f32> = (0..4).flat_map(|axis| POINTS.iter().map(move |p| p[axis])).collect();
    let doubles: Vec<u8> = columns.iter().flat_map(|v| f64::from(*v).to_be_bytes()).collect();
    let rows: Vec<u8> = POINTS.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
    let ply = "ply\nformat FORM 1.0\nelement camera 1\nproperty list uchar int at\nelement vertex 5\n\
        property float x\nproperty float y\nproperty float z\nproperty float i\nend_header\n";
    let lines: String = POINTS.iter().map(|[x, y, z, i]| format!("{x} {y} {z} {i}\n")).collect();
    let big: Vec<u8> = POINTS.iter().flatten().flat_map(|v| v.to_be_bytes()).collect();
    let pcd = "VERSION 0.7\nFIELDS x y z i\nSIZE 4 4 4 4\nTYPE F F F F\nCOUNT 1 1 1 1\nWIDTH 5\n\
        HEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS 5\nDATA ";
    let packed: Vec<u8> = columns.iter().flat_map(|v| v.to_le_bytes()).collect();
    let mut squeezed = Vec::new();
    for run in packed.chunks(32) {
        squeezed.push(run.len() as u8 - 1);
        squeezed.extend(run);
    }
    let sizes = [squeezed.len() as u32, packed.len() as u32].map(u32::to_le_bytes).concat();
    let files = [
        ("c.npy", plain(&POINTS)),
        ("f.npy", npy(">f8", "True", "(5, 4)", &doubles)),
        ("t.ply", (ply.replace("FORM", "ascii") + "2 7 8\n" + &lines).into_bytes()),
        ("b.ply", [ply.replace("FORM", "binary_big_endian").as_bytes(), &[0], &big].concat()),
        ("l.ply", [ply.replace("FORM", "binary_little_endian").as_bytes(), &[0], &rows].concat()),
        ("t.pcd", (pcd.to_string() + "ascii\n" + &lines).into_bytes()),
        ("b.pcd", [pcd.as_bytes(), b"binary\n", &rows].concat()),
        ("z.pcd", [pcd.as_bytes(), b"binary_compressed\n", &sizes, &squeezed].concat()),
        ("k.bin", rows.clone()),
    ];
    for (name, bytes) in &files {
        let (input, out) = (folder.write(name, bytes)?, folder.name("out.npy"));
        for (mode, first) in [("occupancy", 1.0), ("mean", 3.0)] {
            let made = json(&words(&input, &out, &["--mode", mode]), 0)?;
            assert_eq!(made["dropped"]["not_finite"], 1, "{name}");
            assert_eq!(floats(&array(&folder.path("out.npy"))?.1)[0], first, "{name} {mode}");
        }
        // Cut anywhere, it is refused with the place, whatever is wanted of it.
        let cut = folder.write(&format!("cut-{name}"), &bytes[..bytes.len() - 3])?;
        let error = complaint(&words(&cut, &out, &[]));
        if !name.starts_with("t.") {
            let error = error?;
            assert!(error.contains("byte "), "{name}: {error}");
        }
    }
    Ok(())
}

#[test]
fn a_folder_or_a_pattern_is_a_batch_in_the_order_that_people_count_in() -> Result {
    let folder = Folder::new()?;
    for (name, count) in [("10.npy", 5), ("2.npy", 3), ("1.npy", 0)] {
        folder.write(&format!("scans/{name}"), &plain(&POINTS[..count]))?;
    }
    folder.write("scans/notes.txt", b"not a cloud")?;
    let out = folder.name("out.npy");
    let made = json(&words(&folder.name("scans"), &out, &["--mode", "count"]), 0)?;
    assert_eq!((&made["clouds"], &made["points_in"]), (&3.into(), &8.into()));
    let (shape, bytes) = array(&folder.path("out.npy"))?;
    assert_eq!(shape, "(3, 1, 2, 4)");
    let counts: Vec<u8> = bytes.chunks_exact(4).map(|count| count[0]).collect();
    assert_eq!(counts, [[0; 8], [2, 0, 0, 0, 0, 0, 1, 0], [2, 0, 0, 0, 0, 0, 1, 0]].concat());
    let made = json(&words(&folder.name("scans/?.npy"), &out, &[]), 0)?;
    assert_eq!(made["clouds"], 2);
    // As a shell gives them where the pattern is not in quotes.
    let (ten, two) = (folder.name("scans/10.npy"), folder.name("scans/2.npy"));
    let made = json(&words(&ten, &out, &[&two, "--mode", "count"]), 0)?;
    assert_eq!((&made["clouds"], &made["points_in"]), (&2.into(), &8.into()));
    assert_eq!(array(&folder.path("out.npy"))?.0, "(2, 1, 2, 4)");
    Ok(())
}

/// Files without the features of the others are as good as they are for counts, and what other
/// programs leave in a folder is none of them.
#[test]
fn kinds_of_files_mix_in_a_folder() -> Result {
    let folder = Folder::new()?;
    let numbers: Vec<u8> = POINTS.iter().flatten().flat_map(|v| v.to_le_bytes()).collect();
    folder.write("scans/1.bin", &numbers)?;
    let three: Vec<u8> =
        POINTS.iter().flat_map(|point| &point[..3]).flat_map(|v| v.to_le_bytes()).collect();
    folder.write("scans/2.npy", &npy("<f4", "False", "(5, 3)", &three))?;
    folder.write("scans/._1.bin", b"Mac OS X")?;
    fs::create_dir(folder.path("scans/old.npy"))?;
    let (scans, out) = (folder.name("scans"), folder.name("out.npy"));
    for more in [&["--mode", "count"][..], &["--mode", "count", "--chunk", "1"]] {
        json(&words(&scans, &out, more), 0)?;
        let (_, bytes) = array(&folder.path("out.npy"))?;
        let counts: Vec<u8> = bytes.chunks_exact(4).map(|count| count[0]).collect();
        assert_eq!(counts, [[2, 0, 0, 0, 0, 0, 1, 0]; 2].concat());
    }
    let error = complaint(&words(&scans, &out, &["--mode", "mean"]))?;
    assert!(error.contains("2.npy") && error.contains("0 features"), "{error}");
    Ok(())
}

/// A chunk that was asked for is no way past the line, and a maximum takes as much as a mean.
#[test]
fn what_was_held_is_told_and_stays_below_the_line() -> Result {
    let folder = Folder::new()?;
    for cloud in 0..4 {
        folder.write(&format!("in/{cloud}.npy"), &plain(&many(3000, 6.0)))?;
    }
    let input = folder.name("in");
    let grid = ["--grid", "50,60,70", "--voxel-size", "0.1", "--origin", "0,0,0"];
    let held = |more: &[&str], out: &str| -> Result<u64> {
        let out = folder.name(out);
        let words = ["voxelize", &input, "--out", &out, "--backend", "host"];
        let made = json(&[&words, &grid[..], more].concat(), 0)?;
        Ok(made["peak_bytes"].as_u64().unwrap_or_default())
    };
    let line = ["--gpu-mem-limit", "2MiB", "--chunk", "4"];
    for mode in ["occupancy", "count", "mean", "max"] {
        let peak = held(&[&line[..], &["--mode", mode]].concat(), "out.npy")?;
        assert!(peak > 0 && peak <= 2 << 20, "{mode}: {peak}");
    }
    // The voxels of every cloud, of at least twelve bytes each, wait to be written.
    assert!(held(&["--mode", "count", "--dtype", "sparse"], "out.npz")? > 4 * 2000 * 12);
    assert!(held(&["--mode", "max"], "out.npy")? > 4 * 50 * 60 * 70 * 4 + 3000 * 8);
    Ok(())
}

/// Whatever it is cut into and whoever makes it.
#[test]
fn results_do_not_depend_on_chunks_or_backends() -> Result {
    let folder = Folder::new()?;
    for cloud in 0..4 {
        folder.write(&format!("in/{cloud}.npy"), &plain(&many(700 + 300 * cloud, 6.0)))?;
    }
    let (input, out) = (folder.name("in"), folder.name("out.npy"));
    let grid = ["--grid", "50,60,70", "--voxel-size", "0.1", "--origin", "0.05,0,-0.1"];
    let mut backends = vec!["host"];
    let opencl =
        run(&[&["voxelize", &input][..], &grid, &["--out", &out, "--backend", "opencl"]].concat())?;
    match opencl.status.success() {
        true => backends.push("opencl"),
        false => println!("skipped: {}", text(&opencl.stderr).trim()),
    }
    for kind in [
        &["--dtype", "f32"][..],
        &["--dtype", "u8"],
        &["--dtype", "bits"],
        &["--mode", "count"],
        &["--mode", "mean"],
        &["--mode", "max"],
    ] {
        let mut first = None;
        for backend in &backends {
            for cut in
                [&[][..], &["--chunk", "1"], &["--chunk", "3"], &["--gpu-mem-limit", "900KiB"]]
            {
                let words = [
                    &["voxelize", &input][..],
                    &grid,
                    &["--out", &out, "--backend", backend],
                    kind,
                    cut,
                ]
                .concat();
                let made = json(&words, 0)?;
                let all = (
                    array(&folder.path("out.npy"))?,
                    made["occupied_voxels"].clone(),
                    made["dropped"].clone(),
                );
                let same = first.get_or_insert_with(|| all.clone()) == &all;
                assert!(same, "{words:?}");
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_wrong_is_said_and_nothing_is_left() -> Result {
    let folder = Folder::new()?;
    let (input, out) = (folder.write("a.npy", &plain(&POINTS))?, folder.name("out.npy"));
    folder.write("three.npy", &npy("<f4", "False", "(1, 3)", &[0; 12]))?;
    folder.write("labels.npy", &npy("<i8", "False", "(1, 3)", &[0; 24]))?;
    folder.write("odd.bin", &[0; 17])?;
    for (words, word) in [
        (words(&input, &folder.name("out.txt"), &[]), ".npy"),
        (words(&input, &input, &[]), "one of the clouds"),
        (words(&input, &out, &["--preview", &folder.name("p.npy")]), "ends in .png"),
        (words(&input, &folder.name("nowhere/out.npy"), &[]), "a folder that is there"),
        #[cfg(target_os = "linux")]
        (words(&input, "/sys/out.npy", &[]), "a folder that may be written to"),
        (words(&input, &out, &["--mode", "count", "--dtype", "bits"]), "u8 or bits with occupancy"),
        (words(&input, &out, &["--mode", "count", "--dtype", "sparse"]), ".npz"),
        (words(&input, &out, &["--chunk", "0"]), "above 0"),
        (words(&folder.name("three.npy"), &out, &["--mode", "mean"]), "points without features"),
        (words(&folder.name("labels.npy"), &out, &[]), "byte 20: type '<i8'"),
        (words(&folder.name("odd.bin"), &out, &[]), "byte 16: 1 bytes are left over"),
        (words(&folder.name("none.npy"), &out, &[]), "none.npy: there is no such file"),
        (words(&folder.name("none"), &out, &[]), "none: there is no such file"),
        (words(&folder.name("*.xyz"), &out, &[]), "no file there ends in .npy"),
        // A petabyte is refused before anything is made.
        (
            vec![
                "voxelize",
                &input,
                "--grid",
                "65536,65536,65536",
                "--voxel-size",
                "1",
                "--origin",
                "0,0,0",
                "--out",
                &out,
            ],
            "the disk has room for",
        ),
    ] {
        let error = complaint(&words)?;
        assert!(error.contains(word), "{words:?}: {error}");
    }
    assert_eq!(folder.names()?, ["a.npy", "labels.npy", "odd.bin", "three.npy"]);
    Ok(())
}

#[cfg(unix)]
#[test]
fn a_result_is_readable_as_any_new_file_is() -> Result {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new()?;
    let (input, out) = (folder.write("a.npy", &plain(&POINTS))?, folder.name("out.npy"));
    json(&words(&input, &out, &[]), 0)?;
    let mode =
        |name: &str| Ok::<_, std::io::Error>(fs::metadata(folder.path(name))?.permissions().mode());
    assert_eq!(mode("out.npy")?, mode("a.npy")?);
    Ok(())
}

#[test]
fn a_preview_shows_three_sides() -> Result {
    let folder = Folder::new()?;
    let (input, out, png) =
        (folder.write("a.npy", &plain(&POINTS))?, folder.name("out.npy"), folder.name("out.png"));
    for more in [&["--mode", "mean"][..], &["--dtype", "bits"]] {
        let made = json(&words(&input, &out, &[more, &["--preview", &png]].concat()), 0)?;
        assert_eq!(made["preview"], png.as_str());
        assert!(fs::read(folder.path("out.png"))?.starts_with(b"\x89PNG\r\n"));
        fs::remove_file(folder.path("out.png"))?;
    }
    // A place that cannot be is told before anything is made.
    fs::remove_file(&out)?;
    let nowhere = folder.name("no/out.png");
    let message = complaint(&words(&input, &out, &["--preview", &nowhere]))?;
    assert!(message.contains("preview") && message.contains("folder"), "{message}");
    assert!(!folder.path("out.npy").exists());
    Ok(())
}

/// A limit on the size of files is a full disk to whoever writes.
#[cfg(unix)]
#[test]
fn a_file_that_may_not_grow_is_said_and_nothing_is_left() -> Result {
    let folder = Folder::new()?;
    let (input, out) = (folder.write("a.npy", &plain(&POINTS))?, folder.name("out.npy"));
    let script = format!(
        "ulimit -f 1; exec {} voxelize {input} --grid 32,32,32 --voxel-size 1 --origin 0,0,0 \
         --out {out} --backend host",
        env!("CARGO_BIN_EXE_plimsoll")
    );
    let run = Command::new("sh").args(["-c", &script]).output()?;
    let error = text(&run.stderr);
    assert!(run.status.code() == Some(3) && error.contains("File too large"), "{error}");
    assert_eq!(folder.names()?, ["a.npy"]);
    Ok(())
}

/// Of a run that was killed nothing is left under the name that was asked for.
#[test]
fn a_killed_run_leaves_no_file_that_looks_whole() -> Result {
    let folder = Folder::new()?;
    let (input, out) =
        (folder.write("a.npy", &plain(&many(100_000, 6.0)))?, folder.name("out.npy"));
    fs::write(&out, b"what was there before")?;
    // As many slabs as there can be, each of which goes through all points.
    let words = [
        "voxelize",
        &input,
        "--grid",
        "400,400,400",
        "--voxel-size",
        "0.02",
        "--origin",
        "0,0,0",
        "--gpu-mem-limit",
        "1MiB",
        "--backend",
        "host",
        "--out",
        &out,
    ];
    let mut child = plimsoll(&words).stdout(std::process::Stdio::null()).spawn()?;
    let begun = Instant::now();
    while !has_begun(&folder, child.id())
        && child.try_wait()?.is_none()
        && begun.elapsed() < Duration::from_secs(60)
    {
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill()?;
    child.wait()?;
    assert_eq!(fs::read(&out)?, b"what was there before");
    let left = folder.names()?;
    assert!(left.iter().all(|name| name.starts_with('.') || name.ends_with(".npy")), "{left:?}");
    Ok(())
}

/// Whether a process has a file there that has no name yet, or one of its own.
fn has_begun(folder: &Folder, process: u32) -> bool {
    let named =
        folder.names().is_ok_and(|names| names.iter().any(|name| name.ends_with(".partial")));
    let open = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    let mut open = open.filter_map(|file| fs::read_link(file.path()).ok());
    named || open.any(|file| file.starts_with(folder.0.path()) && file != folder.path("a.npy"))
}

/// Under `ulimit -v` the whole result has no room: it is made in slabs all the same.
#[cfg(target_os = "linux")]
#[test]
fn a_result_larger_than_memory_is_written_as_it_is_made() -> Result {
    let folder = Folder::new()?;
    let (input, out) = (folder.write("a.npy", &plain(&many(2000, 6.0)))?, folder.name("out.npy"));
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let script = format!(
        "ulimit -v 500000; exec {program} voxelize {input} --grid 512,512,512 --voxel-size 0.0125 \
         --origin 0,0,0 --backend host --out {out} --json"
    );
    let run = Command::new("sh").args(["-c", &script]).env("RAYON_NUM_THREADS", "2").output()?;
    assert!(run.status.success(), "{}", text(&run.stderr));
    let made: Value = serde_json::from_slice(&run.stdout)?;
    assert_eq!(made["output_bytes"], 512u64 * 512 * 512 * 4);
    assert!(made["slabs"].as_u64() > Some(1), "{made}");
    assert!(made["peak_bytes"].as_u64() < Some(500_000 << 10), "{made}");
    assert!(
        text(made["available_source"].as_str().unwrap_or_default().as_bytes()).contains("ulimit")
    );
    assert_eq!(fs::metadata(&out)?.len(), 128 + 512 * 512 * 512 * 4);
    Ok(())
}

/// Doubles must be made floats, for which there is no room: told, and not tried.
#[cfg(target_os = "linux")]
#[test]
fn points_that_can_never_be_in_memory_are_refused() -> Result {
    let folder = Folder::new()?;
    let header = "{'descr': '<f8', 'fortran_order': False, 'shape': (100000000, 3), }";
    let mut file = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    file.extend(header.as_bytes());
    file.resize(128, b' ');
    let (input, out) = (folder.write("a.npy", &file)?, folder.name("out.npy"));
    // Takes no room on the disk.
    fs::File::options().write(true).open(&input)?.set_len(128 + 2_400_000_000)?;
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let script = format!(
        "ulimit -v 1200000; exec {program} voxelize {input} --grid 8,8,8 --voxel-size 1 \
         --origin 0,0,0 --backend host --out {out}"
    );
    let run = Command::new("sh").args(["-c", &script]).env("RAYON_NUM_THREADS", "2").output()?;
    let message = text(&run.stderr);
    assert_eq!(run.status.code(), Some(3), "{message}");
    assert!(message.contains("1.12 GiB can never fit") && message.contains("f32"), "{message}");
    assert!(!folder.path("out.npy").exists());
    Ok(())
}

/// Means want a whole cloud in memory: where there is no room for it, that is told.
#[cfg(target_os = "linux")]
#[test]
fn features_that_have_no_room_are_refused_and_do_not_end_the_process() -> Result {
    let folder = Folder::new()?;
    let (input, out) = (empty_scan(&folder, "a.bin", 20_000_000)?, folder.name("out.npz"));
    for more in
        [&["--mode", "mean"][..], &["--mode", "max"], &["--mode", "mean", "--dtype", "sparse"]]
    {
        let words = [&words(&input, &out, &[])[..], more].concat().join(" ");
        let words = if more.len() == 2 { words.replace("out.npz", "out.npy") } else { words };
        let script = format!("ulimit -v 500000; exec {} {words}", env!("CARGO_BIN_EXE_plimsoll"));
        let run =
            Command::new("sh").args(["-c", &script]).env("RAYON_NUM_THREADS", "2").output()?;
        let message = text(&run.stderr);
        assert_eq!(run.status.code(), Some(3), "{more:?}: {message}");
        assert!(
            message.contains("can never fit on") || message.contains("out of memory"),
            "{message}"
        );
        assert_eq!(folder.names()?, ["a.bin"]);
    }
    Ok(())
}

/// A scan of KITTI's with so many points at the origin, which takes no room on the disk.
fn empty_scan(folder: &Folder, name: &str, points: u64) -> Result<String> {
    let path = folder.write(name, &[])?;
    fs::File::options().write(true).open(&path)?.set_len(points * 16)?;
    Ok(path)
}

/// However large a piece is: each of these is one, and takes minutes to read.
#[cfg(target_os = "linux")]
#[test]
fn a_signal_ends_the_work_while_points_are_read() -> Result {
    let scans = Folder::new()?;
    let hard = ["--hard", "--max-points", "1", "--max-voxels", "9", "--range", "0,0,0,4,4,4"];
    for (points, more) in [
        (1u64 << 36, &["--grid", "4,4,4", "--origin", "0,0,0"][..]),
        (1 << 36, &["--grid", "4,4,4", "--origin", "0,0,0", "--mode", "count"]),
        (1 << 30, &hard),
    ] {
        let folder = Folder::new()?;
        let input = empty_scan(&scans, "a.bin", points)?;
        let out = folder.name(if points == 1 << 30 { "out.npz" } else { "out.npy" });
        let words = ["voxelize", &input, "--voxel-size", "1", "--backend", "host", "--out", &out];
        let mut child = plimsoll(&[&words, more].concat()).spawn()?;
        while !has_begun(&folder, child.id()) && child.try_wait()?.is_none() {
            std::thread::sleep(Duration::from_millis(5));
        }
        std::thread::sleep(Duration::from_millis(300));
        let told = Instant::now();
        Command::new("kill").args(["-TERM", &child.id().to_string()]).status()?;
        let ended = loop {
            match child.try_wait()? {
                None if told.elapsed() < Duration::from_secs(30) => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                ended => break ended,
            }
        };
        child.kill()?;
        child.wait()?;
        assert_eq!(ended.and_then(|status| status.code()), Some(130), "{more:?}");
        assert!(folder.names()?.is_empty());
    }
    Ok(())
}

/// A user who may have no more processes is one thread, and gets the same.
#[cfg(target_os = "linux")]
#[test]
fn where_no_thread_can_be_made_the_calling_one_does_the_work() -> Result {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new()?;
    fs::set_permissions(folder.0.path(), fs::Permissions::from_mode(0o777))?;
    let input = folder.write("a.npy", &plain(&many(5000, 6.0)))?;
    // A user that has no other process.
    let user = (1_000_000 + std::process::id()).to_string();
    let alone = |words: &[&str]| {
        let mut command = Command::new("prlimit");
        command.args(["--nproc=1", "setpriv", "--reuid", &user, "--regid", &user]);
        command.args(["--clear-groups", env!("CARGO_BIN_EXE_plimsoll")]).args(words).output()
    };
    if !alone(&["--version"]).is_ok_and(|run| run.status.success()) {
        println!("skipped: only root can become another user, by setpriv");
        return Ok(());
    }
    let hard = ["--hard", "--max-points", "9", "--max-voxels", "99", "--range", "0,0,0,4,2,1"];
    let hard = [&hard[..], &GRID[2..4]].concat();
    for (more, ending) in [(&GRID[..], "npy"), (&hard, "npz")] {
        let (one, two) = (folder.name(&format!("1.{ending}")), folder.name(&format!("2.{ending}")));
        let words =
            |out| [&["voxelize", &input, "--backend", "host", "--out", out][..], more].concat();
        json(&words(&one), 0)?;
        let run = alone(&words(&two))?;
        assert!(run.status.success(), "{}", text(&run.stderr));
        assert!(fs::read(&one)? == fs::read(&two)?, "{more:?}");
    }
    Ok(())
}

/// Whatever cannot be made within a limit is refused before anything is made.
#[test]
fn a_limit_that_nothing_fits_is_refused() -> Result {
    let folder = Folder::new()?;
    let (input, out) = (folder.write("a.npy", &plain(&POINTS))?, folder.name("out.npy"));
    for mode in ["occupancy", "count", "mean", "max"] {
        let run = run(&words(&input, &out, &["--mode", mode, "--gpu-mem-limit", "1B"]))?;
        let message = text(&run.stderr);
        assert_eq!(run.status.code(), Some(3), "{mode}: {message}");
        assert!(message.contains("can never fit on 70 % of the 1 B available"), "{message}");
        assert_eq!(folder.names()?, ["a.npy"]);
    }
    Ok(())
}
