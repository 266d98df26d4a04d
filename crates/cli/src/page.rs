//! Text for people: headings, lines, tables. Pure: a [`TextPage`] is built, never printed.
//!
//! A verb writes to a page without asking whether there is a terminal or whether the
//! user wants it short: the page knows, and leaves out colours or advice itself. Everything
//! that is written to a page passes [`plimsoll::text`], so that text from outside cannot control
//! the terminal.

use plimsoll::text;

/// What a value that is not known looks like; never 0.
pub(crate) const UNKNOWN: &str = "–";

/// A known value, or the dash.
pub(crate) fn or_unknown(value: Option<impl ToString>) -> String {
    value.map_or_else(|| UNKNOWN.to_string(), |known| known.to_string())
}

/// How a piece of text is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum TextTone {
    /// As it is.
    #[default]
    Plain,
    /// A title.
    Strong,
    /// Good news.
    Good,
    /// Worth a look.
    Doubt,
    /// Bad news.
    Bad,
    /// How and where from; advice.
    Faint,
}

impl TextTone {
    fn code(self) -> &'static str {
        match self {
            TextTone::Plain => "",
            TextTone::Strong => "\x1b[1m",
            TextTone::Good => "\x1b[32m",
            TextTone::Doubt => "\x1b[33m",
            TextTone::Bad => "\x1b[31m",
            TextTone::Faint => "\x1b[2m",
        }
    }
}

/// A piece of text and how it is meant.
#[derive(Debug, Clone, Default)]
pub(crate) struct TextCell {
    text: String,
    tone: TextTone,
    right: bool,
}

impl TextCell {
    /// Text with a tone.
    pub(crate) fn new(text: impl ToString, tone: TextTone) -> TextCell {
        TextCell { text: text::one_line(&text.to_string()).into_owned(), tone, right: false }
    }

    /// A figure: set to the right of its column, and a dash where it is not known.
    pub(crate) fn figure(value: Option<impl ToString>) -> TextCell {
        TextCell { right: true, ..TextCell::new(or_unknown(value), TextTone::Plain) }
    }

    /// The same text with another tone.
    pub(crate) fn toned(self, tone: TextTone) -> TextCell {
        TextCell { tone, ..self }
    }
}

impl<T: Into<String>> From<T> for TextCell {
    fn from(text: T) -> TextCell {
        TextCell::new(text.into(), TextTone::Plain)
    }
}

/// Text under construction.
#[derive(Debug, Default)]
pub(crate) struct TextPage {
    text: String,
    colour: bool,
    quiet: bool,
    width: Option<usize>,
}

impl TextPage {
    /// An empty page. `quiet` leaves advice out.
    pub(crate) fn new(colour: bool, quiet: bool) -> TextPage {
        TextPage { text: String::new(), colour, quiet, width: None }
    }

    /// The page is for a terminal of this many columns, or for a file of any width.
    pub(crate) fn fit(&mut self, width: Option<usize>) {
        self.width = width;
    }

    /// The columns that a table should fit into; `None` where any width will do.
    pub(crate) fn width(&self) -> Option<usize> {
        self.width
    }

    /// The finished text.
    pub(crate) fn into_text(self) -> String {
        self.text
    }

    /// A title, with an empty line above it unless it is the first.
    pub(crate) fn heading(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.push(title, TextTone::Strong);
        self.text.push('\n');
    }

    /// One line.
    pub(crate) fn line(&mut self, text: &str) {
        self.push(text, TextTone::Plain);
        self.text.push('\n');
    }

    /// One line with a tone.
    pub(crate) fn toned(&mut self, text: &str, tone: TextTone) {
        self.push(text, tone);
        self.text.push('\n');
    }

    /// Text of several lines, with its own line ends; text from outside cannot begin a line.
    pub(crate) fn raw(&mut self, text: &str) {
        self.text.push_str(&text::lines(text));
    }

