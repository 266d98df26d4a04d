//! The keys of the live view.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::filter::FilterKey;

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
    /// Plots of the next span of time.
    Zoom,
    /// So many processes down the list, or up.
    Scroll(i16),
    /// To the first process.
    Top,
    /// To the last one.
    Bottom,
    /// To filter processes.
    Filter(FilterKey),
    /// The same again, as the window changed.
    Redraw,
}

/// The keys, for the help.
pub(super) const HELP: [(&str, &str); 10] = [
    ("q, Esc", "quit"),
    ("up, down", "scroll the processes; also PgUp, PgDn, Home, End, j, k"),
    ("/", "show only processes of a user, a pid or a name; Esc shows all"),
    ("", "  user:ada, pid:4711 and name:python match that alone"),
    ("s", "sort by GPU memory, resident memory, load, user, pid, name"),
    ("z", "plots of the last 2, 10, 30 or 60 minutes"),
    ("space", "pause the view; samples are still taken and logged"),
    ("+ and -", "samples more or less often"),
    ("? or h", "this help, and what is missing"),
    ("Ctrl-L", "draw anew"),
];

const PAGE: i16 = 10;

/// What a key means; `typing` while it is a letter of the filter, `filtered` where there is one.
pub(super) fn action_of(key: &KeyEvent, typing: bool, filtered: bool) -> Option<KeyAction> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    let control = key.modifiers.contains(KeyModifiers::CONTROL);
    Some(match key.code {
        KeyCode::Char('c' | 'd') if control => KeyAction::Quit,
        KeyCode::Char('l') if control => KeyAction::Redraw,
        KeyCode::Up => KeyAction::Scroll(-1),
        KeyCode::Down => KeyAction::Scroll(1),
        KeyCode::PageUp => KeyAction::Scroll(-PAGE),
        KeyCode::PageDown => KeyAction::Scroll(PAGE),
        KeyCode::Esc if typing || filtered => KeyAction::Filter(FilterKey::Clear),
        code if typing => KeyAction::Filter(match code {
            KeyCode::Enter => FilterKey::Keep,
            KeyCode::Backspace => FilterKey::Back,
            KeyCode::Char(letter) => FilterKey::Letter(letter),
            _ => return None,
        }),
        KeyCode::Home | KeyCode::Char('g') => KeyAction::Top,
        KeyCode::End | KeyCode::Char('G') => KeyAction::Bottom,
        KeyCode::Char('k') => KeyAction::Scroll(-1),
        KeyCode::Char('j') => KeyAction::Scroll(1),
        KeyCode::Char('/' | 'f') => KeyAction::Filter(FilterKey::Begin),
        KeyCode::Char('q' | 'Q') | KeyCode::Esc => KeyAction::Quit,
        KeyCode::Char(' ' | 'p') => KeyAction::Pause,
        KeyCode::Char('s') => KeyAction::Sort,
        KeyCode::Char('z') => KeyAction::Zoom,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => KeyAction::Help,
        KeyCode::Char('+' | '=') => KeyAction::Faster,
        KeyCode::Char('-' | '_') => KeyAction::Slower,
        _ => return None,
    })
}
