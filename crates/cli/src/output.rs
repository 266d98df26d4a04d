//! The only place that prints.
//!
//! Answers go to stdout, as text or as JSON (`--json`); errors go to stderr, as
//! `error: …` with their causes, or as `{"error": {"message", "kind", "causes"}}`.
//! So a program that reads our stdout always finds either one JSON value or nothing.
//!
//! A reader that has seen enough (`plimsoll doctor | head -1`) closes the pipe. That is not a
//! failure: the rest of the output is dropped silently, and the verb's own outcome still decides
//! the exit code.
//!
//! Text from outside (names in files, names of files, an engine's messages) must not control the
//! terminal: everything that is printed passes [`plimsoll::text`], here or on its [`TextPage`].

use std::io::{self, BufWriter, ErrorKind, IsTerminal, Write};
use std::panic::PanicHookInfo;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use plimsoll::text;
use plimsoll_infer::engine::is_shielded;
use plimsoll_infer::source::redact;
use serde::Serialize;
use serde_json::json;

use crate::args::Global;
use crate::outcome::FaultKind;
use crate::page::TextPage;

/// What a verb found: its fields for programs, its page for people.
pub(crate) trait Answer: Serialize {
    /// Writes the answer for people.
    fn page(&self, page: &mut TextPage);

    /// The bare answer (`-q`): what was asked for, and nothing about it. A verb whose page is no
    /// more than that needs no other.
    fn bare(&self, page: &mut TextPage) {
        self.page(page);
    }
}

/// Where a verb's answers go.
pub(crate) struct Output {
    stdout: Box<dyn Write>,
    json: bool,
    quiet: bool,
    verbose: bool,
    colour: bool,
    open: bool,
}

impl Output {
    /// Stdout, in the form that the flags and the terminal ask for.
    pub(crate) fn new(global: &Global) -> Output {
        Output {
            stdout: Box::new(BufWriter::new(io::stdout())),
            json: global.json,
            quiet: global.quiet,
            verbose: global.verbose > 0,
            colour: colour_on(io::stdout().is_terminal()),
            open: true,
        }
    }

    /// Prints an answer, in the form that was asked for.
    pub(crate) fn answer<A: Answer>(&mut self, answer: &A) -> anyhow::Result<()> {
        let text = if self.json {
            let value = serde_json::to_string_pretty(answer);
            let value = value.context("cannot write the answer as JSON")?;
            text::json(&value).into_owned() + "\n"
        } else {
            self.text_of(answer)
        };
        self.attempt(|stdout| stdout.write_all(text.as_bytes()))
    }

    fn text_of<A: Answer>(&self, answer: &A) -> String {
        let mut page = TextPage::new(self.colour, self.quiet);
        page.fit(io::stdout().is_terminal().then(terminal_width));
        page.say_more(self.verbose);
        if self.quiet {
            answer.bare(&mut page)
        } else {
            answer.page(&mut page)
        }
        page.into_text()
    }

    /// Prints an answer in the place of the one before, as much of it as the terminal has rows for;
    /// where there is no terminal, below it. JSON is a line. Whether anybody still reads.
    pub(crate) fn redraw<A: Answer>(&mut self, answer: &A) -> anyhow::Result<bool> {
        if self.json {
            let value = serde_json::to_string(answer).context("cannot write the answer as JSON")?;
            return self.line(&value);
        }
        let text = self.text_of(answer);
        let text = match can_redraw() {
            true => screenful(&text, terminal_rows()),
            false => text + "\n",
        };
        self.attempt(|stdout| {
            stdout.write_all(text.as_bytes())?;
            stdout.flush()
        })?;
        Ok(self.open)
    }

    /// Prints a line of a stream at once, or several; whether anybody still reads.
    pub(crate) fn line(&mut self, text: &str) -> anyhow::Result<bool> {
        let text = text.trim_end_matches('\n');
        // A line of JSON names its fields itself.
        let text = if text.starts_with('{') { text::json(text) } else { text::lines(text) };
        self.attempt(|stdout| {
            stdout.write_all(text.as_bytes())?;
            stdout.write_all(b"\n")?;
            stdout.flush()
        })?;
        Ok(self.open)
    }

