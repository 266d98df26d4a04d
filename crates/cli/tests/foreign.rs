//! Names that strangers wrote, into files and as names of files, through every verb: nothing
//! of them steers the terminal, and none of them adds a line to an answer.
#![cfg(target_os = "linux")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod common;
#[expect(dead_code, reason = "each test file uses its own part")]
mod onnx;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Result, plimsoll, run, text};
use onnx::Graph;
use plimsoll::ModelShape;
use plimsoll::text::is_steering;
use plimsoll_models::gguf::{GgufValue as Field, GgufWriter};
use serde_json::Value;

/// Sets the title, clears the screen, turns what follows around, and claims something.
const HOSTILE: &str = "x\x1b]0;PWNED\x07\x1b[2J\u{9b}31m\u{202e}\u{2066}\u{200f}\u{2028}\r\x08\n\
                       fits into 8.00 GiB\n";
const CLAIM: &str = "fits into 8.00 GiB";

fn check(what: &str, bytes: &[u8]) -> Result {
    let text = text(bytes);
    if let Some(at) = text.find(|c| is_steering(c) && c != '\n') {
        let from = text.floor_char_boundary(at.saturating_sub(80));
        let to = text.ceil_char_boundary(at + 20);
        return Err(format!("{what}: {:?}", &text[from..to]).into());
    }
    match text.lines().any(|line| line.trim_start().starts_with(CLAIM)) {
        true => Err(format!("{what} has a line of a stranger's: {text}").into()),
        false => Ok(()),
    }
}

/// Runs it for people and for programs, and looks at everything that it prints.
fn tame(words: &[&str]) -> Result {
    for form in [&[][..], &["--json"], &["-v"]] {
        let words = [form, words].concat();
        let run = run(&words)?;
        check(&format!("stdout of {words:?}"), &run.stdout)?;
        check(&format!("stderr of {words:?}"), &run.stderr)?;
        if run.status.code().is_none_or(|code| code > 3 && words[0] != "run" && code < 125) {
            return Err(format!("{words:?}: {}", run.status).into());
        }
    }
    Ok(())
}

/// A folder whose name is hostile, with a hostile file of every kind.
struct World {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl World {
    fn new() -> Result<World> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join(HOSTILE);
        fs::create_dir(&path)?;
        Ok(World { _folder: folder, path })
    }

    /// The path of a file, written where there is something to write.
    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> Result<String> {
        let path = self.path.join(name);
        fs::create_dir_all(path.parent().unwrap_or(&path))?;
        fs::write(&path, bytes)?;
        Ok(path.display().to_string())
    }

    fn missing(&self, name: &str) -> String {
        self.path.join(name).display().to_string()
    }
}

/// Every verb that help names has a walk here.
#[test]
fn no_verb_is_left_out() -> Result {
    let help = text(&run(&["--help"])?.stdout);
    let verbs = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let verbs = verbs.take_while(|line| !line.is_empty());
    let verbs = verbs.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let source = include_str!("foreign.rs");
    for verb in verbs.filter(|verb| !verb.is_empty()) {
        assert!(source.contains(&format!("\"{verb}\"")), "{verb} is not walked");
    }
    Ok(())
}

#[test]
fn words_of_the_command_line() -> Result {
    tame(&[HOSTILE])?;
    tame(&["help", HOSTILE])?;
    tame(&["completions", HOSTILE])?;
    tame(&["chunk", "--items", HOSTILE])?;
    tame(&["chunk", "--items", "4", "--item-bytes", "1MiB", "--available", HOSTILE])?;
    tame(&["bench", "--engine", HOSTILE])?;
    tame(&["guard", "--to", HOSTILE])?;
    let nowhere = format!("/nowhere/{}", HOSTILE.replace([' ', ':', '\n'], ""));
    tame(&["guard", "--to", &nowhere])?;
    // As root /nowhere could be made; below a device nothing can.
    tame(&["generate", "--man", &nowhere.replace("/nowhere", "/dev/null")])?;
    tame(&["fit", "--limit", "1GiB", "--vary", HOSTILE, "--", "true"])?;
    tame(&["fit", "--limit", "1GiB", "--vary", "batch=1..2", "--", HOSTILE, "{batch}"])?;
    tame(&["run", "--limit", "1GiB", "--", HOSTILE])
}

