//! `plimsoll bench` under the guard: TensorRT's stand-in takes its memory from the fake driver.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::common::{Result, plimsoll, text};
use super::stage;

const MIB: u64 = 1 << 20;
/// What the stand-in takes beside its weights: scratch memory, and buffers for 64 x 64 pixels.
const BESIDE: u64 = 4096 + (3 * 64 * 64 + 56) * 4;
/// The driver packs small blocks by this.
const STEP: u64 = 512;

/// A folder with an engine for each slot: its weights, and what each of its runs takes besides
/// without telling.
struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(engines: [(u64, u64); 2]) -> Result<Bench> {
        let folder = tempfile::tempdir()?;
        for (slot, (weights, plugin)) in engines.iter().enumerate() {
            let names = br#"{"names": "{0: 'ship', 1: 'buoy', 2: 'gull'}", "stride": 16}"#;
            let plan = format!("FAKE 64 0 {weights} cuda={plugin}");
            let length = u32::try_from(names.len())?.to_le_bytes();
            let file = [&length, &names[..], plan.as_bytes()].concat();
            fs::write(folder.path().join(format!("{slot}.engine")), file)?;
        }
        Ok(Bench { folder })
    }

    fn command(&self, words: &[&str]) -> Result<Command> {
        let at = |name: &str| self.folder.path().join(name).display().to_string();
        let mut command = plimsoll(&["bench", "--json", "--engine", "tensorrt"]);
        command.args(["--source", "synthetic:frames=6,size=64x64", "--warmup", "1"]);
        command.args(["--library", &stage()?.join("libfake_tensorrt.so").display().to_string()]);
        command.args(["--model0", &at("0.engine"), "--model1", &at("1.engine")]);
        command.args(["--output-dir", &at("runs"), "--run-name", "a"]).args(words);
        command.env("LD_LIBRARY_PATH", stage()?).env("FAKE_CUDA_STATE", at("books"));
        command.env("FAKE_CONTEXT", (100 * MIB).to_string());
        command.env("TMPDIR", self.folder.path()).env_remove("PLIMSOLL_NO_GUARD");
        Ok(command)
    }

    fn run(&self, words: &[&str]) -> Result<(Output, Value)> {
        let output = self.command(words)?.output()?;
        let report = fs::read(self.folder.path().join("runs/a/report.json"))
            .map_err(|error| format!("{error}: {}", text(&output.stderr)))?;
        Ok((output, serde_json::from_slice(&report)?))
    }

    /// The most that the driver had handed out at once, by its own books.
    fn most(&self) -> Result<u64> {
        let books = fs::read(self.folder.path().join("books"))?;
        let word = books.get(24..32).ok_or("no books")?;
        Ok(u64::from_le_bytes(word.try_into()?))
    }

    /// What the guard has left behind.
    fn leftovers(&self) -> Result<Vec<PathBuf>> {
        let entries = fs::read_dir(self.folder.path())?.collect::<std::io::Result<Vec<_>>>()?;
        let left = entries.into_iter().map(|entry| entry.path());
        Ok(left.filter(|path| path.to_string_lossy().contains("plimsoll-run-")).collect())
    }
}

fn gib(bytes: u64) -> f64 {
    bytes as f64 / (1u64 << 30) as f64
}

/// What a slot holds while it runs.
fn held(weights: u64, plugin: u64) -> u64 {
    weights + 4096 + (BESIDE - 4096).next_multiple_of(STEP) + plugin
}

#[test]
fn the_limit_of_a_bench_is_hard_and_each_slots_peak_exact() -> Result {
    for parallel in [false, true] {
        let bench = Bench::new([(200 * MIB, 64 * MIB), (300 * MIB, 0)])?;
        let flags: &[&str] = if parallel { &["--parallel"] } else { &[] };
        let (output, report) = bench.run(&[&["--gpu-mem-limit", "2GiB"], flags].concat())?;
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(serde_json::from_slice::<Value>(&output.stdout)?, report);
        let safety = &report["memory_safety"];
        assert_eq!((&safety["limit_type"], &safety["verified"]), (&"hard".into(), &true.into()));
        assert_eq!(safety["methods_applied"][0], "guard", "{safety:#}");
        assert_eq!(safety["all_within_limit"], true);
        let peaks = [held(200 * MIB, 64 * MIB), held(300 * MIB, 0)];
        for (model, peak) in report["models"].as_array().ok_or("no models")?.iter().zip(peaks) {
            let memory = &model["gpu_memory"];
            assert_eq!(memory["peak_gb"], gib(peak), "{parallel}: {memory:#}");
            assert_eq!(
                (&memory["obtained"], &memory["limit_type"]),
                (&"counted".into(), &"hard".into())
            );
            assert_eq!(memory["what"], "gpu_allocations");
        }
        // The context is nobody's: a line of its own.
        assert_eq!(report["shared"]["peak_gb"], gib(100 * MIB), "{:#}", report["shared"]);
        assert_eq!(report["shared"]["obtained"], "counted");
        assert!(bench.leftovers()?.is_empty(), "{:?}", bench.leftovers()?);
    }
    Ok(())
}

