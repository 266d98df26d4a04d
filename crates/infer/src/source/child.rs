//! A child process that decodes for us: frames on one pipe, words on another.
//!
//! Its words are read on a thread, or the child would block once that pipe is full. A frame's
//! time comes with the words (both ffmpeg and GStreamer can tell it there) in the order of the
//! frames. The child is killed and reaped when its source is dropped, and a [`Stopper`] can
//! kill it while another thread waits for its next frame. The thread that reads its words also
//! starts it and outlives it, because the kernel kills the child when that thread ends: so a
//! program that is killed itself (`kill -9`) leaves no decoder behind.
//!
//! A decoder's words quote the address that it was given: they are kept without passwords.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll::platform::die_with_spawner;

use super::{Stopper, redact};
use crate::error::{InferError, InferResult};

/// How many of the last lines are kept as the reason of an end.
const LAST_WORDS: usize = 4;
/// How long a frame waits for its time.
const TIME_LAG: Duration = Duration::from_millis(200);

/// What a line of a child's words says.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Heard {
    /// The time of the next frame.
    Time(Duration),
    /// Frames a second.
    Rate(f64),
    /// Columns, rows and channels of the frames to come.
    Shape(VideoShape),
    /// Nothing of interest.
    Nothing,
    /// Something that may be a reason later.
    Words,
}

/// How raw frames lie in a pipe that does not say it itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct VideoShape {
    pub(super) width: usize,
    pub(super) height: usize,
    /// Bytes a pixel: 3 for colour, 1 and 2 for grey.
    pub(super) deep: usize,
}

#[derive(Debug, Default)]
struct Notes {
    words: VecDeque<String>,
    rate: Option<f64>,
    shape: Option<VideoShape>,
}

/// A running child.
#[derive(Debug)]
pub(super) struct ChildDecoder {
    child: Arc<Mutex<Child>>,
    pub(super) out: BufReader<ChildStdout>,
    notes: Arc<Mutex<Notes>>,
    times: Receiver<Duration>,
    began: Option<Duration>,
    listener: Option<JoinHandle<()>>,
}

impl ChildDecoder {
    /// Starts a programme; `remedy` says how to get it where it is missing.
    pub(super) fn start(
        mut command: Command,
        remedy: &str,
        hear: fn(&str) -> Heard,
    ) -> InferResult<ChildDecoder> {
        let program = command.get_program().to_string_lossy().into_owned();
        let refuse = |why: String| InferError::Unavailable { what: program.clone(), why };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_spawner(&mut command);
        let notes = Arc::new(Mutex::new(Notes::default()));
        let (tell, times) = channel();
        let (announce, started) = channel();
        let listening = Arc::clone(&notes);
        let work = move || match spawn(command) {
            Ok((child, out, words)) => {
                drop(announce.send(Ok((Arc::clone(&child), out))));
                listen(words, hear, &listening, &tell);
                outlive(&child);
            }
            Err(error) => drop(announce.send(Err(error))),
        };
        let listener = std::thread::Builder::new().name(format!("{program} words")).spawn(work);
        let listener = listener.map_err(|e| refuse(e.to_string()))?;
        let started = started.recv().unwrap_or_else(|gone| Err(std::io::Error::other(gone)));
        let (child, out) = started.map_err(|e| refuse(format!("{e}: {remedy}")))?;
        let out = BufReader::with_capacity(1 << 16, out);
        let (began, listener) = (None, Some(listener));
        Ok(ChildDecoder { child, out, notes, times, began, listener })
    }

    /// When the next frame was taken, since the first; `None` where the child does not say.
    pub(super) fn time(&mut self) -> Option<Duration> {
        let time = self.times.recv_timeout(TIME_LAG).ok()?;
        let began = *self.began.get_or_insert(time);
        Some(time.saturating_sub(began))
    }

    /// Frames a second, once the child has said it.
    pub(super) fn rate(&self) -> Option<f64> {
        lock(&self.notes).rate
    }

    /// How frames lie in the pipe, once the child has said it.
    pub(super) fn shape(&self) -> Option<VideoShape> {
        lock(&self.notes).shape
    }

    /// Waits until frames come: true, or until there will be none.
    pub(super) fn has_more(&mut self) -> bool {
        self.out.fill_buf().is_ok_and(|bytes| !bytes.is_empty())
    }

    /// Why it ended: its last words where it failed or was not to end, else nothing.
    pub(super) fn reason(&mut self, endless: bool) -> Option<String> {
        let status = end(&self.child);
        if let Some(listener) = self.listener.take() {
            drop(listener.join());
        }
        let failed = status.is_none_or(|code| code != 0);
        if !failed && !endless {
            return None;
        }
        let words = lock(&self.notes).words.iter().cloned().collect::<Vec<_>>().join("; ");
        let words = if words.is_empty() { "it said nothing".to_owned() } else { words };
        Some(match status {
            Some(0) => format!("the stream ended: {words}"),
            Some(code) => format!("the decoder ended with code {code}: {words}"),
            None => format!("the decoder was killed: {words}"),
        })
    }

    /// Kills the child from another thread.
    pub(super) fn stopper(&self) -> Stopper {
        let child = Arc::clone(&self.child);
        Arc::new(move || drop(lock(&child).kill()))
    }
}

impl Drop for ChildDecoder {
    fn drop(&mut self) {
        drop(lock(&self.child).kill());
        end(&self.child);
        if let Some(listener) = self.listener.take() {
            drop(listener.join());
        }
    }
}

type Started = (Arc<Mutex<Child>>, ChildStdout, ChildStderr);

/// Starts a child and takes its pipes.
fn spawn(mut command: Command) -> std::io::Result<Started> {
    let mut child = command.spawn()?;
    let pipes = child.stdout.take().zip(child.stderr.take());
    let child = Arc::new(Mutex::new(child));
    let Some((out, words)) = pipes else {
        end(&child);
        return Err(std::io::Error::other("its pipes could not be opened"));
    };
    Ok((child, out, words))
}

/// Waits until the child has ended: it would be killed with this thread.
fn outlive(child: &Mutex<Child>) {
    while matches!(lock(child).try_wait(), Ok(None)) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reaps a child that has closed its pipe, or makes it end; its code where it had one.
fn end(child: &Mutex<Child>) -> Option<i32> {
    let mut child = lock(child);
    for _ in 0..200 {
        match child.try_wait() {
            Ok(Some(status)) => return status.code(),
            Ok(None) => std::thread::sleep(Duration::from_millis(10)),
            Err(_) => break,
        }
    }
    drop(child.kill());
    child.wait().ok().and_then(|status| status.code())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(
    words: ChildStderr,
    hear: fn(&str) -> Heard,
    notes: &Mutex<Notes>,
    tell: &Sender<Duration>,
) {
    let mut words = BufReader::new(words);
    let mut line = Vec::new();
    loop {
        line.clear();
        // A line without an end is cut, not collected.
        match words.by_ref().take(1 << 16).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim();
        match hear(text) {
            Heard::Time(time) => drop(tell.send(time)),
            Heard::Rate(rate) => lock(notes).rate = Some(rate),
            Heard::Shape(shape) => lock(notes).shape = Some(shape),
            Heard::Words if !text.is_empty() => {
                let kept = &mut lock(notes).words;
                if kept.len() == LAST_WORDS {
                    kept.pop_front();
                }
                kept.push_back(redact(text).into_owned());
            }
            Heard::Words | Heard::Nothing => {}
        }
    }
}
