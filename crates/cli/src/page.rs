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

/// The unit of all sizes in a table, so that they can be compared at a glance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SizeUnit {
    name: &'static str,
    shift: u32,
}

impl SizeUnit {
    /// The unit for a table of these sizes: that of the largest, or the one below it where the
    /// smallest could else not be seen and the largest still has few digits.
    pub(crate) fn of(sizes: impl IntoIterator<Item = Option<u64>>) -> SizeUnit {
        const UNITS: [(&str, u32); 4] = [("B", 0), ("KiB", 10), ("MiB", 20), ("GiB", 30)];
        let (mut least, mut most) = (u64::MAX, 0);
        for size in sizes.into_iter().flatten().filter(|size| *size > 0) {
            (least, most) = (least.min(size), most.max(size));
        }
        let own = UNITS.iter().rposition(|(_, shift)| most >> shift > 0).unwrap_or(0);
        let hides = least < 1u64 << UNITS[own].1 >> 7;
        let below = own.saturating_sub(1);
        let fits = most >> UNITS[below].1 < 10_000;
        let (name, shift) = UNITS[if hides && fits { below } else { own }];
        SizeUnit { name, shift }
    }

    /// Its name, for a column that has no other.
    pub(crate) fn name(self) -> &'static str {
        self.name
    }

    /// A size as a number in this unit. What is too small to show is no zero.
    pub(crate) fn number(self, bytes: u64) -> String {
        match bytes as f64 / (1u64 << self.shift) as f64 {
            _ if self.shift == 0 || bytes == 0 => format!("{}", bytes >> self.shift),
            small if small < 0.005 => "<0.01".to_string(),
            value => format!("{value:.2}"),
        }
    }

    /// The same with the unit behind it.
    pub(crate) fn text(self, bytes: u64) -> String {
        format!("{} {}", self.number(bytes), self.name)
    }

    /// The same as a figure of a table.
    pub(crate) fn figure(self, bytes: Option<u64>) -> TextCell {
        TextCell::figure(bytes.map(|bytes| self.text(bytes)))
    }
}

/// A text cut to this many characters, with an ellipsis where something is missing.
pub(crate) fn cut(text: &str, width: usize) -> String {
    match text.chars().nth(width) {
        None => text.to_string(),
        Some(_) => text.chars().take(width.saturating_sub(1)).chain(['…']).collect(),
    }
}

/// What a column of words keeps at least, of what a terminal leaves.
const LEAST_COLUMN: usize = 16;

/// A text in lines of at most this many characters, broken at blanks. A word that is longer has a
/// line for itself.
pub(crate) fn fold(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines
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
    verbose: bool,
    width: Option<usize>,
}

impl TextPage {
    /// An empty page. `quiet` leaves advice out.
    pub(crate) fn new(colour: bool, quiet: bool) -> TextPage {
        TextPage { text: String::new(), colour, quiet, verbose: false, width: None }
    }

    /// The page is for a terminal of this many columns, where lines are broken between words, or
    /// for a file of any width.
    pub(crate) fn fit(&mut self, width: Option<usize>) {
        self.width = width;
    }

    /// The reader wants all of it (`-v`).
    pub(crate) fn say_more(&mut self, verbose: bool) {
        self.verbose = verbose;
    }