/// The engine's own ledger has room for all that it is told of; only the guard knows the rest.
#[test]
fn what_an_engine_does_not_tell_is_refused_all_the_same() -> Result {
    let bench = Bench::new([(200 * MIB, 1900 * MIB), (300 * MIB, 0)])?;
    let (output, report) = bench.run(&["--gpu-mem-limit", "2GiB"])?;
    assert_eq!(output.status.code(), Some(0), "one completed: {}", text(&output.stderr));
    let [first, second] = [&report["models"][0], &report["models"][1]];
    assert_eq!((&first["status"], &second["status"]), (&"failed".into(), &"completed".into()));
    let reason = first["reason"].as_str().ok_or("no reason")?;
    assert!(reason.contains("a plugin is out of memory"), "{reason}");
    let warnings = report["memory_safety"]["warnings"].to_string();
    assert!(warnings.contains("refused 1 requests past the limit, 1.86 GiB in all"), "{warnings}");
    assert_eq!(first["gpu_memory"]["peak_gb"], gib(held(200 * MIB, 0)));
    assert!(bench.most()? <= 2048 * MIB, "{}", bench.most()?);
    Ok(())
}

/// A GPU that was named and is too small below the limit: both slots fail, nothing goes to the
/// CPU, and the reason says what was needed and what to do.
#[test]
fn a_model_that_does_not_fit_below_the_limit_says_what_it_needed() -> Result {
    let bench = Bench::new([(200 * MIB, 0), (220 * MIB, 0)])?;
    let (output, report) = bench.run(&["--device", "cuda:0", "--gpu-mem-limit", "250MiB"])?;
    assert_eq!(output.status.code(), Some(3), "{}", text(&output.stderr));
    for model in report["models"].as_array().ok_or("no models")? {
        assert_eq!(model["status"], "failed", "{model:#}");
        let reason = model["reason"].as_str().ok_or("no reason")?;
        let fact = "it does not fit on cuda:0 below the limit of 250.00 MiB: it had asked for ";
        assert!(reason.starts_with(fact), "{reason}");
        let remedy = "raise --gpu-mem-limit to ";
        assert!(reason.contains(remedy) && reason.contains("--device cpu"), "{reason}");
        let needed = reason.split(fact).nth(1).and_then(|rest| rest.split(' ').next());
        let needed: f64 = needed.ok_or("no figure")?.parse()?;
        assert!((300.0..520.0).contains(&needed), "weights and the context of 100: {reason}");
        assert_eq!(model["gpu_memory"]["limit_type"], "hard");
    }
    let safety = &report["memory_safety"];
    assert_eq!((&safety["limit_type"], &safety["total_violations"]), (&"hard".into(), &0.into()));
    Ok(())
}

#[test]
fn without_the_guard_a_bench_is_what_it_was() -> Result {
    let bench = Bench::new([(200 * MIB, 1900 * MIB), (300 * MIB, 0)])?;
    let (output, report) = bench.run(&["--gpu-mem-limit", "2GiB", "--no-guard"])?;
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(report["models"][0]["status"], "completed");
    assert_eq!(report["models"][0]["gpu_memory"]["source"], "tensorrt allocator");
    // The engine was handed the limit and keeps to it as far as it counts; nobody tried that.
    let safety = &report["memory_safety"];
    assert_eq!((&safety["limit_type"], &safety["verified"]), (&"soft".into(), &false.into()));
    assert_eq!(safety["methods_applied"], serde_json::json!(["tensorrt arena"]));
    assert_eq!(report["models"][0]["gpu_memory"]["limit_type"], "soft");
    assert!(bench.most()? > 2048 * MIB, "nobody refused it");
    let mut command = bench.command(&["--gpu-mem-limit", "2GiB"])?;
    let output = command.env("PLIMSOLL_NO_GUARD", "1").output()?;
    assert_eq!(
        serde_json::from_slice::<Value>(&output.stdout)?["models"][0]["status"],
        "completed"
    );
    Ok(())
}