#[test]
fn models() -> Result {
    let world = World::new()?;
    let shape = ModelShape::new(64, 128, 2, 100, 4);
    let gguf = world.path.join("name.gguf");
    let named = GgufWriter::of_shape("llama", &shape);
    named.with("general.name", Field::Text(HOSTILE.to_string())).write(&gguf)?;
    let named = gguf.display().to_string();
    let other = world.path.join("arch.gguf");
    GgufWriter::of_shape(HOSTILE, &shape).write(&other)?;
    let other = other.display().to_string();
    for model in [&named, &other] {
        tame(&["estimate", model, "--limit", "1KiB"])?;
        tame(&["estimate", model, "--fleet"])?;
        tame(&["fit", model, "--limit", "8GiB", "--vary", "context"])?;
        tame(&["fit", model, "--limit", "1KiB", "--vary", "context"])?;
    }
    let image: (&str, &[u64]) = (HOSTILE, &[1, 3, 8, 8]);
    let names = |op: &str, input: &str| {
        Graph::default().node(op, &[input], HOSTILE, None).file(image, (HOSTILE, &[1, 3, 8, 8]))
    };
    let graphs = [
        world.file("good.onnx", names("Relu", HOSTILE))?,
        world.file("dangling.onnx", names("Relu", &format!("{HOSTILE}2")))?,
        world.file("strange.onnx", names(HOSTILE, HOSTILE))?,
    ];
    for graph in &graphs {
        tame(&["estimate", graph, "--limit", "1GiB"])?;
        tame(&["estimate", graph, "--engine", "ort", "--device", "cpu"])?;
    }
    let header = format!("{{\"{}\":7}}", HOSTILE.escape_default());
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    tame(&["estimate", &world.file("bad.safetensors", file)?])?;
    let config = serde_json::json!({"model_type": HOSTILE, "hidden_size": 8}).to_string();
    let header = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    let folder = world.file("st/model.safetensors", file)?;
    world.file("st/config.json", config)?;
    tame(&["estimate", &world.missing("st")])?;
    tame(&["estimate", &folder])?;
    tame(&["export", &graphs[0], "--to", &world.missing("out.onnx")])?;
    let pickle = [b"\x80\x02c", HOSTILE.replace('\n', "").as_bytes(), b"\nsystem\n."].concat();
    let checkpoint = world.file("bad.pt", pickle)?;
    tame(&["export", &checkpoint, "--to", &world.missing("out.onnx")])?;
    tame(&["export", &checkpoint, "--to", &world.missing("nowhere/out.onnx")])
}

#[test]
fn runs_of_bench_and_their_reports() -> Result {
    let world = World::new()?;
    let names = format!("{{0: '{HOSTILE}', 1: 'b'}}");
    let good = world.file("good.onnx", onnx::detector(&names))?;
    let bad = Graph::default().node("Relu", &[HOSTILE], "output0", None);
    let bad =
        world.file("bad.onnx", bad.file(("images", &[1, 3, 64, 64]), ("output0", &[1, 6])))?;
    let clip = world.file("clip.mp4", HOSTILE)?;
    let pictures = world.file(&format!("pictures/{HOSTILE}.png"), HOSTILE)?;
    let pictures = Path::new(&pictures).parent().map(|path| path.display().to_string());
    let runs = world.missing("runs");
    let base = ["bench", "--engine=rten", "--max-frames=2", "--output-dir", &runs];
    let sources = [
        "synthetic:size=64x64".to_string(),
        format!("image_dir={}", pictures.unwrap_or_default()),
        format!("video={clip}"),
        world.missing("missing.mp4"),
        format!("gst={HOSTILE}"),
        format!("synthetic:{HOSTILE}"),
    ];
    for source in &sources {
        for model in [&good, &bad, &world.missing("missing.onnx")] {
            tame(&[&base[..], &["--model0", model, "--source", source]].concat())?;
        }
    }
    let mut count = 0;
    for run in fs::read_dir(&runs)? {
        for file in fs::read_dir(run?.path())? {
            let path = file?.path();
            check(&path.display().to_string(), &fs::read(&path)?)?;
            count += 1;
        }
    }
    assert!(count >= 12, "{count} files of reports were looked at");
    compared(&world, Path::new(&runs))
}

