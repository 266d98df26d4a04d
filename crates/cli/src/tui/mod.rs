//! The live view: state in, frame out, and a terminal that is always restored.
//!
//! [`LiveView`] is the state; [`draw`](draw::draw) makes a frame from it alone, so that frames are
//! tested without a terminal. [`Screen`] switches the terminal to the view and restores it when it
//! is dropped. A panic restores it by [`restore`], and a signal ends the loop.

mod bars;
mod draw;
mod facts;
mod filter;
mod keys;
mod palette;
mod plot;
mod plots;
mod processes;
#[cfg(all(test, target_os = "linux"))]
#[path = "../../tests/common/terminal.rs"]
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use std::io::{self, Stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};

pub(crate) use keys::KeyAction;
pub(crate) use view::{LiveView, ViewSettings};

static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal, taken for the view.
pub(crate) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
}

impl Screen {
    /// Takes the terminal.
    pub(crate) fn take() -> io::Result<Screen> {
        enable_raw_mode()?;
        TAKEN.store(true, Ordering::Relaxed);
        let screen = execute!(io::stdout(), EnterAlternateScreen)
            .and_then(|()| Terminal::new(CrosstermBackend::new(io::stdout())));
        if screen.is_err() {
            restore();
        }
        Ok(Screen { terminal: screen? })
    }

    /// Shows the view.
    pub(crate) fn show(&mut self, view: &LiveView) -> io::Result<()> {
        self.terminal.draw(|frame| draw::draw(frame, view)).map(|_| ())
    }

    /// Waits for a key until the timeout, and returns its action. A change of the window's size
    /// is an action too: it asks for a new frame.
    pub(crate) fn next_action(
        &self,
        timeout: Duration,
        view: &LiveView,
    ) -> io::Result<Option<KeyAction>> {
        if is_gone(timeout) {
            return Ok(Some(KeyAction::Quit));
        }
        if !event::poll(Duration::ZERO)? {
            return Ok(None);
        }
        Ok(match event::read()? {
            Event::Key(key) => keys::action_of(&key, view.is_typing(), !view.quits_on_escape()),
            Event::Resize(..) => Some(KeyAction::Redraw),
            _ => None,
        })
    }
}

/// Waits so long for a key, and says whether the terminal was closed meanwhile. The library
/// that reads keys would ask a closed one for ever and never come back.
#[cfg(unix)]
fn is_gone(timeout: Duration) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let terminal = io::stdout();
    let mut ends = [PollFd::new(&terminal, PollFlags::IN)];
    let timeout = Timespec::try_from(timeout).ok();
    // A signal ends the wait early, which does no harm.
    poll(&mut ends, timeout.as_ref()).is_ok()
        && ends[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

#[cfg(not(unix))]
fn is_gone(timeout: Duration) -> bool {
    let _ = event::poll(timeout);
    false
}

impl Drop for Screen {
    fn drop(&mut self) {
        restore();
    }
}

/// Gives the terminal back, if it is taken: also where a panic ends the program.
pub(crate) fn restore() {
    if TAKEN.swap(false, Ordering::Relaxed) {
        // There is nowhere to report that the terminal is gone.
        let _ = disable_raw_mode();
        let _ = execute!(io::stdout(), LeaveAlternateScreen, Show);
    }
}