    /// Whether the reader wants all of it.
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
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
        self.toned(title, TextTone::Strong);
    }

    /// One line, or as many as the terminal needs for it.
    pub(crate) fn line(&mut self, text: &str) {
        self.toned(text, TextTone::Plain);
    }

    /// The same with a tone.
    pub(crate) fn toned(&mut self, text: &str, tone: TextTone) {
        let indent = text.len() - text.trim_start_matches(' ').len();
        match self.width.filter(|width| text.chars().count() > *width) {
            None => self.unbroken(text, tone),
            Some(width) => {
                let lines = fold(text, width.saturating_sub(indent));
                let lines = lines.iter().map(|line| format!("{}{line}", &text[..indent]));
                lines.for_each(|line| self.unbroken(&line, tone));
            }
        }
    }

    /// One line that is copied as it stands, such as a command: where the terminal breaks it, what
    /// is copied has no break.
    pub(crate) fn unbroken(&mut self, text: &str, tone: TextTone) {
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
            self.toned(&format!("  {text}"), TextTone::Faint);
        }
    }

    /// Rows with their columns in line; rows may be of unequal length. Where the terminal is
    /// narrower, columns of words are folded.
    pub(crate) fn table(&mut self, rows: &[Vec<TextCell>]) {
        let mut widths = widths(rows);
        if let Some(width) = self.width {
            narrow(rows, &mut widths, width);
        }
        let lines: Vec<_> = rows.iter().flat_map(|row| folded(row, &widths)).collect();
        let widths = self::widths(&lines);
        for line in &lines {
            self.row(line, &widths);
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

/// The width of each column.
fn widths(rows: &[Vec<TextCell>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widest = |column| rows.iter().filter_map(|row| row.get(column)).map(width).max();
    (0..columns).map(|column| widest(column).unwrap_or(0)).collect()
}

/// Takes from the widest columns of words what a terminal has no room for; figures stay whole.
fn narrow(rows: &[Vec<TextCell>], widths: &mut [usize], terminal: usize) {
    let words = |column: usize| rows.iter().filter_map(|row| row.get(column)).all(|c| !c.right);
    let foldable: Vec<usize> = (0..widths.len()).filter(|column| words(*column)).collect();
    while widths.iter().map(|width| width + 2).sum::<usize>() > terminal {
        let wide = foldable.iter().copied().filter(|column| widths[*column] > LEAST_COLUMN);
        let Some(widest) = wide.max_by_key(|column| widths[*column]) else { return };
        widths[widest] -= 1;
    }
}

/// A row as lines whose cells are as narrow as that.
fn folded(row: &[TextCell], widths: &[usize]) -> Vec<Vec<TextCell>> {
    let cell = |(cell, room): (&TextCell, &usize)| match width(cell) > *room {
        true => fold(&cell.text, *room).iter().map(|part| TextCell::new(part, cell.tone)).collect(),
        false => vec![cell.clone()],
    };
    let cells: Vec<Vec<TextCell>> = row.iter().zip(widths).map(cell).collect();
    let lines = cells.iter().map(Vec::len).max().unwrap_or(1);
    let line = |at| cells.iter().map(|cell| cell.get(at).cloned().unwrap_or_default()).collect();
    (0..lines).map(line).collect()
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
    fn a_table_has_one_unit_and_what_is_small_is_no_zero() {
        let unit = SizeUnit::of([Some(80 << 30), None, Some(5 << 20)]);
        let shown = (unit.text(80 << 30), unit.text(5 << 20));
        assert_eq!(shown, ("80.00 GiB".into(), "<0.01 GiB".into()));
        assert_eq!((unit.number(6 << 20), unit.text(0)), ("0.01".into(), "0 GiB".into()));
        let unit = SizeUnit::of([Some(3 << 30), Some(5 << 20), Some(0)]);
        let shown = (unit.text(3 << 30), unit.text(5 << 20));
        assert_eq!(shown, ("3072.00 MiB".into(), "5.00 MiB".into()), "small and large can be seen");
        assert_eq!(SizeUnit::of([Some(3 << 30), Some(50 << 20)]).name(), "GiB");
        assert_eq!(SizeUnit::of([Some(900)]).text(900), "900 B");
        assert_eq!(SizeUnit::of([None]).name(), "B");
    }

    #[test]
    fn long_text_is_cut_or_folded() {
        assert_eq!((cut("abcdef", 4), cut("abc", 4)), ("abc…".to_string(), "abc".to_string()));
        assert_eq!(fold("one two  three", 7), ["one two", "three"]);
        assert_eq!(fold("abcdefgh ij", 4), ["abcdefgh", "ij"]);
        assert!(fold("", 9).is_empty());
    }

    /// A page for a terminal of so many columns.
    fn shown(columns: Option<usize>, write: impl Fn(&mut TextPage)) -> String {
        let mut page = TextPage::default();
        page.fit(columns);
        write(&mut page);
        page.into_text()
    }

    #[test]
    fn a_terminal_breaks_between_words_and_a_file_does_not() {
        let note = "18.51 MiB reserved by the engine beyond what it uses";
        let table = |page: &mut TextPage| {
            page.table(&[
                vec!["high".into(), TextCell::figure(Some("3.87 GiB")), note.into()],
                vec!["low".into(), TextCell::figure(Some("1.20 GiB")), "".into()],
            ]);
        };
        let narrow = "  high  3.87 GiB  18.51 MiB reserved by
                  the engine beyond what
                  it uses
  low   1.20 GiB
";
        assert_eq!(shown(Some(40), table), narrow);
        assert_eq!(
            shown(None, table).lines().next(),
            Some(format!("  high  3.87 GiB  {note}").as_str())
        );
        let line = |page: &mut TextPage| page.line("  one two three");
        assert_eq!(shown(Some(10), line), "  one two\n  three\n");
        assert_eq!(shown(None, line), "  one two three\n");
        let command = |page: &mut TextPage| page.unbroken("  one two three", TextTone::Plain);
        assert_eq!(shown(Some(10), command), "  one two three\n");
    }

    #[test]
    fn two_columns_of_words_share_what_there_is() {
        let words = "one two three four five six seven";
        let table = |page: &mut TextPage| page.table(&[vec![words.into(), words.into()]]);
        let text = shown(Some(40), table);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.starts_with("  one two three four  one two three four\n"), "{text}");
    }

    #[test]
    fn an_empty_table_is_nothing() {
        let mut page = TextPage::default();
        page.table(&[]);
        assert_eq!(page.into_text(), "");
    }
}