    /// Shows an answer beside a stream that is on stdout: a page on stderr, unless quiet.
    pub(crate) fn answer_on_stderr<A: Answer>(&self, answer: &A) {
        if !self.quiet {
            let terminal = io::stderr().is_terminal();
            let mut page = TextPage::new(colour_on(terminal), false);
            page.fit(terminal.then(terminal_width));
            answer.page(&mut page);
            page_on_stderr(page);
        }
    }

    /// Flushes what is still buffered.
    pub(crate) fn finish(&mut self) -> anyhow::Result<()> {
        self.attempt(|stdout| stdout.flush())
    }

    /// Whether the answer is for programs.
    pub(crate) fn is_json(&self) -> bool {
        self.json
    }

    /// Whether the user wants the bare answer.
    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// Whether the user wants to know how it was done.
    pub(crate) fn is_verbose(&self) -> bool {
        self.verbose
    }

    /// A line on the terminal for work that may take long.
    pub(crate) fn progress(&self) -> ProgressLine {
        let on = !self.quiet && can_rewrite();
        ProgressLine { on, since: Instant::now(), shown: String::new() }
    }

    fn attempt(
        &mut self,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        if !self.open {
            return Ok(());
        }
        let written = write(&mut *self.stdout);
        // A failure is reported once.
        self.open = written.is_ok();
        match written {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
            other => other.context("cannot write to stdout"),
        }
    }
}

/// A line that is written over and over on stderr, and gone at the end. It appears only
/// on a terminal, and only for what has lasted over a second.
pub(crate) struct ProgressLine {
    on: bool,
    since: Instant,
    shown: String,
}

impl ProgressLine {
    const SHOW_AFTER: Duration = Duration::from_secs(1);

    /// Says what is being done now.
    pub(crate) fn show(&mut self, text: &str) {
        if self.on && self.since.elapsed() > ProgressLine::SHOW_AFTER && self.shown != text {
            self.shown = text.to_string();
            rewrite(text, false);
        }
    }

    /// The same, with the time that the rest takes if it goes on like this.
    pub(crate) fn show_part(&mut self, text: &str, done: u64, total: u64) {
        match time_left(self.since.elapsed(), done, total) {
            Some(left) => self.show(&format!("{text}, {left} left")),
            None => self.show(text),
        }
    }
}

/// What the rest takes at the pace so far; nothing where there is no pace yet.
fn time_left(so_far: Duration, done: u64, total: u64) -> Option<String> {
    let rest = total.checked_sub(done)?;
    let seconds = (done > 0).then(|| so_far.as_secs_f64() / done as f64 * rest as f64)?;
    Some(match seconds.round() as u64 {
        seconds @ 0..100 => format!("{seconds} s"),
        seconds @ 100..6000 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{} h", seconds.div_ceil(3600)),
    })
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if !self.shown.is_empty() {
            let _ = write!(io::stderr(), "\r\x1b[2K");
        }
    }
}

/// Writes lines for people to stderr while a verb works; text from outside cannot begin a line.
pub(crate) fn note(text: &str) {
    print_to_stderr(&redact(&text::lines(text.trim_end())));
}

/// Writes a page to stderr, where it has anything. What is on a page is safe to show already, and
/// its colours are its own.
pub(crate) fn page_on_stderr(page: TextPage) {
    let text = page.into_text();
    if !text.is_empty() {
        print_to_stderr(&redact(text.trim_end_matches('\n')));
    }
}

/// The same for one line, whatever is in it.
pub(crate) fn note_line(text: &str) {
    print_to_stderr(&shown(text));
}

fn print_to_stderr(text: &str) {
    // There is nowhere to report that stderr is gone.
    let _ = writeln!(io::stderr(), "{text}");
}

/// A line as it may be shown: without control characters and secrets.
fn shown(text: &str) -> String {
    redact(&text::one_line(text.trim_end())).into_owned()
}

