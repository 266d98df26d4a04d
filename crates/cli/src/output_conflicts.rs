//! The one check that no verb overwrites a file that it reads.
//!
//! Every verb that writes a file names what it writes and what it reads here, before either is
//! opened: an output that is an input would empty it, or be read as it grows. Links count as
//! what they lead to. Only regular files matter: a terminal may well be both.

use std::fs::{self, Metadata};
use std::path::{Path, PathBuf};

use crate::outcome::BadInput;

/// A file and the flag, or the words, that it is named by.
pub(crate) type Named<'a> = (&'a str, PathBuf);

/// Refuses an output that is an input, and two outputs that are one file. `inputs` is called
/// only if an output exists.
pub(crate) fn check<'a, I>(outputs: &[Named<'_>], inputs: impl FnOnce() -> I) -> anyhow::Result<()>
where
    I: IntoIterator<Item = Named<'a>>,
{
    for (at, (flag, path)) in outputs.iter().enumerate() {
        if let Some((other, _)) = outputs[..at].iter().find(|(_, other)| same(other, path)) {
            return Err(refusal(flag, path, other));
        }
    }
    let there: Vec<_> = outputs.iter().filter(|(_, path)| path.is_file()).collect();
    if there.is_empty() {
        return Ok(());
    }
    for (input, read) in inputs() {
        if let Some((flag, path)) = there.iter().find(|(_, path)| same(path, &read)) {
            return Err(refusal(flag, path, input));
        }
    }
    Ok(())
}

/// Refuses stdout that is a file which is read line by line while answers are written to it: it
/// would never end.
pub(crate) fn check_stdout(input: &str, read: &Path) -> anyhow::Result<()> {
    let Some(written) = stdout_file() else { return Ok(()) };
    match fs::metadata(read) {
        Ok(there) if written.is_file() && same_file((read, &written), (read, &there)) => {
            let name = read.display();
            let text = format!("the output goes to {name}, which is the file of {input}");
            Err(BadInput::new(format!("{text}; name another file")).into())
        }
        _ => Ok(()),
    }
}

#[cfg(unix)]
fn stdout_file() -> Option<Metadata> {
    use std::os::fd::AsFd;
    let stdout = std::io::stdout().as_fd().try_clone_to_owned().ok()?;
    fs::File::from(stdout).metadata().ok()
}

/// It has no path, by which files are compared here.
#[cfg(not(unix))]
fn stdout_file() -> Option<Metadata> {
    None
}

fn refusal(flag: &str, path: &Path, other: &str) -> anyhow::Error {
    let name = path.display();
    BadInput::new(format!("{flag} {name} is the same file as {other}; name another file")).into()
}

/// Whether two paths lead to one file; if neither exists, the paths are compared.
fn same(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(one), Ok(two)) => one.is_file() && same_file((a, &one), (b, &two)),
        (Err(_), Err(_)) => a == b,
        _ => false,
    }
}

#[cfg(unix)]
fn same_file((_, a): (&Path, &Metadata), (_, b): (&Path, &Metadata)) -> bool {
    use std::os::unix::fs::MetadataExt;
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

#[cfg(not(unix))]
fn same_file((a, _): (&Path, &Metadata), (b, _): (&Path, &Metadata)) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_is_no_input_by_any_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("a"), "").unwrap();
        fs::write(path("b"), "").unwrap();
        fs::hard_link(path("a"), path("hard")).unwrap();
        let refused = |out: PathBuf, read: PathBuf| {
            check(&[("--out", out)], || [("the model", read)]).is_err()
        };
        assert!(refused(path("a"), path("a")));
        assert!(refused(path("a"), folder.path().join(".").join("a")));
        assert!(refused(path("hard"), path("a")));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(path("a"), path("soft")).unwrap();
            assert!(refused(path("soft"), path("a")) && refused(path("a"), path("soft")));
        }
        assert!(!refused(path("b"), path("a")) && !refused(path("new"), path("a")));
        assert!(!refused("/dev/null".into(), "/dev/null".into()));
    }

    #[test]
    fn two_outputs_are_two_files() {
        let both = |a: &str, b: &str| {
            let named = [("--out", PathBuf::from(a)), ("--preview", PathBuf::from(b))];
            check(&named, Vec::<Named<'_>>::new)
        };
        let message = both("nowhere/x", "nowhere/x").unwrap_err().to_string();
        assert!(message.contains("--preview nowhere/x is the same file as --out"), "{message}");
        assert!(both("nowhere/x", "nowhere/y").is_ok());
    }
}
