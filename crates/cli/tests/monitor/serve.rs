//! The page, the metrics and those who ask for them.

use super::*;

/// The server of a child, and where it listens.
fn serving(words: &[&str]) -> Result<(Child, String)> {
    let mut child = plimsoll(words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let stderr = child.stderr.take().ok_or("no stderr")?;
    let mut first = String::new();
    BufReader::new(stderr).read_line(&mut first)?;
    let address = first.trim().trim_start_matches("serving http://").trim_end_matches('/');
    Ok((child, address.to_string()))
}

fn get(address: &str, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn the_page_the_metrics_and_the_sample_are_served() -> Result {
    let root = machine("orin-nano");
    let (mut child, address) =
        serving(&["monitor", "--serve", "0", "--interval", "50ms", "--root", &root])?;
    let until = Instant::now() + Duration::from_secs(20);
    while !get(&address, "/api/sample")?.contains("Orin Nano") {
        assert!(Instant::now() < until, "no sample came");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(get(&address, "/metrics")?.contains("plimsoll_memory_gpu_share_bytes 671088640\n"));
    let page = get(&address, "/")?;
    assert!(page.contains("Plimsoll monitor"));
    let body = page.split("\r\n\r\n").nth(1).unwrap_or_default();
    assert!(!body.contains("http://") && !body.contains("https://"), "it needs no other host");
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// A log that is served where nobody has a terminal: shown to its end, and still there after it.
#[test]
fn a_replay_goes_on_being_served_after_its_end() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("log");
    let line = |n: u64| format!("RAM {}/7620MB CPU [1%@1420]\n", 1000 + n);
    fs::write(&path, (0..4).map(line).collect::<String>())?;
    let log = path.display().to_string();
    let (mut child, address) =
        serving(&["monitor", "--replay", &log, "--serve", "0", "--speed", "20"])?;
    let last = (1003u64 << 20).to_string();
    let until = Instant::now() + Duration::from_secs(20);
    while !get(&address, "/api/sample")?.contains(&last) {
        assert!(Instant::now() < until, "the end of the log did not come");
        std::thread::sleep(Duration::from_millis(50));
    }
    std::thread::sleep(Duration::from_millis(700));
    assert!(child.try_wait()?.is_none(), "it has ended with the log");
    assert!(get(&address, "/api/history")?.contains(&last));
    let sent = std::process::Command::new("kill").arg(child.id().to_string()).status()?;
    assert!(sent.success());
    assert_eq!(child.wait()?.code(), Some(0));
    Ok(())
}

/// Clients that ask for streams and never read, and ones that never ask.
#[cfg(target_os = "linux")]
#[test]
fn clients_that_hang_do_not_hold_up_the_sampling() -> Result {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("log.jsonl");
    let log = path.display().to_string();
    let (mut child, address) =
        serving(&["monitor", "--serve", "0", "--interval", "50ms", "--log", &log])?;
    let hang = |n: usize| -> Result<TcpStream> {
        let mut stream = TcpStream::connect(&address)?;
        if !n.is_multiple_of(3) {
            let path = if n % 3 == 1 { "/api/stream" } else { "/api/history" };
            stream
                .write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())?;
        }
        Ok(stream)
    };
    let clients = (0..100).map(hang).collect::<Result<Vec<_>>>()?;
    let count = || fs::read_to_string(&path).unwrap_or_default().lines().count();
    let (before, until) = (count(), Instant::now() + Duration::from_secs(30));
    while count() < before + 20 {
        assert!(Instant::now() < until, "only {} samples after {before}", count());
        std::thread::sleep(Duration::from_millis(20));
    }
    drop(clients);
    child.kill()?;
    child.wait()?;
    Ok(())
}

/// The page in a browser: see `scripts/check-page`.
#[cfg(target_os = "linux")]
#[test]
fn the_page_shows_in_a_browser_what_it_should() -> Result {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/check-page");
    let run = Command::new("python3").arg(script).arg(env!("CARGO_BIN_EXE_plimsoll")).output();
    let Ok(run) = run else {
        println!("skipped: python3 is missing");
        return Ok(());
    };
    let told = format!("{}{}", text(&run.stdout), text(&run.stderr));
    match run.status.code() {
        Some(77) => println!("{}", told.trim()),
        code => assert_eq!(code, Some(0), "{told}"),
    }
    Ok(())
}

/// The pictures of the documents show what the program shows: see `scripts/make-images`.
#[cfg(target_os = "linux")]
#[test]
fn the_pictures_of_the_monitor_are_not_stale() -> Result {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/make-images");
    let program = env!("CARGO_BIN_EXE_plimsoll");
    let run = Command::new("python3").arg(script).args(["--check", program]).output();
    let Ok(run) = run else {
        println!("skipped: python3 is missing");
        return Ok(());
    };
    assert_eq!(run.status.code(), Some(0), "{}{}", text(&run.stdout), text(&run.stderr));
    Ok(())
}