/// The way of a log to stderr, an event a line.
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let event = String::from_utf8_lossy(bytes);
        // Escapes are the colours of the log itself, which writes those of others in letters.
        let parts =
            event.trim_end().split('\x1b').map(|part| redact(&text::one_line(part)).into_owned());
        writeln!(io::stderr(), "{}", parts.collect::<Vec<_>>().join("\x1b"))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// A line on stderr that the next one is written over; `last` leaves it standing.
pub(crate) fn rewrite(text: &str, last: bool) {
    let end = if last { "\n" } else { "" };
    let _ = write!(io::stderr(), "\r\x1b[2K{}{end}", shown(text));
}

/// The columns of the terminal; 80 where it does not say.
pub(crate) fn terminal_width() -> usize {
    let size = ratatui::crossterm::terminal::size();
    size.map_or(80, |(columns, _)| usize::from(columns)).max(40)
}

/// The rows of the terminal; 24 where it does not say.
fn terminal_rows() -> usize {
    let size = ratatui::crossterm::terminal::size();
    size.map_or(24, |(_, rows)| usize::from(rows)).max(4)
}

/// The text from the top of the screen, each line over what was there.
fn screenful(text: &str, rows: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let shown = if lines.len() < rows { lines.len() } else { rows - 2 };
    let mut screen = "\x1b[H".to_string();
    for line in &lines[..shown] {
        screen.push_str(line);
        screen.push_str("\x1b[K\n");
    }
    if shown < lines.len() {
        screen.push_str(&format!("… {} more lines\x1b[K\n", lines.len() - shown));
    }
    screen + "\x1b[J"
}

/// Whether to colour: only on a terminal that obeys, and not where `NO_COLOR` says otherwise.
pub(crate) fn colour_on(terminal: bool) -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    terminal && !set("NO_COLOR") && !is_dumb()
}

/// Whether a line on stderr can be written over: on a terminal that knows how.
pub(crate) fn can_rewrite() -> bool {
    io::stderr().is_terminal() && !is_dumb()
}

/// The same of stdout.
pub(crate) fn can_redraw() -> bool {
    io::stdout().is_terminal() && !is_dumb()
}

/// Whether the terminal has said that it shows escape sequences and does not obey them.
fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// Prints what clap has to say: help and version on stdout, a usage error on stderr.
pub(crate) fn usage(error: &clap::Error, json: bool) -> ExitCode {
    if !error.use_stderr() {
        return match error.print() {
            Err(problem) if problem.kind() != ErrorKind::BrokenPipe => {
                failure(&anyhow::Error::from(problem).context("cannot write to stdout"), json)
            }
            _ => ExitCode::SUCCESS,
        };
    }
    if json {
        let text = error.to_string();
        let message = text.split("\n\nUsage:").next().unwrap_or(&text);
        complain(FaultKind::Usage, message.trim_end().trim_start_matches("error: "), &[], true);
    } else if needs_change(&error.to_string()) {
        // What is left of a word of the command line: shown, but not in colours.
        note(&error.to_string());
    } else {
        // There is nowhere to report that stderr is gone.
        let _ = error.print();
    }
    ExitCode::from(FaultKind::Usage.code())
}

/// Whether lines must be changed before they are shown.
fn needs_change(text: &str) -> bool {
    text.contains(|c| text::is_steering(c) && c != '\n') || redact(text) != text
}

/// Prints an error with its causes.
pub(crate) fn failure(error: &anyhow::Error, json: bool) -> ExitCode {
    let kind = FaultKind::of(error);
    complain(kind, &error.to_string(), &causes(error), json);
    ExitCode::from(kind.code())
}

/// What led to it, each in its own words; what the one before has said already is left out.
fn causes(error: &anyhow::Error) -> Vec<String> {
    let mut said = vec![error.to_string()];
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !said.last().is_some_and(|before| before.contains(&cause)) {
            said.push(cause);
        }
    }
    said.split_off(1)
}

