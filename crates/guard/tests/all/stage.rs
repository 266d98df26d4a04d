//! Runs programs on the simulated driver, with the guard and without.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use plimsoll_guard::ledger::LedgerDevice;
use plimsoll_guard::watch::{GuardSettings, GuardWatch, VARIABLE};
use tempfile::TempDir;

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const LIMIT: u64 = 2048 * MIB;

/// The folder with the built libraries and programs, and the guard.
pub(crate) fn built() -> &'static Path {
    static BUILT: OnceLock<TempDir> = OnceLock::new();
    BUILT.get_or_init(build).path()
}

fn build() -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let at = |name: &str| folder.path().join(name).display().to_string();
    fs::write(folder.path().join("guard.so"), plimsoll_guard::LIBRARY).unwrap();
    let script = folder.path().join("versions");
    fs::write(&script, "FAKE_1 { global: cu*; nvml*; local: *; };").unwrap();
    let script = format!("-Wl,--version-script={}", script.display());
    // As in the real driver: its calls of its own functions cannot be intercepted.
    let shared = ["-shared", "-fPIC", "-Wl,-Bsymbolic", &script];
    let soname = |name: &str| format!("-Wl,-soname,{name}");
    compile(
        "cuda.c",
        &[&shared[..], &[&soname("libcuda.so.1"), "-o", &at("libcuda.so.1"), "-ldl", "-lpthread"]]
            .concat(),
    );
    compile(
        "cuda.c",
        &[&shared[..], &["-DNVML", &soname("libnvidia-ml.so.1"), "-o", &at("libnvidia-ml.so.1")]]
            .concat(),
    );
    compile("client.c", &["-o", &at("opened"), "-ldl", "-lpthread"]);
    compile("attacker.c", &["-o", &at("attacker"), "-ldl", "-lpthread"]);
    compile(
        "client.c",
        &["-DLINKED", "-o", &at("linked"), &at("libcuda.so.1"), "-ldl", "-lpthread"],
    );
    compile("shim.c", &["-shared", "-fPIC", "-o", &at("shim.so"), "-ldl"]);
    folder
}

fn compile(source: &str, flags: &[&str]) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake").join(source);
    let result = Command::new("cc").args(["-O1", "-w"]).arg(source).args(flags).output();
    let result = result.expect("the tests need a C compiler (cc)");
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
}

/// A program that the test talks to: it ends when its input does, or is killed with the test.
pub(crate) struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn new(command: &mut Command) -> Running {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Running { child, out }
    }

    /// The next line that it prints, without the line end; empty when there are no more.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    /// Lets it continue.
    pub(crate) fn tell(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b".").unwrap();
    }

    pub(crate) fn end(mut self) -> ExitStatus {
        self.child.stdin.take();
        self.child.wait().unwrap()
    }

    /// Waits until it has ended by itself, with its input still open for the processes that it
    /// started.
    pub(crate) fn ended(&mut self) {
        while self.child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// One run: a ledger, the driver's own count, and programs.
pub(crate) struct Stage {
    folder: TempDir,
    books: TempDir,
    pub(crate) watch: GuardWatch,
    variables: HashMap<&'static str, String>,
}

impl Stage {
    /// A limit of 2 GiB without a reserve.
    pub(crate) fn new() -> Stage {
        Stage::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut GuardSettings)) -> Stage {
        // As `run` does: in `/dev/shm` where that is possible.
        let in_memory = || tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let (folder, books) = (in_memory().unwrap(), in_memory().unwrap());
        let mut settings = GuardSettings {
            limit: Some(LIMIT),
            meminfo: PathBuf::from("/proc/meminfo"),
            ..GuardSettings::default()
        };
        change(&mut settings);
        let watch = GuardWatch::create(folder.path(), &settings).unwrap();
        Stage { folder, books, watch, variables: HashMap::new() }
    }

    /// Sets an environment variable for the simulated driver or the program.
    pub(crate) fn set(mut self, name: &'static str, value: impl ToString) -> Stage {
        self.variables.insert(name, value.to_string());
        self
    }

    pub(crate) fn bare(&self, program: &str) -> Command {
        let path = built().join(program);
        let mut command = Command::new(if path.exists() { path } else { program.into() });
        command.env("LD_LIBRARY_PATH", built()).env("FAKE_CUDA_STATE", self.books());
        command.env("WAY", "dlsym").envs(&self.variables).env_remove("LD_PRELOAD");
        command
    }

    pub(crate) fn guarded(&self, program: &str) -> Command {
        let mut command = self.bare(program);
        command.env("LD_PRELOAD", built().join("guard.so")).env(VARIABLE, self.folder.path());
        command
    }

    /// What a program prints under the guard.
    pub(crate) fn run(&self, program: &str, words: &[&str]) -> String {
        text(self.guarded(program).args(words).output().unwrap())
    }

    /// Starts a program under the guard that the test talks to.
    pub(crate) fn speak(&self, program: &str, words: &[&str]) -> Running {
        Running::new(self.guarded(program).args(words))
    }

    pub(crate) fn start(&self, program: &str, words: &[&str]) -> Child {
        self.guarded(program).args(words).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// The most that the driver ever had allocated at once on a device.
    pub(crate) fn most(&self, device: usize) -> u64 {
        self.book(3 + device)
    }

    /// How many allocation calls reached the driver.
    pub(crate) fn calls(&self) -> u64 {
        self.book(2)
    }

    /// The file of the driver's own count, in another folder than the guard's.
    pub(crate) fn books(&self) -> PathBuf {
        self.books.path().join("books")
    }

    /// The folder of the run.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn book(&self, word: usize) -> u64 {
        let books = fs::read(self.books()).unwrap();
        u64::from_le_bytes(books[word * 8..word * 8 + 8].try_into().unwrap())
    }

    pub(crate) fn device(&self, place: usize) -> &LedgerDevice {
        &self.watch.ledger().devices[place]
    }

    /// What is charged now, after dead processes were reclaimed.
    pub(crate) fn charged(&self) -> u64 {
        self.watch.reclaim();
        self.device(0).used.load(Relaxed)
    }
}

/// Whether something comes true. What a program or a namespace held is freed a moment after its first
/// process: the kernel ends the others.
pub(crate) fn soon(mut is_so: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + Duration::from_secs(60);
    let mut done = is_so();
    while !done && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
        done = is_so();
    }
    done
}

/// What a program printed; it must have succeeded.
pub(crate) fn text(output: Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {text}{errors}", output.status);
    text
}
