//! Kernels that were compiled elsewhere, on a driver of our own making: found, loaded, and
//! refused where they are of another device or another version. The driver's kernels do
//! nothing, so that a grid stays empty; who made it is what these tests ask.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests fail and speak as tests do"
)]

#[expect(dead_code, reason = "for other verbs")]
mod common;
#[expect(dead_code, reason = "there are other drivers")]
#[path = "../../memory/tests/fake/mod.rs"]
mod fake;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{Result, plimsoll, text};
use serde_json::Value;

/// A machine with the driver, and with the compiler or without.
struct Machine {
    folder: tempfile::TempDir,
}

impl Machine {
    /// `None` where nothing here compiles C.
    fn new() -> Result<Option<Machine>> {
        let folder = tempfile::tempdir()?;
        if Command::new("gcc").arg("--version").output().is_err() {
            println!("skipped: no gcc");
            return Ok(None);
        }
        let (driver, compiler) = (folder.path().join("driver"), folder.path().join("compiler"));
        fs::create_dir(&driver)?;
        fs::create_dir(&compiler)?;
        fs::copy(fake::cuda(&["-DIMAGE=\"sm_90\""]), driver.join("libcuda.so.1"))?;
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels/nvrtc.c");
        let mut gcc = Command::new("gcc");
        gcc.args(["-shared", "-fPIC", "-w", "-o"]).arg(compiler.join("libnvrtc.so.12"));
        assert!(gcc.arg(source).status()?.success());
        let mut cloud = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (40, 4), }".to_vec();
        cloud.resize(128, b' ');
        cloud.extend((0..160u16).flat_map(|n| (f32::from(n % 37) / 37.0).to_le_bytes()));
        fs::write(folder.path().join("a.npy"), cloud)?;
        Ok(Some(Machine { folder }))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, libraries: &[&str], words: &[&str]) -> Result<Output> {
        let libraries: Vec<String> =
            libraries.iter().map(|name| self.path(name).display().to_string()).collect();
        let mut command = plimsoll(words);
        command
            .env("LD_LIBRARY_PATH", libraries.join(":"))
            .env("XDG_CACHE_HOME", self.path("cache"));
        command.env("PLIMSOLL_KERNELS", self.path("kernels")).current_dir(self.folder.path());
        Ok(command.output()?)
    }

    /// Kernels for a device, as a machine with the compiler makes them.
    fn compile(&self, target: &str, folder: &str) -> Result {
        let words =
            ["voxelize", "--compile-kernels", folder, "--target", target, "--features", "1"];
        let ran = self.run(&["compiler"], &words)?;
        assert!(ran.status.success(), "{}", text(&ran.stderr));
        Ok(())
    }

    fn voxelize(&self, libraries: &[&str], more: &[&str]) -> Result<Output> {
        let given = |flag: &str| more.contains(&flag);
        let grid = if given("--grid") { &[][..] } else { &["--grid", "8,8,8"] };
        let size = if given("--voxel-size") { &[][..] } else { &["--voxel-size", "0.125"] };
        let words = ["voxelize", "a.npy", "--origin", "0,0,0", "--out", "out.npy", "--json"];
        self.run(libraries, &[&words[..], grid, size, more].concat())
    }

    /// Where it was made, and why there.
    fn made(&self, libraries: &[&str], more: &[&str]) -> Result<(String, Value)> {
        let ran = self.voxelize(libraries, more)?;
        assert!(ran.status.success(), "{more:?}: {}", text(&ran.stderr));
        let answer: Value = serde_json::from_slice(&ran.stdout)?;
        Ok((answer["backend"].as_str().unwrap_or_default().to_string(), answer["fallback"].clone()))
    }
}

#[test]
fn what_was_compiled_elsewhere_is_all_that_a_board_needs() -> Result {
    let Some(machine) = Machine::new()? else { return Ok(()) };
    machine.compile("sm_90", "kernels")?;
    for more in [
        &[][..],
        &["--mode", "count"],
        &["--mode", "mean"],
        &["--mode", "max"],
        &["--dtype", "bits"],
        &["--dtype", "sparse"],
        &["--voxel-size", "0.1"],
        &["--voxel-size", "3.7"],
        &["--voxel-size", "1e-12"],
        // In slabs.
        &["--grid", "256,64,64", "--gpu-mem-limit", "64KiB"],
        &["--grid", "256,64,64", "--mode", "mean", "--gpu-mem-limit", "1MiB"],
    ] {
        let made = machine.made(&["driver"], &[more, &["--backend", "cuda"]].concat())?;
        assert_eq!(made, ("cuda:0".to_string(), Value::Null), "{more:?}");
    }
    assert!(!machine.path("cache").exists(), "nothing was compiled here");
    Ok(())
}

