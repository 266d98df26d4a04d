//! Which files are meant by a name: one, those of a folder, or those that match a pattern.

use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

use plimsoll_memory::{Error, Result};

use super::{CloudFormat, FILES, cannot};

/// The files that are meant, and whether more than one could be.
pub(super) fn files(input: &Path) -> Result<(Vec<PathBuf>, bool)> {
    let mut paths: Vec<PathBuf> = if input.is_dir() {
        let entries = fs::read_dir(input).and_then(Iterator::collect::<std::io::Result<Vec<_>>>);
        let entries = entries.map_err(|error| cannot(input, &error))?;
        let paths = entries.into_iter().map(|entry| entry.path());
        paths.filter(|path| CloudFormat::of(path).is_some() && !is_hidden(path)).collect()
    } else if !input.exists()
        && let Some(pattern) = input.to_str().filter(|text| text.contains(['*', '?', '[']))
    {
        let matches = glob::glob(pattern).map_err(|error| Error::Config {
            field: "input",
            value: format!("{pattern:?}: {error}"),
            range: FILES,
        })?;
        let hidden = pattern.rsplit('/').next().is_some_and(|name| name.starts_with('.'));
        let paths = matches.filter_map(std::result::Result::ok);
        paths.filter(|path| hidden || !is_hidden(path)).collect()
    } else {
        return Ok((vec![input.to_path_buf()], false));
    };
    paths.retain(|path| path.is_file());
    if paths.is_empty() {
        return Err(Error::Unavailable {
            what: format!("a cloud in {}", input.display()),
            why: "no file there ends in .npy, .npz, .ply, .pcd or .bin".to_string(),
        });
    }
    paths.sort_by(|a, b| natural(&a.to_string_lossy(), &b.to_string_lossy()));
    Ok((paths, true))
}

/// As other programs leave beside the files that are meant: `._scan.bin`.
fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

/// Names in the order that people count in: 2 before 10.
fn natural(a: &str, b: &str) -> Ordering {
    let (mut a_rest, mut b_rest) = (a, b);
    loop {
        match (a_rest.chars().next(), b_rest.chars().next()) {
            (Some(x), Some(y)) if x.is_ascii_digit() && y.is_ascii_digit() => {
                let (x, after_x) = digits(a_rest);
                let (y, after_y) = digits(b_rest);
                let order = x.len().cmp(&y.len()).then_with(|| x.cmp(y));
                if order != Ordering::Equal {
                    return order;
                }
                (a_rest, b_rest) = (after_x, after_y);
            }
            (Some(x), Some(y)) if x == y => {
                (a_rest, b_rest) = (&a_rest[x.len_utf8()..], &b_rest[y.len_utf8()..]);
            }
            (x, y) => return x.cmp(&y).then_with(|| a.cmp(b)),
        }
    }
}

/// The number that a text begins with, without leading zeros, and what follows.
fn digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at(end);
    (number.trim_start_matches('0'), rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_comes_before_ten() {
        let mut names = ["b10", "b9", "a", "b010", "b9c", "b1"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["a", "b1", "b9", "b9c", "b010", "b10"]);
    }

    #[test]
    fn what_is_hidden_or_no_file_is_not_meant() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["10.bin", "9.bin", "._9.bin", "notes.txt"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        fs::create_dir(folder.path().join("old.bin")).unwrap();
        let found = |name: &str| -> Vec<String> {
            let (paths, many) = files(&folder.path().join(name)).unwrap();
            assert!(many);
            let names = paths.iter().filter_map(|path| path.file_name());
            names.map(|name| name.to_string_lossy().into_owned()).collect()
        };
        assert_eq!(found(""), ["9.bin", "10.bin"]);
        assert_eq!(found("*.bin"), ["9.bin", "10.bin"]);
        assert_eq!(found(".*.bin"), ["._9.bin"], "unless it is asked for");
    }
}
