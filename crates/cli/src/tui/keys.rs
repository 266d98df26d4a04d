//! The keys of the live view.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

/// What the user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyAction {
    /// To end.
    Quit,
    /// To pause the view, or to continue it.
    Pause,
    /// To sort processes by the next column.
    Sort,
    /// To see the keys.
    Help,
    /// More time between samples.
    Slower,
    /// Less.
    Faster,
    /// The same again, as the window changed.
    Redraw,
}

/// The keys, for the help.
pub(super) const HELP: [(&str, &str); 6] = [
    ("q, Esc", "quit"),
    ("space", "pause the view; samples are still taken and logged"),
    ("s", "sort processes by GPU memory, resident memory, load, pid, name"),
    ("+ and -", "samples more or less often"),
    ("? or h", "this help"),
    ("Ctrl-L", "draw anew"),
];

pub(super) fn action_of(key: &KeyEvent) -> Option<KeyAction> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c' | 'd') if control => KeyAction::Quit,
        KeyCode::Char('l') if control => KeyAction::Redraw,
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => KeyAction::Quit,
        KeyCode::Char(' ' | 'p') => KeyAction::Pause,
        KeyCode::Char('s') => KeyAction::Sort,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => KeyAction::Help,
        KeyCode::Char('+' | '=') => KeyAction::Faster,
        KeyCode::Char('-' | '_') => KeyAction::Slower,
        _ => return None,
    })
}