/// From here on a panic is one line that says how to report it, and exit code 3; but not one of
/// an engine, which works beside the main thread: that is an error of its model.
pub(crate) fn report_panics(json: bool) {
    std::panic::set_hook(Box::new(move |info| {
        if is_shielded() && std::thread::current().name() != Some("main") {
            let (what, place) = panic_text(info);
            tracing::error!("a panic while an engine was at work{place}: {what}");
            return;
        }
        crate::tui::restore();
        complain(FaultKind::Bug, &bug(info), &[], json);
        std::process::exit(FaultKind::Bug.code().into());
    }));
}

/// What a panic says, and where it was.
fn panic_text(info: &PanicHookInfo<'_>) -> (String, String) {
    let payload = info.payload();
    let what = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (_, Some(text)) => text.as_str(),
        _ => "no message",
    };
    let place = info.location().map_or_else(String::new, |at| format!(" at {at}"));
    (what.replace('\n', " "), place)
}

fn bug(info: &PanicHookInfo<'_>) -> String {
    let (what, place) = panic_text(info);
    format!(
        "this is a bug in plimsoll {}{place}: {what}; please report this line with the command \
         that you ran",
        env!("CARGO_PKG_VERSION")
    )
}

fn complain(kind: FaultKind, message: &str, causes: &[String], json: bool) {
    let text = if json {
        let (message, causes) = (redact(message), causes.iter().map(|cause| redact(cause)));
        let causes: Vec<_> = causes.collect();
        let body = json!({"message": message, "kind": kind.name(), "causes": causes});
        text::json(&json!({"error": body}).to_string()).into_owned()
    } else {
        let colour = colour_on(io::stderr().is_terminal());
        let (start, end) = if colour { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        let line = |cause: &String| format!("\n  because: {}", shown(cause));
        let causes: String = causes.iter().map(line).collect();
        format!("{start}error:{end} {}{causes}", shown(message))
    };
    print_to_stderr(&text);
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    struct Refuses(ErrorKind);

    impl Write for Refuses {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(self.0.into())
        }
    }

    #[derive(Serialize)]
    struct Short;

    impl Answer for Short {
        fn page(&self, page: &mut TextPage) {
            page.raw("yes\n");
        }
    }

    fn output_to(kind: ErrorKind) -> Output {
        let stdout = Box::new(Refuses(kind));
        Output { stdout, json: false, quiet: false, verbose: false, colour: false, open: true }
    }

    #[test]
    fn a_cause_is_told_once() {
        let io = std::io::Error::other("no such file");
        let error = anyhow::Error::from(io).context("cannot read a: no such file; give b");
        assert_eq!(causes(&error.context("a is no run")), ["cannot read a: no such file; give b"]);
    }

    #[test]
    fn a_closed_pipe_is_no_failure_and_a_full_disk_is() {
        let mut closed = output_to(ErrorKind::BrokenPipe);
        assert!(closed.answer(&Short).is_ok());
        assert!(closed.finish().is_ok());
        assert!(output_to(ErrorKind::StorageFull).answer(&Short).is_err());
        assert!(output_to(ErrorKind::StorageFull).finish().is_err());
    }

    const PANIC_VARIABLE: &str = "PLIMSOLL_TEST_PANIC";

    /// Does something only when the test below runs it in a process of its own.
    #[test]
    fn panics_when_told_to() {
        if std::env::var_os(PANIC_VARIABLE).is_some() {
            report_panics(false);
            panic!("two\nlines");
        }
    }

    #[test]
    fn a_panic_is_one_line_and_exit_code_3() {
        let run = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--nocapture", "output::tests::panics_when_told_to"])
            .env(PANIC_VARIABLE, "1")
            .output()
            .unwrap();
        let stderr = String::from_utf8_lossy(&run.stderr);
        assert_eq!(run.status.code(), Some(3), "{stderr}");
        assert!(stderr.starts_with("error: this is a bug in plimsoll "), "{stderr}");
        assert!(stderr.contains("two lines") && stderr.contains("report"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }
}
