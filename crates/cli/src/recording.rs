//! `--root`: the recorded file tree of another machine.

use std::path::Path;

use crate::outcome::{BadInput, OrBadInput};

/// What every recording has one of: where a kernel or a system says what it is.
const FOLDERS: [&str; 3] = ["proc", "sys", "etc"];

/// Refuses a folder that is no recording of a machine: all that it told would be dashes.
pub(crate) fn check_root(root: &Path) -> anyhow::Result<()> {
    let name = root.display();
    std::fs::read_dir(root).or_bad_input(|| format!("--root {name} cannot be read as a folder"))?;
    if FOLDERS.iter().any(|folder| root.join(folder).is_dir()) {
        return Ok(());
    }
    let text = "has none of the folders proc, sys and etc; name the root of a recorded file tree";
    Err(BadInput::new(format!("--root {name} is no recorded machine: it {text}")).into())
}
