//! Every lesson in `examples/` runs to its end, as a reader would run it.

use std::path::Path;
use std::process::Command;

#[test]
fn every_lesson_runs() {
    // Set for whatever cargo runs; a test that was carried elsewhere has no cargo to ask.
    let Some(cargo) = std::env::var_os("CARGO") else {
        println!("skipped: not run by cargo");
        return;
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut lessons: Vec<_> =
        files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect();
    lessons.sort();
    assert!(lessons.len() >= 8, "{lessons:?}");
    for lesson in lessons {
        let mut command = Command::new(&cargo);
        // From the root, where a target folder that was given as a relative path is meant.
        command.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
        command.args(["run", "--quiet", "--package", "plimsoll", "--example"]);
        command.arg(&lesson).args((!cfg!(debug_assertions)).then_some("--release"));
        let run = command.output().unwrap();
        let (out, err) = (run.stdout.escape_ascii(), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{lesson}: {}\n{out}\n{err}", run.status);
        assert!(!run.stdout.is_empty(), "{lesson} shows nothing");
    }
}
