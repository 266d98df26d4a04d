//! The parts of the pages that `run`, `report` and `replay` write: one file each, which opens
//! without a network, in light and dark, and runs nothing. Style and plots are those of `bench`.
//! maud escapes every text, and [`safe`] removes control characters from texts of others.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use plimsoll::text::one_line;
use plimsoll_bench::report::html::STYLE;
use plimsoll_bench::report::svg::Plot;

use crate::page::{SizeUnit, UNKNOWN};

/// The page loads nothing and runs nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// A program's name may be long: it is broken, so that the figures stay visible. On a phone they
/// are below it, each with the name of its column.
const NAMES_STYLE: &str = include_str!("names.css");

/// A page of its own. `refresh` has the browser load it again after so many seconds.
pub(crate) fn document(title: &str, subtitle: &str, refresh: Option<u64>, body: &Markup) -> String {
    let title = safe(title);
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                @if let Some(seconds) = refresh { meta http-equiv="refresh" content=(seconds); }
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) (PreEscaped(NAMES_STYLE)) }
            }
            body {
                main {
                    header {
                        h1 { (title) }
                        p.sub { (safe(subtitle)) }
                    }
                    (body)
                }
            }
        }
    };
    page.into_string() + "\n"
}

/// The text without control characters, on one line.
pub(crate) fn safe(text: &str) -> String {
    one_line(text).into_owned()
}

/// A section with a title.
pub(crate) fn section(name: &str, body: &Markup) -> Markup {
    html! { section { h2 { (safe(name)) } (body) } "\n" }
}

/// A table of names and values.
pub(crate) fn facts<N: AsRef<str>>(rows: impl IntoIterator<Item = (N, String)>) -> Markup {
    html! {
        table.facts {
            @for (name, value) in rows {
                tr { th scope="row" { (safe(name.as_ref())) } td { (safe(&value)) } }
            }
        }
    }
}

/// A table of figures. The first cell of a row is its name.
pub(crate) fn numbers(names: &[&str], rows: &[Vec<String>]) -> Markup {
    html! {
        div.wide {
            table.numbers {
                tr { @for name in names { th { (name) } } }
                @for row in rows {
                    tr {
                        @for (place, (name, text)) in names.iter().zip(row).enumerate() {
                            td data-name=[(place > 0).then_some(name)] { (safe(text)) }
                        }
                    }
                }
            }
        }
    }
}

/// A section with a table, where the table has rows.
pub(crate) fn numbers_section(title: &str, names: &[&str], rows: &[Vec<String>]) -> Markup {
    if rows.is_empty() {
        html! {}
    } else {
        section(title, &numbers(names, rows))
    }
}

/// A plot with its caption.
pub(crate) fn figure(caption: &str, plot: &Plot) -> Markup {
    html! {
        figure.wide {
            figcaption {
                (safe(caption))
                @if let Some(note) = &plot.note { span.plot-note { (safe(note)) } }
            }
            (plot.drawing)
        }
    }
}

/// A size in the unit of its table, or a dash.
pub(crate) fn size(unit: SizeUnit, bytes: Option<u64>) -> String {
    bytes.map_or_else(|| UNKNOWN.to_string(), |bytes| unit.text(bytes))
}

/// A bar for a share from 0 to 1. Screen readers get the share from the text beside it.
pub(crate) fn share_bar(share: f64) -> Markup {
    let share = if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 };
    html! {
        span.share aria-hidden="true" { span.share-fill style=(format!("width:{:.1}%", share * 100.0)) {} }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_texts_are_letters_on_the_page() {
        let evil = "<script>alert(1)</script>\"'&\u{202e}\x1b[31m";
        let row = vec![evil.to_string(), evil.to_string()];
        let body = html! {
            (section(evil, &facts([(evil, evil.to_string())])))
            (numbers(&["a", "b"], &[row]))
            (share_bar(f64::NAN))
        };
        let page = document(evil, evil, Some(2), &body);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"), "{page}");
        assert!(!page.contains(['\u{202e}', '\x1b']));
        assert!(
            page.contains("width:0.0%") && page.contains("http-equiv=\"refresh\" content=\"2\"")
        );
    }
}
