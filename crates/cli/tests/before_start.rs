//! What can be seen to be wrong before a verb starts: exit code 2, one message that names it,
//! and nothing is written. What an output would overwrite is such a thing, and so is what would
//! be read without end.
#![cfg(target_os = "linux")]

#[expect(dead_code, reason = "each test file uses its own part")]
mod common;
#[expect(dead_code, reason = "each test file uses its own part")]
mod onnx;
#[expect(dead_code, reason = "no script waits here")]
#[path = "common/waiting.rs"]
mod waiting;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::{Result, plimsoll, text};
use waiting::until;

const PATIENCE: Duration = Duration::from_secs(20);

struct World(tempfile::TempDir);

impl World {
    /// A model, a cloud, a picture, a log, a checkpoint and some that are none.
    fn new() -> Result<World> {
        let world = World(tempfile::tempdir()?);
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/examples");
        fs::write(world.path("model.onnx"), onnx::detector("{0: 'a', 1: 'b'}"))?;
        fs::write(world.path("junk.onnx"), "no graph at all")?;
        fs::write(world.path("cloud.npy"), npy("(2, 3)", 6))?;
        fs::copy(root.join("tegrastats.log"), world.path("teg.log"))?;
        fs::copy(root.join("small8.pt"), world.path("small8.pt"))?;
        fs::hard_link(world.path("small8.pt"), world.path("link.onnx"))?;
        fs::hard_link(world.path("model.onnx"), world.path("model.jsonl"))?;
        fs::create_dir(world.path("pictures"))?;
        fs::write(world.path("pictures/a.png"), "a picture")?;
        fs::create_dir(world.path("empty"))?;
        fs::create_dir(world.path("st"))?;
        Ok(world)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Every file there is, with its bytes.
    fn contents(&self) -> Result<BTreeMap<PathBuf, Vec<u8>>> {
        let mut all = BTreeMap::new();
        let mut folders = vec![self.0.path().to_path_buf()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder)? {
                let (path, kind) =
                    entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
                if kind.is_dir() {
                    folders.push(path.clone());
                }
                let bytes = if kind.is_file() { fs::read(&path)? } else { Vec::new() };
                all.insert(path, bytes);
            }
        }
        Ok(all)
    }

    /// Runs it here; it must refuse, name this, and change nothing.
    fn refuses(&self, line: &str, names: &str) -> Result {
        let before = self.contents()?;
        let begun = Instant::now();
        let words: Vec<&str> = line.split(' ').collect();
        let run = plimsoll(&words).current_dir(self.0.path()).output()?;
        let said = text(&run.stderr);
        let one = said.matches("error:").count() == 1 && said.starts_with("error:");
        let fine = run.status.code() == Some(2) && one && said.contains(names);
        if !fine || !run.stdout.is_empty() || begun.elapsed() > PATIENCE {
            return Err(format!("{line}: {}: {said}", run.status).into());
        }
        if self.contents()? != before {
            return Err(format!("{line}: something was written").into());
        }
        Ok(())
    }
}

/// An array of floats, all of them zero.
fn npy(shape: &str, floats: usize) -> Vec<u8> {
    let head = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
    let mut file = b"\x93NUMPY\x01\x00".to_vec();
    file.extend((head.len() as u16).to_le_bytes());
    file.extend(head.as_bytes());
    file.resize(file.len() + floats * 4, 0);
    file
}

#[test]
fn bench_looks_before_it_starts() -> Result {
    let world = World::new()?;
    let scenes = "--source synthetic:size=64x64";
    for (flags, names) in [
        ("--source missing.mp4", "missing.mp4"),
        ("--source video=missing.mp4", "missing.mp4"),
        ("--model0 model.onnx --source missing.mp4", "missing.mp4"),
        ("--model0 model.onnx --source image_dir=missing", "missing"),
        ("--model0 model.onnx --source image_dir=empty", "empty"),
        ("--model0 model.onnx --source image_dir=pictures --labels no.json", "no.json"),
        ("--model0 model.onnx --source image_dir=pictures --labels teg.log", "a COCO file"),
        ("--model0 model.onnx --source synthetic --labels no.json", "a folder of pictures"),
        ("--model0 model.onnx --source synthetic --thermal-labels no.json", "for two cameras"),
        ("--model0 model.onnx --source camera=/dev/video99", "/dev/video99"),
        ("--model0 model.onnx --rgb-source synthetic --thermal-source nope.mp4", "nope.mp4"),
        (&format!("--model0 missing.onnx {scenes}"), "missing.onnx"),
        (&format!("--model0 stem {scenes}"), "stem.onnx"),
        (&format!("--model0 junk.onnx {scenes}"), "junk.onnx"),
        (&format!("--model0 model.onnx --model1 junk.onnx {scenes}"), "junk.onnx"),
        (&format!("--model0 model.onnx --library missing.so {scenes}"), "missing.so"),
        (&format!("--model0 model.onnx --rate 1e-20 {scenes}"), "--rate"),
        (&format!("--model0 model.onnx --load-timeout 0s {scenes}"), "--load-timeout"),
        (&format!("--model0 model.onnx --run-name a/b {scenes}"), "a/b"),
        (&format!("--model0 model.onnx --profile toaster {scenes}"), "toaster"),
        (&format!("--model0 model.onnx --detections no/d.jsonl {scenes}"), "no/d.jsonl"),
        (&format!("--model0 model.onnx --detections empty {scenes}"), "empty"),
        (&format!("--model0 model.onnx --output-dir teg.log {scenes}"), "teg.log"),
    ] {
        world.refuses(&format!("bench {flags}"), names)?;
    }
    Ok(())
}

