//! Programs that have nothing to do with CUDA, built in ways that mind what is loaded before them:
//! under `plimsoll run` they print what they print, and end as they end.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::common::{Result, plimsoll, text};
use super::needs::has;

const HELLO: &str = r#"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static void *work(void *unused) { char *p = malloc(100); memset(p, 1, 100); free(p); return 0; }
int main(void) {
    pthread_t id;
    pthread_create(&id, 0, work, 0);
    pthread_join(id, 0);
    pid_t child = fork();
    if (!child) { printf("child of %s\n", getenv("OF")); return 0; }
    waitpid(child, 0, 0);
    puts("hello");
    fprintf(stderr, "said\n");
    return 5;
}
"#;

/// A folder with the source of a small program.
fn workshop() -> Result<tempfile::TempDir> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("hello.c"), HELLO)?;
    Ok(folder)
}

fn compile(compiler: &str, flags: &[&str], source: &Path, to: &Path) -> bool {
    let mut command = Command::new(compiler);
    command.args(["-w", "-O1", "-g"]).args(flags).arg(source).arg("-o").arg(to).arg("-lpthread");
    command.output().is_ok_and(|output| output.status.success())
}

fn ended(output: Output) -> (Option<i32>, String, String) {
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn guarded(words: &[&str], program: &Path) -> Result<Output> {
    let mut command = plimsoll(&["run", "--quiet"]);
    Ok(command.args(words).arg("--").arg(program).env("OF", "it").output()?)
}

#[test]
fn sanitized_programs_end_as_they_do_alone() -> Result {
    let folder = workshop()?;
    for (compiler, sanitizer) in [
        ("gcc", "thread"),
        ("clang", "thread"),
        ("clang", "memory"),
        ("gcc", "address"),
        ("clang", "address"),
        ("gcc", "undefined"),
        ("clang", "undefined"),
    ] {
        let program = folder.path().join(format!("{compiler}-{sanitizer}"));
        let flag = format!("-fsanitize={sanitizer}");
        let built = compile(compiler, &[&flag], &folder.path().join("hello.c"), &program);
        let plain = || Command::new(&program).env("OF", "it").output();
        // Some kernels place memory where an old sanitizer does not expect it.
        let plain = built.then(plain).and_then(|output| output.ok()).map(ended);
        let expected = (Some(5), "child of it\nhello\n".to_string(), "said\n".to_string());
        if !has("sanitizers", plain.as_ref() == Some(&expected)) {
            eprintln!("skipped: {compiler} {flag}: {plain:?}");
            continue;
        }
        let found = ended(guarded(&["--limit", "1GiB"], &program)?);
        assert_eq!(found, expected, "{compiler} {flag}");
    }
    Ok(())
}

/// `musl-gcc`'s program, or nothing where there is none.
fn musl(folder: &Path, flags: &[&str], source: &Path, to: &str) -> Option<PathBuf> {
    let program = folder.join(to);
    has("musl", compile("musl-gcc", flags, source, &program)).then_some(program)
}

#[test]
fn a_program_of_another_c_library_ends_as_it_does_alone() -> Result {
    let folder = workshop()?;
    let source = folder.path().join("hello.c");
    let Some(program) = musl(folder.path(), &[], &source, "hello") else { return Ok(()) };
    let expected = (Some(5), "child of it\nhello\n".to_string());
    let (code, out, said) = ended(guarded(&["--limit", "1GiB"], &program)?);
    assert_eq!((code, out), expected, "{said}");
    assert!(said.starts_with("said\n") && !said.contains("symbol not found"), "{said}");
    // As a child too, of a program that the guard is in.
    let shown = program.display().to_string();
    let mut command = plimsoll(&["run", "--quiet", "--", "sh", "-c", &format!("{shown}; exit $?")]);
    let (code, out, said) = ended(command.env("OF", "it").output()?);
    assert_eq!((code, out), expected, "{said}");
    Ok(())
}

/// With a driver of that C library: it is held, or said not to be.
#[test]
fn cuda_by_another_c_library_is_held_or_said_not_to_be() -> Result {
    let folder = workshop()?;
    let fake = Path::new(env!("CARGO_MANIFEST_DIR")).join("../guard/tests/fake");
    let shared = ["-shared", "-fPIC", "-Wl,-Bsymbolic,-soname,libcuda.so.1"];
    let driver = musl(folder.path(), &shared, &fake.join("cuda.c"), "libcuda.so.1");
    let client = musl(folder.path(), &[], &fake.join("attacker.c"), "attacker");
    let Some((_, client)) = driver.zip(client) else { return Ok(()) };
    let books = folder.path().join("books");
    let run = |strict: &[&str]| -> Result<Output> {
        let _ = fs::remove_file(&books);
        let mut command = plimsoll(&["run", "--quiet", "--limit", "1GiB", "--reserve", "0"]);
        command.args(strict).args(["--", "env"]);
        command.arg(format!("LD_LIBRARY_PATH={}", folder.path().display()));
        command.arg(&client).args(["keep", "64", "32", "0.7"]);
        command.env("WAY", "dlsym").env("FAKE_CUDA_STATE", &books);
        Ok(command.output()?)
    };
    let output = run(&[])?;
    let found = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{found:?}");
    let word = fs::read(&books)?.get(24..32).ok_or("no books")?.try_into()?;
    let most = u64::from_le_bytes(word) >> 20;
    assert!(
        most <= 1024 || run(&["--strict"])?.status.code() == Some(125),
        "{most} MiB: {found:?}"
    );
    assert!(most <= 1024 || found.1.contains("did not hold"), "{most} MiB: {found:?}");
    Ok(())
}