/// Two reports of strangers.
fn compared(world: &World, runs: &Path) -> Result {
    let whole = fs::read_dir(runs)?.filter_map(|run| Some(run.ok()?.path().join("report.json")));
    let report: Value = whole
        .filter_map(|path| serde_json::from_slice(&fs::read(path).ok()?).ok())
        .find(|report: &Value| report["models"][0]["status"] == "completed")
        .ok_or("no run is complete")?;
    let mut other = report.clone();
    other["models"][0]["name"] = HOSTILE.into();
    other["models"][0]["model_info"]["weights"] = format!("{HOSTILE}.onnx").into();
    other["metadata"]["host"] = HOSTILE.into();
    other["input_source"]["streams"][0]["name"] = HOSTILE.into();
    let one = world.file("one.json", report.to_string())?;
    let two = world.file("two.json", other.to_string())?;
    let none = world.file("none.json", format!("{{\"schema_version\": \"{HOSTILE}\""))?;
    tame(&["compare", &one, &two])?;
    tame(&["compare", &two, &one, "--force"])?;
    tame(&["compare", &one, &none])?;
    for record in [&one, &none, &world.missing("missing.json")] {
        tame(&["cost", "--record", record, "--price", "10"])?;
    }
    Ok(())
}

#[test]
fn logs_and_traces() -> Result {
    let world = World::new()?;
    let line = HOSTILE.replace('\n', " ");
    let log = format!("RAM 1000/7000MB (lfb 1x1MB) CPU [1%@1] {line}@50C VDD_{line} 9mW/9mW\n");
    let sample = serde_json::json!({
        "t": 1.0, "time": HOSTILE, "power_mode": HOSTILE, "warnings": [HOSTILE],
        "memory": {"total_bytes": 100, "used_bytes": 99}, "temperatures_c": {HOSTILE: 3.0},
        "power_w": {HOSTILE: 1.0}, "gpus": [{"name": HOSTILE}],
        "processes": [{"pid": 1, "name": HOSTILE}],
    });
    let refused = serde_json::json!({"error": HOSTILE});
    let log = world.file("teg.log", log)?;
    let ours = world.file("ours.jsonl", format!("{sample}\n{refused}\n{line}\n{sample}\n"))?;
    for file in [&log, &ours, &world.missing("missing.log")] {
        for format in ["table", "jsonl", "csv", "prometheus"] {
            tame(&["monitor", "--replay", file, "--format", format, "--alert-free", "90%"])?;
        }
    }
    let header = "op,id,size,stream,t_us\n";
    for (name, text) in [
        ("op.csv", format!("{header}{line},1,2,0,0\n")),
        ("head.csv", format!("{line}\n")),
        ("good.csv", format!("{header}a,1,2,0,0\n")),
    ] {
        tame(&["replay", &world.file(name, text)?, "--passes", "1"])?;
    }
    let pickle = [b"\x80\x02c", line.as_bytes(), b"\nsystem\n."].concat();
    tame(&["replay", &world.file("bad.pickle", pickle)?])?;
    tame(&["replay", &world.missing("missing.csv")])
}

#[test]
fn clouds_and_machines() -> Result {
    let world = World::new()?;
    let out = world.missing("out.npy");
    let grid = ["--grid", "4,4,4", "--voxel-size", "1", "--origin", "0,0,0", "--backend", "host"];
    let point = "property float x\nproperty float y\nproperty float z\nend_header\n1 1 1\n";
    for (name, text) in [
        ("a.ply", format!("ply\nformat ascii 1.0\n{HOSTILE}\n")),
        ("b.ply", format!("ply\nformat ascii 1.0\nelement vertex 1\n{point}")),
        ("c.pcd", format!("VERSION .7\nFIELDS {HOSTILE}\n")),
        ("d.npy", format!("\u{93}NUMPY{HOSTILE}")),
        ("e.npz", HOSTILE.to_string()),
    ] {
        let cloud = world.file(name, text)?;
        tame(&[&["voxelize", &cloud, "--out", &out], &grid[..]].concat())?;
    }
    let root = world.missing("machine");
    for (name, text) in [
        ("etc/os-release", format!("PRETTY_NAME=\"{HOSTILE}\"\n")),
        ("etc/nv_tegra_release", format!("# R36 (release), REVISION: {HOSTILE}\n")),
        ("proc/cpuinfo", format!("model name\t: {HOSTILE}\n")),
        ("proc/version", HOSTILE.to_string()),
        ("sys/firmware/devicetree/base/model", HOSTILE.to_string()),
        ("proc/meminfo", "MemTotal: 7802096 kB\nMemAvailable: 4915200 kB\n".to_string()),
    ] {
        world.file(&format!("machine/{name}"), text)?;
    }
    for verb in ["doctor", "report"] {
        tame(&[verb, "--root", &root])?;
        tame(&[verb, "--root", &world.missing("missing")])?;
    }
    let watched = plimsoll(&["monitor", "--once", "--root", &root]).output()?;
    check("monitor --root", &[watched.stdout, watched.stderr].concat())
}
