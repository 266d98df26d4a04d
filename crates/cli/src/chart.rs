//! Small pictures in letters: a bar for a share, a plot of use over time against a limit. Pure:
//! they return text, and a page prints it.

/// The parts of a block, from an eighth to a whole.
const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
/// The same from the ground up, for plots.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// A bar of this many columns for a share from 0 to 1; what is not nothing can be seen.
pub(crate) fn bar(share: f64, width: usize) -> String {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    let eighths = (share * width as f64 * 8.0).round() as usize;
    let eighths = if share > 0.0 { eighths.max(1) } else { 0 };
    let mut bar = "█".repeat(eighths / 8);
    bar.extend(eighths.checked_sub(1).filter(|_| eighths % 8 > 0).map(|last| EIGHTHS[last % 8]));
    bar
}

/// A bar whose empty part is drawn too.
pub(crate) fn gauge(share: f64, width: usize) -> String {
    let full = bar(share, width);
    let empty = width.saturating_sub(full.chars().count());
    full + &"░".repeat(empty)
}

/// Use over time: rows of characters from the top down, each as wide as `width`.
pub(crate) struct LetterPlot {
    /// The rows of the plot.
    pub(crate) rows: Vec<String>,
    /// The value at the top of the plot.
    pub(crate) top: f64,
    /// The row that the limit lies in, where it is within the plot.
    pub(crate) limit_row: Option<usize>,
}

/// Plots the highest value in each of `width` slices of time. The scale begins at zero and ends at
/// the limit, or at the highest value where there is none or where it is far above.
pub(crate) fn letter_plot(
    values: &[(f64, f64)],
    limit: Option<f64>,
    (width, height): (usize, usize),
) -> Option<LetterPlot> {
    let (start, end) = (values.first()?.0, values.last()?.0);
    let most = values.iter().map(|(_, value)| *value).fold(0.0, f64::max);
    let near = limit.filter(|limit| most >= limit * 0.5);
    let top = near.map_or(most, |limit| limit.max(most));
    if width == 0 || height == 0 || top.is_nan() || top <= 0.0 {
        return None;
    }
    let mut columns = vec![0.0f64; width];
    let mut last = 0;
    for (at, value) in values {
        let place = (at - start) / (end - start).max(f64::MIN_POSITIVE) * width as f64;
        let place = (place as usize).min(width - 1);
        // A slice without a value of its own has the one before.
        (last + 1..place).for_each(|between| columns[between] = columns[last]);
        columns[place] = columns[place].max(*value);
        last = place;
    }
    let row_of = |row: usize| {
        let letter = |value: &f64| {
            let eighths = (value / top * height as f64 * 8.0).round() as usize;
            match eighths.saturating_sub((height - 1 - row) * 8) {
                0 if *value > 0.0 && row == height - 1 => LEVELS[0],
                0 => ' ',
                part => LEVELS[(part - 1).min(7)],
            }
        };
        columns.iter().map(letter).collect::<String>()
    };
    let limit_row = near.map(|limit| {
        let from_top = (top - limit) / top * height as f64;
        (from_top as usize).min(height - 1)
    });
    Some(LetterPlot { rows: (0..height).map(row_of).collect(), top, limit_row })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_eighths_and_show_what_is_not_nothing() {
        assert_eq!(bar(0.5, 4), "██");
        assert_eq!(bar(0.53, 4), "██▏");
        assert_eq!((bar(0.0, 4), bar(1e-9, 4)), (String::new(), "▏".to_string()));
        assert_eq!((bar(9.0, 4), bar(f64::NAN, 4)), ("████".to_string(), String::new()));
        assert_eq!(gauge(0.25, 4), "█░░░");
    }

    #[test]
    fn a_plot_keeps_peaks_and_knows_where_the_limit_is() {
        let values = [(0.0, 0.0), (1.0, 2.0), (2.0, 4.0), (3.0, 1.0)];
        let plot = letter_plot(&values, Some(4.0), (4, 2)).unwrap();
        assert_eq!(plot.rows, ["  █ ", " ███".replace("███", "██▄").as_str()]);
        assert_eq!((plot.top, plot.limit_row), (4.0, Some(0)));
        let far = letter_plot(&values, Some(100.0), (4, 2)).unwrap();
        assert_eq!((far.top, far.limit_row), (4.0, None));
        assert!(letter_plot(&[], None, (4, 2)).is_none());
        assert!(letter_plot(&[(0.0, 0.0)], None, (4, 2)).is_none());
        let over = letter_plot(&[(0.0, 8.0), (1.0, 8.0)], Some(4.0), (2, 4)).unwrap();
        assert_eq!((over.top, over.limit_row), (8.0, Some(2)));
    }
}
