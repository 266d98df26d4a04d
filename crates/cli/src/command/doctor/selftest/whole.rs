//! Promises about the machine as a whole.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use plimsoll::machine::Machine;
use plimsoll::platform::system_memory;
use plimsoll::{MemoryConfig, estimate_inference_memory};

use super::Check;

/// The demo of a debug build on a slow board; a hang is no longer.
const BENCH_TIMEOUT: Duration = Duration::from_secs(300);

pub(super) fn checks(folder: &Path, progress: &mut dyn FnMut(&str)) -> Vec<Check> {
    let on = |promise, tried: fn() -> anyhow::Result<String>| Check::of("machine", promise, tried);
    let mut checks = vec![
        on("the system reports its memory, and the figures agree", system),
        on("everything that reports unified memory agrees", evidence),
        on("Mistral 7B takes 14.28 GiB, as computed by hand", mistral),
        on("a wrong configuration is refused with the field and the range", config),
    ];
    progress("running the embedded detectors");
    let promise = "the embedded detectors run, and the report is whole";
    checks.push(Check::of("machine", promise, || bench(folder)));
    checks
}

fn system() -> anyhow::Result<String> {
    let memory = system_memory(Path::new("/"))?;
    let total = memory.total.context("MemTotal is not reported")?;
    let available = memory.available.context("MemAvailable is not reported")?;
    ensure!(available <= total, "{available} available of {total}");
    if let Some(nvmap) = memory.nvmap_used {
        ensure!(nvmap <= total, "nvmap holds {nvmap} of {total}");
    }
    Ok(format!("{available} available of {total}"))
}

fn evidence() -> anyhow::Result<String> {
    let evidence = Machine::here().evidence();
    let differ: Vec<String> = evidence
        .windows(2)
        .filter(|pair| pair[0].is_unified != pair[1].is_unified)
        .map(|pair| format!("{} / {}", pair[0], pair[1]))
        .collect();
    ensure!(differ.is_empty(), "{}", differ.join("; "));
    Ok(match evidence.first() {
        Some(first) => format!("{} of them; {first}", evidence.len()),
        None => "not known: there is no GPU here".to_string(),
    })
}

fn mistral() -> anyhow::Result<String> {
    let estimate = estimate_inference_memory(4096, 14336, 32, 32000, 32, 8, 4096, 2);
    let total = format!("{:.2} GiB", estimate.total_gb());
    ensure!(total == "14.28 GiB", "{total}");
    Ok(total)
}

fn config() -> anyhow::Result<String> {
    let refused = MemoryConfig::new().with_gpu_memory_fraction(1.5).validate();
    let error = refused.err().context("a fraction of 1.5 was accepted")?.to_string();
    ensure!(error.contains("gpu_memory_fraction"), "{error}");
    Ok(error)
}

/// The main job in a process of its own, as a user runs it.
fn bench(folder: &Path) -> anyhow::Result<String> {
    let program = std::env::current_exe().context("this program cannot be found again")?;
    let mut child = Command::new(program)
        .args(["bench", "--max-frames", "10", "--warmup", "1", "--quiet", "--run-name", "bench"])
        .arg("--output-dir")
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("bench cannot be started")?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if begun.elapsed() > BENCH_TIMEOUT {
            child.kill()?;
            child.wait()?;
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    ensure!(status.success(), "bench ended with {status}");
    let path = folder.join("bench/report.json");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let report: serde_json::Value = serde_json::from_str(&text)?;
    let models = report["models"].as_array().context("report.json has no models")?;
    for model in models {
        ensure!(model["status"] == "completed", "{}: {}", model["name"], model["status"]);
    }
    ensure!(models.len() == 2, "{} models", models.len());
    Ok("two slots completed; report in bench/".to_string())
}