    /// Advice: a line that a quiet page leaves out.
    pub(crate) fn advice(&mut self, text: &str) {
        if !self.quiet {
            self.push(&format!("  {text}"), TextTone::Faint);
            self.text.push('\n');
        }
    }

    /// Rows with their columns in line; rows may be of unequal length.
    pub(crate) fn table(&mut self, rows: &[Vec<TextCell>]) {
        let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns)
            .map(|column| {
                rows.iter().filter_map(|row| row.get(column)).map(width).max().unwrap_or(0)
            })
            .collect();
        for row in rows {
            self.row(row, &widths);
        }
    }

    fn row(&mut self, row: &[TextCell], widths: &[usize]) {
        for (cell, width_here) in row.iter().zip(widths) {
            let pad = " ".repeat(width_here - width(cell));
            self.text.push_str("  ");
            if cell.right {
                self.text.push_str(&pad);
            }
            self.push(&cell.text, cell.tone);
            if !cell.right {
                self.text.push_str(&pad);
            }
        }
        let end = self.text.trim_end_matches(' ').len();
        self.text.truncate(end);
        self.text.push('\n');
    }

    fn push(&mut self, text: &str, tone: TextTone) {
        let text = &text::one_line(text);
        if self.colour && tone != TextTone::Plain && !text.is_empty() {
            self.text.push_str(tone.code());
            self.text.push_str(text);
            self.text.push_str("\x1b[0m");
        } else {
            self.text.push_str(text);
        }
    }
}

/// Columns on the screen. Characters are counted, which is right for what we print:
/// no verb prints wide or combining ones.
fn width(cell: &TextCell) -> usize {
    cell.text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(colour: bool, quiet: bool) -> String {
        let mut page = TextPage::new(colour, quiet);
        page.heading("Memory");
        page.table(&[
            vec![
                "total".into(),
                TextCell::figure(Some("7.44 GiB")),
                TextCell::new("read", TextTone::Faint),
            ],
            vec!["nvmap".into(), TextCell::figure(None::<&str>)],
            vec![
                "swap free".into(),
                TextCell::figure(Some("0 B")),
                TextCell::new("", TextTone::Faint),
            ],
        ]);
        page.advice("close something");
        page.heading("Next");
        page.into_text()
    }

    #[test]
    fn columns_are_in_line_and_lines_have_no_tail() {
        let text = "\
Memory
  total      7.44 GiB  read
  nvmap             –
  swap free       0 B
  close something

Next
";
        assert_eq!(sizes(false, false), text);
    }

    #[test]
    fn a_quiet_page_has_no_advice() {
        assert!(!sizes(false, true).contains("close something"));
    }

    #[test]
    fn colours_change_no_column() {
        let coloured = sizes(true, false);
        assert!(coloured.contains("\x1b[1mMemory\x1b[0m"));
        let mut bare = coloured;
        for code in ["\x1b[0m", "\x1b[1m", "\x1b[2m"] {
            bare = bare.replace(code, "");
        }
        assert_eq!(bare, sizes(false, false));
    }

    #[test]
    fn nothing_on_a_page_steers_the_terminal() {
        let mut page = TextPage::default();
        page.table(&[vec!["a\nb\x1b[31m".into(), TextCell::new("c\0", TextTone::Plain)]]);
        page.table(&[vec![TextCell::figure(Some("1\u{202e}"))]]);
        page.heading("d\nfits");
        page.advice("e\nfits");
        page.line("f\nfits");
        page.raw("g\u{9b}\nh\n");
        let text = "  a b�[31m  c�\n  1�\n\nd fits\n  e fits\nf fits\ng�\nh\n";
        assert_eq!(page.into_text(), text);
    }

    #[test]
    fn an_empty_table_is_nothing() {
        let mut page = TextPage::default();
        page.table(&[]);
        assert_eq!(page.into_text(), "");
    }
}
