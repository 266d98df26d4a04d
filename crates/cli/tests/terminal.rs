//! The live view in a terminal: it is shown, and the terminal is given back however it ends.

#![cfg(target_os = "linux")]

#[expect(dead_code, reason = "only the program itself is needed here")]
mod common;
#[path = "common/terminal.rs"]
mod terminal;

use std::io::Read;
use std::process::Command;
use std::time::{Duration, Instant};

use terminal::{Result, Terminal, ends};

fn monitor(words: &[&str]) -> Command {
    let mut command = common::plimsoll(&["monitor", "--interval", "50ms"]);
    command.args(words);
    command
}

fn kill(signal: &str, pid: u32) -> Result {
    let sent = Command::new("kill").args(["-s", signal, &pid.to_string()]).status()?;
    sent.success().then_some(()).ok_or_else(|| "no signal could be sent".into())
}

#[test]
fn the_terminal_is_given_back_after_a_kill_and_after_a_key() -> Result {
    for end in ["TERM", "INT", "HUP", "q", "\x03"] {
        let terminal = Terminal::open(80, 24)?;
        let before = terminal.modes()?;
        let mut during = String::new();
        let status = terminal.run(monitor(&[]), "RAM", |pid, terminal| {
            during = terminal.modes()?;
            if end.len() > 1 { kill(end, pid) } else { terminal.press(end) }
        })?;
        assert_ne!(during, before, "{end:?}: it took the terminal");
        assert_eq!(terminal.modes()?, before, "{end:?}");
        assert!(terminal.is_given_back(), "{end:?}: {:?}", terminal.written());
        assert_eq!(status.code(), Some(0), "{end:?}");
        let written = terminal.written();
        let after = written.rsplit("\x1b[?1049l").next().unwrap_or_default();
        assert!(after.contains("peak"), "{end:?}: peaks are told at the end: {after:?}");
    }
    Ok(())
}

#[test]
fn an_alert_is_the_exit_code_of_the_live_view_too() -> Result {
    let terminal = Terminal::open(80, 24)?;
    let status = terminal
        .run(monitor(&["--alert-free", "100%"]), "alert", |_, terminal| terminal.press("q"))?;
    assert_eq!(status.code(), Some(1));
    assert!(terminal.is_given_back());
    Ok(())
}

/// A dumb terminal shows escape sequences as letters.
#[test]
fn a_dumb_terminal_gets_lines() -> Result {
    let terminal = Terminal::open(80, 24)?;
    let mut command = monitor(&["--duration", "1s"]);
    command.env("TERM", "dumb");
    let status = terminal.run(command, "samples in", |_, _| Ok(()))?;
    assert_eq!(status.code(), Some(0));
    let written = terminal.written();
    assert!(!written.contains('\x1b'), "{written:?}");
    assert!(written.contains("CPU %") && written.contains("peak"), "{written}");
    Ok(())
}

/// As it is without a terminal: by the log's own time, whatever the speed, or with the log.
#[test]
fn the_duration_of_a_replay_is_that_of_its_log() -> Result {
    let log = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/examples/tegrastats.log");
    let shows = |words: &[&str], peaks: &str| -> Result {
        let replay = [&["--replay", log], words].concat();
        let terminal = Terminal::open(80, 24)?;
        let status = terminal.run(monitor(&replay), "samples in", |_, _| Ok(()))?;
        assert_eq!(status.code(), Some(0));
        assert!(terminal.written().contains(peaks), "{words:?}: {}", terminal.written());
        let piped = monitor(&replay).args(["--format", "table"]).output()?;
        let piped = String::from_utf8_lossy(&piped.stdout).into_owned();
        assert!(piped.contains(peaks), "{words:?}: {piped}");
        Ok(())
    };
    shows(&["--speed", "10", "--duration", "3s"], "4 samples in 3.0 s")?;
    shows(&["--speed", "1000", "--duration", "1h"], "96 samples in 95.0 s")
}

/// As when its window is closed, without a signal that says so.
#[test]
fn it_ends_when_its_terminal_is_gone() -> Result {
    let (mut ours, theirs) = ends(80, 24)?;
    let mut command = monitor(&[]);
    command.stdin(theirs.try_clone()?).stdout(theirs.try_clone()?).stderr(theirs);
    let mut child = command.spawn()?;
    // The command keeps the program's end open.
    drop(command);
    let (mut written, mut part) = (Vec::new(), [0u8; 4096]);
    while !String::from_utf8_lossy(&written).contains("RAM") {
        let length = ours.read(&mut part)?;
        written.extend_from_slice(&part[..length]);
    }
    drop(ours);
    let until = Instant::now() + Duration::from_secs(20);
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            child.kill()?;
            return Err("it goes on without a terminal".into());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[test]
fn a_dumb_terminal_gets_plain_lines() -> Result {
    let folder = tempfile::tempdir()?;
    let place = folder.path().display().to_string();
    for (term, rewrites) in [("dumb", false), ("xterm", true)] {
        let terminal = Terminal::open(100, 30)?;
        let echo = ["bench", "--engine=echo", "--model0=echo", "--imgsz=96", "--max-frames=3"];
        let source = ["--source=synthetic:size=64x64", "--output-dir", &place];
        let mut command = common::plimsoll(&[&echo[..], &source].concat());
        command.env("TERM", term).env_remove("NO_COLOR");
        let status = terminal.run(command, "Report", |_, _| Ok(()))?;
        let written = terminal.written();
        assert!(status.success() && written.contains("/3 "), "{term}: {written:?}");
        assert_eq!(written.contains('\x1b'), rewrites, "{term}: {written:?}");
    }
    Ok(())
}
