//! The folder that a self-test leaves, each file whole or not at all.

use std::fs;
use std::path::Path;

use anyhow::Context;
use plimsoll::machine::Machine;
use serde::Serialize;

use super::super::DoctorReport;
use super::Selftest;
use crate::outcome::OrBadInput;
use crate::output::Answer;
use crate::page::TextPage;

/// What a machine is known by. Nothing in them names its owner or its network.
const KNOWN_BY: [&str; 12] = [
    "/etc/nv_tegra_release",
    "/etc/os-release",
    "/proc/buddyinfo",
    "/proc/cpuinfo",
    "/proc/device-tree/model",
    "/proc/driver/nvidia/version",
    "/proc/meminfo",
    "/proc/sys/kernel/arch",
    "/proc/sys/kernel/osrelease",
    "/proc/sys/kernel/ostype",
    "/sys/firmware/devicetree/base/compatible",
    "/sys/firmware/devicetree/base/model",
];

/// Makes the folder and sees that files can be made in it, before anything is tried; a path
/// that does not do is the caller's mistake.
pub(super) fn prepare(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder)
        .or_bad_input(|| format!("--selftest {} cannot be made a folder", folder.display()))?;
    let part = folder.join("selftest.part");
    fs::write(&part, "")
        .and_then(|()| fs::remove_file(part))
        .or_bad_input(|| format!("--selftest {}: no file can be made there", folder.display()))
}

/// Writes everything but what `bench` has written already.
pub(super) fn write(
    folder: &Path,
    doctor: &DoctorReport,
    selftest: &Selftest<'_>,
) -> anyhow::Result<()> {
    both(folder, "doctor", doctor)?;
    both(folder, "selftest", selftest)?;
    let machine = Machine::here();
    let gpus = machine.list("/proc/driver/nvidia/gpus");
    let gpus = gpus.iter().map(|folder| format!("{folder}/information"));
    for path in KNOWN_BY.into_iter().map(String::from).chain(gpus) {
        if let Some(text) = machine.read(&path) {
            whole(&folder.join("root").join(path.trim_start_matches('/')), &(text + "\n"))?;
        }
    }
    Ok(())
}

/// An answer for programs and for people.
fn both<A: Answer + Serialize>(folder: &Path, name: &str, answer: &A) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(answer).context("cannot write the answer as JSON")?;
    whole(&folder.join(format!("{name}.json")), &(json + "\n"))?;
    let mut page = TextPage::new(false, false);
    answer.page(&mut page);
    whole(&folder.join(format!("{name}.txt")), &page.into_text())
}

fn whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let part = path.with_extension("part");
        fs::write(&part, text)?;
        fs::rename(part, path)
    };
    written().with_context(|| format!("cannot write {}", path.display()))
}
