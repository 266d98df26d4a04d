//! Programs that the guard holds, seen by the monitor.

use super::stage::{CLIENT, DRIVER, StagePart, stage};
use super::*;

const PARTS: [StagePart; 2] = [DRIVER, CLIENT];

/// A program under a limit that holds a GiB of a made-up device: the monitor shows what it holds and
/// its limit, by the process and by the run.
#[test]
fn what_run_holds_is_shown_with_its_limit() -> Result {
    let folder = stage(&PARTS)?;
    let mut run = plimsoll(&["run", "--quiet", "--gpu-mem-limit", "4GiB", "--"])
        .arg(folder.join("client"))
        .arg("hold")
        .env("LD_LIBRARY_PATH", folder)
        .env("WAY", "runtime")
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = String::new();
    BufReader::new(run.stdout.take().ok_or("no stdout")?).read_line(&mut said)?;
    let record = json(&["monitor", "--once", "--interval", PATIENT], 0);
    let metrics =
        super::run(&["monitor", "--once", "--interval", PATIENT, "--format", "prometheus"]);
    let table = super::run(&["monitor", "--once", "--interval", PATIENT]);
    Command::new("kill").arg(run.id().to_string()).status()?;
    run.wait()?;
    assert_eq!(said.trim(), "holds 0", "the driver has given it memory");
    let (record, gib) = (record?, 1u64 << 30);
    let held = &record["processes"][0];
    assert_eq!(held["name"], "client", "who holds GPU memory comes first: {held}");
    assert_eq!(held["limit_bytes"], json!(4 * gib));
    assert!(held["guarded_bytes"].as_u64() >= Some(gib), "{held}");
    let one = &record["runs"][0];
    assert_eq!(
        (&one["pid"], &one["gpu"], &one["limit_bytes"]),
        (&held["pid"], &json!(0), &json!(4 * gib))
    );
    assert_eq!(one["used_bytes"], held["guarded_bytes"], "nobody else is in the run");
    let limit = format!(
        "plimsoll_run_gpu_memory_limit_bytes{{run=\"{}\",gpu=\"0\"}} {}",
        one["pid"],
        4 * gib
    );
    let metrics = text(&metrics?.stdout);
    assert!(metrics.contains(&limit), "{limit}: {metrics}");
    let table = text(&table?.stdout);
    let words = |start: &str| -> Vec<&str> {
        let line = table.lines().find(|line| line.trim_start().starts_with(start));
        line.unwrap_or_default().split_whitespace().collect()
    };
    let pid = held["pid"].to_string();
    let used = plimsoll::Bytes(one["used_bytes"].as_u64().ok_or("nothing is used")?).to_string();
    assert_eq!(
        words(&format!("run {pid}"))[2..].join(" "),
        format!("{used} of 4.00 GiB"),
        "{table}"
    );
    assert!(words("pid").join(" ").contains("GPU memory by the guard resident"), "{table}");
    // No driver tells what it holds; the guard does.
    assert!(words(&pid)[1..].join(" ").starts_with(&format!("– {used}")), "{table}");
    Ok(())
}
