//! A terminal of our own, to see what a program leaves of it.

use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Long enough for a machine that is busy with other work.
const PATIENCE: Duration = Duration::from_secs(60);

/// Both ends of a terminal, and all that was written to it.
pub(crate) struct Terminal {
    ours: File,
    theirs: File,
    written: Arc<Mutex<Vec<u8>>>,
}

/// Our end of a new terminal, and a program's.
pub(crate) fn ends(columns: u16, rows: u16) -> Result<(File, File)> {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&ours)?;
    unlockpt(&ours)?;
    let name = ptsname(&ours, Vec::new())?.into_string()?;
    let theirs = File::options().read(true).write(true).open(name)?;
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&theirs, size)?;
    Ok((File::from(ours), theirs))
}

impl Terminal {
    pub(crate) fn open(columns: u16, rows: u16) -> Result<Terminal> {
        let (ours, theirs) = ends(columns, rows)?;
        let written = Arc::new(Mutex::new(Vec::new()));
        let (mut reader, there) = (ours.try_clone()?, Arc::clone(&written));
        // It ends with the test.
        std::thread::spawn(move || {
            let mut part = [0u8; 4096];
            while let Ok(length @ 1..) = reader.read(&mut part) {
                let mut written = there.lock().unwrap_or_else(PoisonError::into_inner);
                written.extend_from_slice(&part[..length]);
            }
        });
        Ok(Terminal { ours, theirs, written })
    }

    /// How keys and lines are treated, as words that can be compared.
    pub(crate) fn modes(&self) -> Result<String> {
        let Termios { input_modes, output_modes, local_modes, .. } = tcgetattr(&self.theirs)?;
        Ok(format!("{input_modes:?} {output_modes:?} {local_modes:?}"))
    }

    pub(crate) fn written(&self) -> String {
        let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&written).into_owned()
    }

    /// Runs a program in it, does something when it shows these words, and waits for its end.
    pub(crate) fn run(
        &self,
        mut command: Command,
        words: &str,
        then: impl FnOnce(u32, &Terminal) -> Result,
    ) -> Result<ExitStatus> {
        let end = || self.theirs.try_clone();
        let mut child = command.stdin(end()?).stdout(end()?).stderr(end()?).spawn()?;
        let until = Instant::now() + PATIENCE;
        while !self.written().contains(words) && child.try_wait()?.is_none() {
            if Instant::now() > until {
                child.kill()?;
                return Err(format!("it never showed {words:?}: {}", self.written()).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        then(child.id(), self)?;
        loop {
            if let Some(status) = child.try_wait()? {
                self.drain()?;
                return Ok(status);
            }
            if Instant::now() > until {
                child.kill()?;
                return Err(format!("it did not end: {}", self.written()).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until all that was written has been read: until a mark that is written after it has.
    fn drain(&self) -> Result {
        const MARK: &[u8] = b"that was all";
        (&self.theirs).write_all(MARK)?;
        let until = Instant::now() + PATIENCE;
        while Instant::now() < until {
            let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = written.windows(MARK.len()).rposition(|part| part == MARK) {
                written.drain(at..at + MARK.len());
                return Ok(());
            }
            drop(written);
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("what was written cannot be read".into())
    }

    pub(crate) fn press(&self, keys: &str) -> Result {
        Ok((&self.ours).write_all(keys.as_bytes())?)
    }

    /// Whether the screen that was there before is shown again, with its cursor.
    pub(crate) fn is_given_back(&self) -> bool {
        let written = self.written();
        let last = |words: &str| written.rfind(words);
        let (taken, left, cursor) = (last("\x1b[?1049h"), last("\x1b[?1049l"), last("\x1b[?25h"));
        taken.is_some() && left > taken && cursor > taken && cursor > last("\x1b[?25l")
    }
}