#[test]
fn an_output_is_no_input() -> Result {
    let world = World::new()?;
    let grid = "--grid 4,4,4 --voxel-size 1 --origin 0,0,0 --backend host";
    for line in [
        "bench --model0 model.onnx --source synthetic --detections model.onnx",
        "bench --model0 model --source synthetic --detections model.jsonl",
        "bench --model0 model.onnx --source image_dir=pictures --detections pictures/a.png",
        "bench --model0 model.onnx --source video=teg.log --detections ./teg.log",
        "monitor --replay teg.log --log teg.log",
        "monitor --replay teg.log --log pictures/../teg.log --format jsonl",
        "export small8.pt --to link.onnx",
        &format!("voxelize cloud.npy --out cloud.npy {grid}"),
        &format!("voxelize cloud.npy --out new.npy --preview cloud.npy {grid}"),
        &format!("voxelize cloud.npy --out new.npy --preview new.npy {grid}"),
    ] {
        world.refuses(line, "is the same file as")?;
    }
    Ok(())
}

#[test]
fn the_other_verbs_look_before_they_start() -> Result {
    let world = World::new()?;
    let grid = "--grid 4,4,4 --voxel-size 1 --origin 0,0,0 --backend host";
    for (line, names) in [
        ("monitor --replay missing.log --log new.log", "missing.log"),
        ("monitor --once --log nowhere/new.log", "nowhere/new.log"),
        ("monitor --once --serve nonsense --log new.log", "nonsense"),
        ("export missing.pt --to new.onnx", "missing.pt"),
        ("export junk.onnx --to new.onnx", "junk.onnx"),
        ("export small8.pt --to nowhere/new.onnx", "nowhere"),
        ("estimate missing.gguf", "missing.gguf"),
        ("estimate junk.onnx", "junk.onnx"),
        ("replay missing.csv", "missing.csv"),
        ("replay junk.onnx", "junk.onnx"),
        ("compare missing teg.log", "missing"),
        ("cost --record missing.json --price 1", "missing.json"),
        ("doctor --root missing", "missing"),
        ("report --root missing", "missing"),
        (&format!("voxelize missing.npy --out new.npy {grid}"), "missing.npy"),
        (&format!("voxelize cloud.npy --out nowhere/new.npy {grid}"), "nowhere"),
        (&format!("voxelize cloud.npy --out new.txt {grid}"), "new.txt"),
        (
            &format!("voxelize cloud.npy --out new.npy --preview nowhere/new.png {grid}"),
            "nowhere/new.png",
        ),
    ] {
        world.refuses(line, names)?;
    }
    Ok(())
}

fn pipe(path: &Path) -> Result {
    match Command::new("mkfifo").arg(path).status()?.success() {
        true => Ok(()),
        false => Err("mkfifo failed".into()),
    }
}

#[test]
fn nothing_is_read_without_end() -> Result {
    let world = World::new()?;
    world.refuses("cost --record /dev/zero --price 1", "/dev/zero")?;
    world.refuses("replay /dev/zero", "/dev/zero")?;
    world.refuses("estimate /dev/zero", "/dev/zero")?;
    world.refuses("bench --model0 /dev/zero --source synthetic", "/dev/zero")?;
    world.refuses("bench --model0 model.onnx --source video=/dev/zero", "/dev/zero")?;
    for name in ["st/model.safetensors", "pipe.gguf", "pipe.onnx", "pipe.npy", "empty/report.json"]
    {
        pipe(&world.path(name))?;
    }
    world.refuses("estimate st", "model.safetensors")?;
    world.refuses("estimate pipe.gguf", "pipe.gguf")?;
    world.refuses("estimate pipe.onnx", "pipe.onnx")?;
    world.refuses("bench --model0 pipe.onnx --source synthetic", "pipe.onnx")?;
    world.refuses("export pipe.onnx --to new.onnx", "pipe.onnx")?;
    world.refuses("compare empty teg.log", "report.json")?;
    let grid = "--grid 4,4,4 --voxel-size 1 --origin 0,0,0 --backend host";
    world.refuses(&format!("voxelize pipe.npy --out new.npy {grid}"), "pipe.npy")?;
    fs::remove_file(world.path("st/model.safetensors"))?;
    let header = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let whole = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 4]].concat();
    fs::write(world.path("st/model.safetensors"), whole)?;
    pipe(&world.path("st/config.json"))?;
    world.refuses("estimate st", "config.json")
}

/// The file has eight gigabytes of zeros, none of them on the disk.
#[test]
fn a_cloud_that_is_cut_while_it_is_read_is_an_error() -> Result {
    let world = World::new()?;
    let path = world.path("large.npy");
    fs::write(&path, npy("(700000000, 3)", 0))?;
    let file = fs::OpenOptions::new().write(true).open(&path)?;
    file.set_len(file.metadata()?.len() + 700_000_000 * 12)?;
    let words = "voxelize large.npy --out out.npy --grid 8,8,8 --voxel-size 1 --origin 0,0,0 \
                 --backend host";
    let words: Vec<&str> = words.split_whitespace().collect();
    let mut command = plimsoll(&words);
    command.current_dir(world.0.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn()?;
    let io = format!("/proc/{}/io", child.id());
    let read = || {
        let text = fs::read_to_string(&io).ok()?;
        text.lines().find_map(|line| line.strip_prefix("rchar: "))?.parse::<u64>().ok()
    };
    until("a part of the file", || read().filter(|bytes| *bytes > 100_000_000))?;
    file.set_len(4096)?;
    let run = child.wait_with_output()?;
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(3), "{said}");
    assert!(said.contains("large.npy") && said.contains("cut while it was read"), "{said}");
    assert!(!world.path("out.npy").exists());
    Ok(())
}
