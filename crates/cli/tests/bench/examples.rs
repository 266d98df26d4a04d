//! The command lines of the documents that Plimsoll was described in, run as they are written
//! there, with our program's name.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{Result, plimsoll, shared, text};

/// What they ask for, with the slots that must complete here. An `.engine` needs TensorRT,
/// which is not here: its slot fails, and says so.
const LINES: [(&str, [&str; 2]); 6] = [
    ("--mode rgb --source video=/path/to/rgb.mp4 --model0 yolo11n.pt", ["completed", "skipped"]),
    (
        "--mode thermal --source video=/path/to/thermal.mp4 --model1 yolo11n.pt",
        ["skipped", "completed"],
    ),
    (
        "--mode dual --rgb_source /path/to/rgb.mp4 --thermal_source /path/to/thermal.mp4 \
         --model0 yolo11n.pt --model1 yolo11n.pt",
        ["completed", "completed"],
    ),
    (
        "--mode rgb --source image_dir=/path/to/images --model0 /path/to/model.engine",
        ["failed", "skipped"],
    ),
    (
        "--source image_dir=/path/to/images --model0 /path/to/yolo11n.engine \
         --model1 /path/to/yolo11s.engine",
        ["failed", "failed"],
    ),
    (
        "--source image_dir=/path/to/images --model0 /path/to/model.pt --gpu_mem_limit_gb 12.0",
        ["completed", "skipped"],
    ),
];

/// A folder with all that the lines name.
fn stage() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    let place = folder.path();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    for name in ["rgb.mp4", "thermal.mp4"] {
        fs::copy(fixtures.join("infer/tests/fixtures/clip.mp4"), place.join(name))?;
    }
    for name in ["yolo11n.pt", "model.pt"] {
        fs::copy(fixtures.join("models/tests/fixtures/small11.pt"), place.join(name))?;
    }
    for name in ["model.engine", "yolo11n.engine", "yolo11s.engine"] {
        fs::write(place.join(name), b"no engine at all")?;
    }
    fs::create_dir(place.join("images"))?;
    for name in ["1.bmp", "2.bmp"] {
        fs::write(place.join("images").join(name), bitmap(64))?;
    }
    Ok(folder)
}

/// A square bitmap of 24 bits, grey in the middle.
fn bitmap(side: u32) -> Vec<u8> {
    let mut bytes = b"BM".to_vec();
    for value in [54 + 3 * side * side, 0, 54, 40, side, side] {
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend([1, 0, 24, 0]);
    bytes.extend([0; 24]);
    bytes.resize(54 + 3 * (side * side) as usize, 128);
    bytes
}

fn run(line: &str, place: &Path) -> Result<(Option<i32>, Value, String)> {
    let line = line.replace("/path/to", &place.display().to_string());
    let words: Vec<&str> = ["bench", "--run-name=a", "--quiet", "--json"]
        .into_iter()
        .chain(line.split_whitespace())
        .collect();
    drop(fs::remove_dir_all(place.join("outputs")));
    let ran = plimsoll(&words).current_dir(place).env_remove("ORT_DYLIB_PATH").output()?;
    let report = fs::read(place.join("outputs/a/report.json"))
        .map_err(|error| format!("{line}: {error}: {}", text(&ran.stderr)))?;
    Ok((ran.status.code(), serde_json::from_slice(&report)?, text(&ran.stderr)))
}

#[test]
fn the_documents_lines_run_as_written() -> Result {
    let folder = stage()?;
    for (line, wanted) in LINES {
        let (code, report, said) = run(line, folder.path())?;
        let statuses = [0, 1].map(|slot| report["models"][slot]["status"].clone());
        assert_eq!(statuses, wanted, "{line}: {report}");
        let fine = wanted.contains(&"completed");
        assert_eq!(code, Some(if fine { 0 } else { 3 }), "{line}: {said}");
        if line.contains("12.0") {
            assert_eq!(report["memory_safety"]["limit_gb"], 12.0, "no profile was named");
            assert_eq!(report["memory_safety"]["warnings"], serde_json::json!([]));
        }
    }
    Ok(())
}

/// The documents may hold more than the list above: every line in them is understood.
#[test]
fn every_line_in_the_documents_is_understood() -> Result {
    let Some(seeds) = shared("seeds") else {
        println!("skipped: the documents are not beside the repository");
        return Ok(());
    };
    let folder = stage()?;
    let mut count = 0;
    for entry in fs::read_dir(seeds)? {
        let whole = String::from_utf8_lossy(&fs::read(entry?.path())?).replace("\\\n", " ");
        for line in whole.lines() {
            let flags = line.trim().strip_prefix("python3 -m jetson_bench.cli").map(str::trim);
            let Some(flags) = flags.filter(|flags| flags.starts_with("--")) else { continue };
            if flags.contains("...") {
                continue;
            }
            let (code, _, said) = run(flags, folder.path())?;
            assert!(matches!(code, Some(0 | 3)), "{line}: {said}");
            count += 1;
        }
    }
    assert!(count >= 6, "{count}");
    Ok(())
}