#[test]
fn kernels_of_another_device_or_version_are_not_run() -> Result {
    let Some(machine) = Machine::new()? else { return Ok(()) };
    // Of another device: not looked at.
    machine.compile("sm_87", "kernels")?;
    let refused = |words: &[&str]| -> Result {
        let ran = machine.voxelize(&["driver"], &["--backend", "cuda"])?;
        let message = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(3), "{message}");
        for word in [words, &["--compile-kernels DIR --target sm_90", "PLIMSOLL_KERNELS"]].concat()
        {
            assert!(message.contains(word), "{word}: {message}");
        }
        assert!(!machine.path("out.npy").exists());
        Ok(())
    };
    refused(&["NVRTC is not available", "libnvrtc.so.12"])?;
    // Of another device, under the name of this one: the driver sees it.
    machine.compile("sm_90", "right")?;
    let pairs = |from: &str| -> Result<Vec<PathBuf>> {
        let files = fs::read_dir(machine.path(from))?.map(|file| Ok(file?.path()));
        files.collect::<std::io::Result<Vec<_>>>().map_err(Into::into)
    };
    for right in pairs("right")? {
        let name = right.file_name().unwrap().to_string_lossy().into_owned();
        let wrong = machine.path("kernels").join(name.replace("sm_90", "sm_87"));
        fs::copy(wrong, machine.path("kernels").join(&name))?;
    }
    refused(&["the driver refused the compiled kernels voxelize-sm_90-"])?;
    // Cut short: not whole, so not there.
    for file in pairs("right")? {
        let whole = fs::read(&file)?;
        let name = file.file_name().unwrap();
        fs::write(machine.path("kernels").join(name), &whole[..whole.len() - 1])?;
    }
    refused(&["NVRTC is not available"])?;
    // Of another version: a name that this one does not ask for.
    fs::remove_dir_all(machine.path("kernels"))?;
    fs::create_dir(machine.path("kernels"))?;
    for file in pairs("right")? {
        fs::copy(file, machine.path("kernels/voxelize-sm_90-0123456789abcdef.kernels"))?;
    }
    refused(&["NVRTC is not available"])
}

#[test]
fn with_the_compiler_what_the_driver_refuses_is_compiled_anew() -> Result {
    let Some(machine) = Machine::new()? else { return Ok(()) };
    machine.compile("sm_87", "cache/plimsoll/kernels")?;
    for file in fs::read_dir(machine.path("cache/plimsoll/kernels"))? {
        let file = file?.path();
        fs::rename(&file, file.display().to_string().replace("sm_87", "sm_90"))?;
    }
    let on_cuda = ["--backend", "cuda"];
    let both = ["driver", "compiler"];
    assert_eq!(machine.made(&both, &on_cuda)?, ("cuda:0".to_string(), Value::Null));
    // And kept: the second time it needs no compiler.
    assert_eq!(machine.made(&["driver"], &on_cuda)?.0, "cuda:0");
    Ok(())
}

/// A driver without the compiler is the common case on desktops: nobody asked for the GPU, so
/// the host does the work, and the answer says why.
#[test]
fn without_kernels_the_host_takes_over_unless_the_gpu_was_asked_for() -> Result {
    let Some(machine) = Machine::new()? else { return Ok(()) };
    let (on, why) = machine.made(&["driver"], &[])?;
    assert_eq!(on, "host");
    let why = why.as_str().unwrap_or_default().to_string();
    assert!(why.contains("took over from cuda:0") && why.contains("NVRTC"), "{why}");
    let ran = machine.voxelize(&["driver"], &["--backend", "cuda"])?;
    assert_eq!(ran.status.code(), Some(3), "{}", text(&ran.stderr));
    Ok(())
}
