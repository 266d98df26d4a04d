//! The header is that of the sources, and a program in C++ can use the library.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `PLIMSOLL_WRITE_HEADER=1` writes it anew.
#[test]
fn the_header_is_in_step() {
    let config = cbindgen::Config::from_file(root().join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new()
        .with_config(config)
        .with_src(root().join("src/error.rs"))
        .with_src(root().join("src/spec.rs"))
        .with_src(root().join("src/host.rs"))
        .with_src(root().join("src/cuda.rs"))
        .with_src(root().join("src/cuda_network.rs"))
        .generate()
        .unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    let text = String::from_utf8(text).unwrap();
    let file = root().join("include/plimsoll.h");
    if std::env::var_os("PLIMSOLL_WRITE_HEADER").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap_or_default(), text);
}

/// The shared library, which cargo made for this test.
fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let name =
        format!("{}plimsoll_c{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let places = [folder.join(&name), folder.parent().unwrap().join(&name)];
    places.into_iter().find(|path| path.is_file()).expect("cargo makes the shared library")
}

fn run(command: &mut Command) -> String {
    let ran = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{command:?}: {}{}", text(&ran.stdout), text(&ran.stderr));
    text(&ran.stdout)
}

fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok_and(|ran| ran.status.success())
}

/// By CMake, as a user builds it; by the compiler alone where there is no CMake.
#[test]
fn the_example_is_built_and_runs() {
    let required = std::env::var("PLIMSOLL_REQUIRE").unwrap_or_default();
    let required = |name: &str| required.split(',').any(|one| one == name);
    let folder = tempfile::tempdir().unwrap();
    let (example, built) = (root().join("example"), folder.path().join("voxels"));
    let library = library();
    if has("cmake") {
        run(Command::new("cmake")
            .arg("-S")
            .arg(&example)
            .arg("-B")
            .arg(folder.path())
            .arg(format!("-DPLIMSOLL_LIBRARY={}", library.display())));
        run(Command::new("cmake").arg("--build").arg(folder.path()));
    } else if has("c++") && !required("cmake") {
        println!("skipped: there is no cmake; the compiler builds the example by itself");
        compile(&example, &library, &built);
    } else {
        assert!(!required("cmake"), "cmake is missing");
        println!("skipped: there is no cmake and no C++ compiler");
        return;
    }
    let said = run(Command::new(&built).env("LD_LIBRARY_PATH", library.parent().unwrap()));
    assert!(said.contains("2 voxels"), "{said}");
    assert!(said.contains("voxel 0 at z 1, y 0, x 0 has 2 points"), "{said}");
    assert!(said.contains("bad arguments are refused: max_points"), "{said}");
}

fn compile(example: &Path, library: &Path, built: &Path) {
    run(Command::new("c++")
        .arg("-std=c++17")
        .arg("-I")
        .arg(root().join("include"))
        .arg(example.join("voxels.cpp"))
        .arg(library)
        .arg("-o")
        .arg(built));
}