/// No place from which a library can be loaded: it runs, and says why the limit is soft.
#[test]
fn a_bench_that_cannot_be_guarded_says_why() -> Result {
    let bench = Bench::new([(200 * MIB, 0), (300 * MIB, 0)])?;
    let mut command = bench.command(&[])?;
    // A chain of nothing but names that cannot stand in LD_PRELOAD would still find /tmp, so
    // the second start is pretended instead, without a guard.
    let output = command.env("PLIMSOLL_GUARD", bench.folder.path()).output()?;
    let report: Value = serde_json::from_slice(&output.stdout)?;
    let warnings = report["memory_safety"]["warnings"].to_string();
    assert!(
        warnings.contains("the guard does not hold this run: the system's loader"),
        "{warnings}"
    );
    assert_eq!(report["models"][0]["gpu_memory"]["source"], "tensorrt allocator");
    assert_ne!(report["memory_safety"]["limit_type"], "hard");
    Ok(())
}

/// Under `plimsoll run` the guard and the limit are there already.
#[test]
fn a_bench_under_run_keeps_to_the_line_of_run() -> Result {
    let bench = Bench::new([(200 * MIB, 0), (900 * MIB, 0)])?;
    let inner = bench.command(&[])?;
    let mut outer = plimsoll(&["run", "--quiet", "--limit", "1GiB", "--reserve", "0", "--"]);
    outer.arg(inner.get_program()).args(inner.get_args());
    outer.envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = outer.output()?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("{error}: {}", text(&output.stderr)))?;
    assert_eq!(report["memory_safety"]["effective_limit_gb"], 1.0);
    assert_eq!(report["memory_safety"]["limit_type"], "hard");
    assert_eq!(report["models"][0]["gpu_memory"]["peak_gb"], gib(held(200 * MIB, 0)));
    // The second's 900 MiB fit beside the context of 100 once the first has given back its own.
    assert_eq!(report["models"][1]["status"], "completed", "{:#}", report["models"][1]);
    Ok(())
}

/// The ledger has the limit: what the environment says to a guard without one is not passed on.
#[test]
fn a_guarded_bench_leaves_out_a_limit_of_the_environment() -> Result {
    let bench = Bench::new([(MIB, 0), (MIB, 0)])?;
    let mut command = bench.command(&["--duration", "60s", "--mode", "rgb"])?;
    command.env("PLIMSOLL_GPU_MEM_LIMIT", "1GiB").env("PLIMSOLL_GPU_MEM_LIMIT_0", "2GiB");
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let begun = Instant::now();
    let variables = loop {
        let text = text(&fs::read(format!("/proc/{}/environ", child.id()))?);
        if text.contains("PLIMSOLL_BENCH_GUARDED=") {
            break text;
        }
        assert!(begun.elapsed() < Duration::from_secs(50), "it did not start again");
        std::thread::sleep(Duration::from_millis(20));
    };
    Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    child.wait()?;
    assert!(!variables.contains("PLIMSOLL_GPU_MEM_LIMIT"), "{variables}");
    Ok(())
}

/// It stays the same process: what is sent to it reaches it, and it ends as it always does.
#[test]
fn a_guarded_bench_is_stopped_as_any_other() -> Result {
    let bench = Bench::new([(MIB, 0), (MIB, 0)])?;
    let mut command = bench.command(&["--duration", "60s", "--mode", "rgb"])?;
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let begun = Instant::now();
    let report = bench.folder.path().join("runs/a/metrics.jsonl");
    while !fs::read_to_string(&report).is_ok_and(|text| text.contains("\"slot\"")) {
        assert!(begun.elapsed() < Duration::from_secs(50), "no frame came");
        std::thread::sleep(Duration::from_millis(50));
    }
    Command::new("kill").args(["-INT", &child.id().to_string()]).status()?;
    let output = child.wait_with_output()?;
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout)?;
    assert_eq!(
        (&report["interrupted"], &report["memory_safety"]["limit_type"]),
        (&true.into(), &"hard".into())
    );
    assert!(bench.leftovers()?.is_empty());
    Ok(())
}
