//! Colours that are read on light and on dark, by people who see all colours and by those who do
//! not.
//!
//! A terminal does not say reliably whether it is light or dark. So each colour here has a contrast
//! of at least 3 to 1 with both (a test has the arithmetic), and text has the terminal's own. The
//! pairs that must be told apart differ in blue and yellow, which almost everybody sees, and
//! nothing is said by colour alone: there is a word, a number or a shape beside it. So all is still
//! there with `NO_COLOR`.

use plimsoll::MemoryPressure;
use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

/// The system's memory.
pub(super) const MEMORY: Color = Color::Indexed(32);
/// A GPU's memory.
pub(super) const GPU: Color = Color::Indexed(169);
/// Loads.
pub(super) const LOAD: Color = Color::Indexed(29);
/// Limits, forecasts, and what is nearly full.
pub(super) const ALARM: Color = Color::Indexed(166);
/// What is rather full.
pub(super) const HIGH: Color = Color::Indexed(136);
/// Of several GPUs, the first in front.
pub(super) const LINES: [Color; 8] = [
    Color::Indexed(32),
    Color::Indexed(166),
    Color::Indexed(29),
    Color::Indexed(169),
    Color::Indexed(136),
    Color::Indexed(99),
    Color::Indexed(66),
    Color::Indexed(168),
];
pub(super) const FAINT: Style = Style::new().fg(Color::Indexed(244));
pub(super) const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);
pub(super) const ALERT: Style = Style::new().fg(ALARM).add_modifier(Modifier::BOLD);

/// The colour of a memory that is so full.
pub(super) fn pressure_colour(pressure: MemoryPressure, otherwise: Color) -> Color {
    match pressure {
        MemoryPressure::Low | MemoryPressure::Medium => otherwise,
        MemoryPressure::High => HIGH,
        MemoryPressure::Critical => ALARM,
    }
}

/// Takes the colours out of a frame; bold and reversed stay.
pub(super) fn remove_colours(buffer: &mut Buffer) {
    for cell in &mut buffer.content {
        cell.set_fg(Color::Reset).set_bg(Color::Reset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Rgb = [f64; 3];

    /// The colour of a number from 16 on, as terminals have it.
    fn rgb(colour: Color) -> Rgb {
        let Color::Indexed(number) = colour else { panic!("{colour:?} depends on the terminal") };
        let number = u32::from(number);
        let level = |n: u32| f64::from([0, 95, 135, 175, 215, 255][n as usize]) / 255.0;
        match number {
            16..232 => {
                let cube = number - 16;
                [level(cube / 36), level(cube / 6 % 6), level(cube % 6)]
            }
            grey => [f64::from(8 + (grey - 232) * 10) / 255.0; 3],
        }
    }

    fn linear(colour: Rgb) -> Rgb {
        let one = |c: f64| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) };
        colour.map(one)
    }

    fn luminance(colour: Rgb) -> f64 {
        let [r, g, b] = linear(colour);
        0.2126 * r + 0.7152 * g + 0.0722 * b
    }

    fn contrast(a: Rgb, b: Rgb) -> f64 {
        let (a, b) = (luminance(a) + 0.05, luminance(b) + 0.05);
        a.max(b) / a.min(b)
    }

    const ALL: [Color; 5] = [MEMORY, GPU, LOAD, ALARM, HIGH];

    #[test]
    fn colours_are_read_on_light_and_on_dark() {
        let hex = |n: u32| [n >> 16 & 255, n >> 8 & 255, n & 255].map(|c| f64::from(c) / 255.0);
        // Black, white, and the grounds of two common themes, dark and light.
        let grounds = [0x000000, 0xffffff, 0x1e1e1e, 0x002b36, 0xfdf6e3].map(hex);
        let faint = FAINT.fg.unwrap_or_default();
        for colour in ALL.into_iter().chain(LINES).chain([faint]) {
            for ground in grounds {
                let contrast = contrast(rgb(colour), ground);
                assert!(contrast >= 3.0, "{colour:?} on {ground:?}: {contrast:.2}");
            }
        }
    }

    /// Machado, Oliveira and Fernandes (2009), in full strength: no red, no green, no blue cones.
    const BLIND: [[Rgb; 3]; 3] = [
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ],
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ],
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.303900],
        ],
    ];

    /// The distance in CIE L*a*b*: 2 is just seen side by side.
    fn distance(a: Rgb, b: Rgb) -> f64 {
        let lab = |[r, g, b]: Rgb| {
            let f = |t: f64| if t > 0.008856 { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 };
            let x = f((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.95047);
            let y = f(0.2126 * r + 0.7152 * g + 0.0722 * b);
            let z = f((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.08883);
            [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
        };
        let (a, b) = (lab(a), lab(b));
        (0..3).map(|at| (a[at] - b[at]).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn what_must_be_told_apart_differs_for_the_colour_blind_too() {
        let pairs =
            [(MEMORY, ALARM), (GPU, ALARM), (MEMORY, HIGH), (MEMORY, GPU), (LINES[0], LINES[1])];
        for (a, b) in pairs {
            for (which, matrix) in BLIND.iter().enumerate() {
                let seen = |colour: Color| {
                    let [r, g, b] = linear(rgb(colour));
                    matrix.map(|row| (row[0] * r + row[1] * g + row[2] * b).clamp(0.0, 1.0))
                };
                let apart = distance(seen(a), seen(b));
                assert!(apart >= 15.0, "{a:?} and {b:?}, kind {which}: {apart:.1}");
            }
        }
    }
}
