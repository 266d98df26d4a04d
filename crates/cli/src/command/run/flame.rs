//! A flame graph as SVG, without a script: the memory that was live at a peak, by call stack. The
//! program's start is at the top, and each row below it is what was called from there; a box is as
//! wide as its share of the memory.

use maud::{Markup, html};
use plimsoll::text::one_line;

use super::answer::PlaceReport;
use super::frame::frame_name;
use crate::page::{SizeUnit, cut};

const WIDTH: f64 = 1000.0;
const ROW: f64 = 18.0;
/// Narrower boxes cannot be seen; what they hold is in the box above them.
const LEAST_WIDTH: f64 = 0.8;
/// A letter of a name takes about this much.
const LETTER: f64 = 6.2;
/// Colours that dark letters can be read on, in light and dark; neighbours differ.
const COLOURS: [&str; 6] = ["#f4a261", "#e9c46a", "#f2b5a7", "#d9c27e", "#eab676", "#f0cfa0"];

/// A function and what was called from it.
#[derive(Debug, Default)]
struct FlameNode {
    name: String,
    bytes: u64,
    below: Vec<FlameNode>,
}

impl FlameNode {
    fn add(&mut self, names: &[String], bytes: u64) {
        self.bytes += bytes;
        let Some((first, rest)) = names.split_first() else { return };
        let at = self.below.iter().position(|node| node.name == *first).unwrap_or_else(|| {
            self.below.push(FlameNode { name: first.clone(), ..FlameNode::default() });
            self.below.len() - 1
        });
        self.below[at].add(rest, bytes);
    }

    fn depth(&self) -> usize {
        1 + self.below.iter().map(FlameNode::depth).max().unwrap_or(0)
    }
}

/// The graph; nothing where no stack was kept.
pub(super) fn render(places: &[PlaceReport], unit: SizeUnit) -> Option<Markup> {
    let root = tree(places)?;
    let height = root.depth() as f64 * ROW;
    let mut boxes = Vec::new();
    draw(&root, (0.0, WIDTH), 0, &mut boxes);
    let total = root.bytes;
    Some(html! {
        div.wide {
            div.flame style="min-width:680px" {
                svg viewBox={ "0 0 " (WIDTH) " " (height) } role="img" aria-label="Live memory at the peak by call stack" {
                    title { "Live memory at the peak by call stack" }
                    @for found in &boxes { (flame_box(found, unit, total)) }
                }
            }
        }
    })
}

/// All stacks in one tree, the outermost frame first.
fn tree(places: &[PlaceReport]) -> Option<FlameNode> {
    places.iter().find(|place| !place.stack.is_empty())?;
    let mut root = FlameNode { name: "all".to_string(), ..FlameNode::default() };
    for place in places {
        let names: Vec<String> = match (place.stack.is_empty(), place.by_driver) {
            (_, true) => vec!["the driver itself".to_string()],
            (true, false) => vec!["no call stack was kept".to_string()],
            (false, false) => place.stack.iter().rev().map(|frame| frame_name(frame)).collect(),
        };
        root.add(&names, place.bytes);
    }
    Some(root)
}

/// A box of the drawing.
struct FlameBox<'a> {
    node: &'a FlameNode,
    x: f64,
    width: f64,
    row: usize,
}

fn draw<'a>(
    node: &'a FlameNode,
    (x, width): (f64, f64),
    row: usize,
    boxes: &mut Vec<FlameBox<'a>>,
) {
    if width < LEAST_WIDTH || node.bytes == 0 {
        return;
    }
    boxes.push(FlameBox { node, x, width, row });
    let mut below: Vec<&FlameNode> = node.below.iter().collect();
    below.sort_by_key(|node| std::cmp::Reverse(node.bytes));
    let mut from = x;
    for node_below in below {
        let part = width * node_below.bytes as f64 / node.bytes as f64;
        draw(node_below, (from, part), row + 1, boxes);
        from += part;
    }
}

fn flame_box(found: &FlameBox<'_>, unit: SizeUnit, total: u64) -> Markup {
    let FlameBox { node, x, width, row } = found;
    let share = node.bytes as f64 / total.max(1) as f64 * 100.0;
    let about = format!("{}: {}, {share:.1} %", node.name, unit.text(node.bytes));
    let colour =
        node.name.bytes().fold(*row, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    let letters = ((width - 6.0) / LETTER).max(0.0) as usize;
    let y = *row as f64 * ROW;
    html! {
        g {
            title { (one_line(&about)) }
            rect x=(format!("{x:.1}")) y=(format!("{y:.0}")) width=(format!("{width:.1}")) height=(ROW) rx="2" fill=(COLOURS[colour % COLOURS.len()]) {}
            @if letters >= 4 {
                text x=(format!("{:.1}", x + 3.0)) y=(format!("{:.1}", y + 12.8)) { (one_line(&cut(&node.name, letters))) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(bytes: u64, stack: &[&str]) -> PlaceReport {
        let stack = stack.iter().map(|frame| (*frame).to_string()).collect();
        PlaceReport { pid: 1, bytes, blocks: 1, by_driver: false, stack }
    }

    #[test]
    fn stacks_that_begin_alike_are_one_box_and_names_are_letters() {
        let places = [
            place(600, &["/a(<script>alert(1)</script>+0x1)[1]", "/a(main+0x2)[1]"]),
            place(300, &["/a(other+0x1)[1]", "/a(main+0x9)[1]"]),
            PlaceReport { by_driver: true, ..place(100, &[]) },
        ];
        let root = tree(&places).unwrap();
        assert_eq!((root.bytes, root.below.len(), root.below[0].bytes), (1000, 2, 900));
        let svg = render(&places, SizeUnit::of([Some(1000)])).unwrap().into_string();
        assert!(svg.contains("main (a): 900 B, 90.0 %"), "{svg}");
        assert!(svg.contains("the driver itself") && !svg.contains("<script"), "{svg}");
        assert!(!svg.contains("NaN"));
    }

    #[test]
    fn without_stacks_there_is_no_graph() {
        assert!(render(&[place(5, &[])], SizeUnit::of([Some(5)])).is_none());
        assert!(render(&[], SizeUnit::of([Some(5)])).is_none());
    }
}
