//! The files of a report: each written whole, or not at all.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, bail};

use super::answer::Report;
use super::html;

/// Writes `report.json`, `report.html` and `trace.csv`.
pub(super) fn write(report: &Report, folder: &Path) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(report)? + "\n";
    // The program may have removed it.
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    for (name, text) in [
        ("report.json", json.as_str()),
        ("report.html", &html::render(report)),
        ("trace.csv", &report.history.trace),
    ] {
        whole(&folder.join(name), folder, text)
            .with_context(|| format!("cannot write {}", folder.join(name).display()))?;
    }
    Ok(())
}

/// Makes the folder before the program is started, and a file in it, so that a wrong name costs
/// no run.
pub(super) fn prepare(folder: &Path) -> anyhow::Result<()> {
    let shown = folder.display();
    if folder.exists() && !folder.is_dir() {
        bail!("{shown} is not a folder; --report needs one, or a name that is still free");
    }
    fs::create_dir_all(folder).with_context(|| format!("cannot make {shown}"))?;
    tempfile::tempfile_in(folder).with_context(|| format!("cannot write into {shown}"))?;
    Ok(())
}

fn whole(path: &Path, folder: &Path, text: &str) -> anyhow::Result<()> {
    // Readable as any file that the user writes, not only by the user.
    let readable = fs::Permissions::from_mode(0o666);
    let mut file = tempfile::Builder::new().permissions(readable).tempfile_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}
