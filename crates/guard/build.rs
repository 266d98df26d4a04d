//! Builds the crate a second time, as the shared library that is loaded into programs.
//!
//! Cargo cannot give the `cdylib` of one crate to another as bytes, so this script calls rustc
//! with the same sources and `--cfg preload`, which leaves out the standard library and exports
//! the driver's names. There are no dependencies, so one call is enough, offline, in a checkout,
//! under `cargo install` and for another target.

use std::env;
use std::error::Error;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn Error>> {
    println_to_cargo("cargo::rerun-if-changed=src");
    println_to_cargo("cargo::rustc-check-cfg=cfg(preload)");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let library = out.join("libplimsoll_guard.so");
    if !is_supported() {
        // The guard depends on the loader and the driver of Linux. Elsewhere the library is empty,
        // and `run` says so.
        return Ok(std::fs::write(library, [])?);
    }
    let status = rustc()?.arg("-o").arg(&library).status()?;
    if status.success() { Ok(()) } else { Err(format!("rustc: {status}").into()) }
}

fn is_supported() -> bool {
    let is = |name: &str, all: &[&str]| env::var(name).is_ok_and(|v| all.contains(&v.as_str()));
    is("CARGO_CFG_TARGET_OS", &["linux"]) && is("CARGO_CFG_TARGET_ARCH", &["x86_64", "aarch64"])
}

fn rustc() -> Result<Command, Box<dyn Error>> {
    let mut rustc = Command::new(env::var_os("RUSTC").ok_or("RUSTC is not set")?);
    rustc.args(["src/lib.rs", "--crate-name=plimsoll_guard", "--crate-type=cdylib"]);
    rustc.args(["--edition=2024", "--cfg=preload", "--cap-lints=warn"]);
    rustc.args(["-Cpanic=abort", "-Copt-level=3", "-Clto=fat", "-Ccodegen-units=1"]);
    rustc.args(["-Cstrip=symbols", "-Coverflow-checks=off"]);
    rustc.arg(format!("--target={}", env::var("TARGET")?));
    if let Some(linker) = env::var_os("RUSTC_LINKER") {
        let mut flag = std::ffi::OsString::from("-Clinker=");
        flag.push(linker);
        rustc.arg(flag);
    }
    // The caller chooses the linker. Other flags, such as those of sanitizers, do not work in a
    // library without a standard library.
    let flags = env::var("CARGO_ENCODED_RUSTFLAGS").unwrap_or_default();
    let mut flags = flags.split('\x1f').filter(|flag| !flag.is_empty());
    while let Some(flag) = flags.next() {
        let (name, value) = match flag {
            "-C" => ("-C", flags.next().unwrap_or_default()),
            other => other.split_at(2.min(other.len())),
        };
        if name == "-C" && value.starts_with("link") && !value.starts_with("link-dead") {
            rustc.arg(format!("-C{value}"));
        }
    }
    Ok(rustc)
}

/// Cargo reads instructions from a build script's standard output.
fn println_to_cargo(line: &str) {
    println!("{line}");
}
