//! `.ply`: elements of properties, as text or as bytes of either order.
//!
//! Points are the element `vertex`, with properties x, y and z; its other numbers are features,
//! in the order of the file. Elements before it are skipped, lists and all.

use super::FileShape;
use super::columns::{CloudColumn, ColumnType, gather, whole};
use super::flaw::{Flaw, Read};
use super::lines::{CloudLines, number};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PlyForm {
    Text,
    Bytes { big: bool },
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Property {
    name: String,
    kind: ColumnType,
    /// The type of a list's length, where it is a list.
    list: Option<ColumnType>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Element {
    name: String,
    count: usize,
    properties: Vec<Property>,
}

/// What the header says.
#[derive(Debug)]
pub(crate) struct PlyHeader {
    form: PlyForm,
    before: Vec<Element>,
    vertex: Element,
    /// Properties of a vertex in the order of floats: x, y, z, features.
    order: Vec<usize>,
    data: usize,
    lines: usize,
}

impl PlyHeader {
    /// Reads it; the points may be missing.
    pub(crate) fn parse(bytes: &[u8]) -> Read<PlyHeader> {
        let mut lines = CloudLines::new(bytes);
        if lines.next()?.map(str::trim_end) != Some("ply") {
            return Err(Flaw::on(1, "the first line is not `ply`"));
        }
        let (mut form, mut elements) = (None, Vec::<Element>::new());
        loop {
            let line = lines.next()?.ok_or_else(|| lines.flaw("it ends before end_header"))?;
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                [] | ["comment" | "obj_info", ..] => {}
                ["end_header"] => break,
                ["format", name, _] => form = Some(form_of(name, &lines)?),
                ["element", name, count] => {
                    let count = count.parse().map_err(|_| lines.flaw(format!("count {count}")))?;
                    elements.push(Element { name: name.into(), count, properties: Vec::new() });
                }
                ["property", ref rest @ ..] => {
                    let property =
                        property(rest).ok_or_else(|| lines.flaw(format!("unknown: {line}")))?;
                    let element = elements.last_mut();
                    let element = element.ok_or_else(|| lines.flaw("a property of no element"))?;
                    element.properties.push(property);
                }
                _ => return Err(lines.flaw(format!("unknown: {line}"))),
            }
        }
        let form = form.ok_or_else(|| lines.flaw("no format was named"))?;
        let place = elements.iter().position(|element| element.name == "vertex");
        let place = place.ok_or_else(|| lines.flaw("no element vertex"))?;
        let vertex = elements.swap_remove(place);
        elements.truncate(place);
        let order = order(&vertex).ok_or_else(|| lines.flaw("vertex has no x, y and z"))?;
        Ok(PlyHeader { form, before: elements, vertex, order, data: lines.at, lines: lines.number })
    }

    /// Points and features.
    pub(crate) fn shape(&self) -> FileShape {
        let counts = vec![self.vertex.count as u64];
        FileShape { counts, features: self.order.len() - 3, stacked: false }
    }

    /// The floats, with the features or without.
    pub(crate) fn read(&self, bytes: &[u8], features: bool) -> Read<Vec<Vec<f32>>> {
        let order = if features { &self.order[..] } else { &self.order[..3] };
        let floats = match self.form {
            PlyForm::Text => self.text(bytes, order)?,
            PlyForm::Bytes { big } => self.binary(bytes, order, big)?,
        };
        Ok(vec![floats])
    }

    fn text(&self, bytes: &[u8], order: &[usize]) -> Read<Vec<f32>> {
        let mut lines = CloudLines::new(bytes);
        (lines.at, lines.number) = (self.data, self.lines);
        let ends = |lines: &CloudLines<'_>| lines.flaw("it ends before its last vertex");
        for element in &self.before {
            for _ in 0..element.count {
                lines.next_full()?.ok_or_else(|| ends(&lines))?;
            }
        }
        let mut floats = Vec::new();
        let mut row = Vec::new();
        for _ in 0..self.vertex.count {
            let line = lines.next_full()?.ok_or_else(|| ends(&lines))?;
            text_row(&self.vertex, line, &mut row).map_err(|why| lines.flaw(why))?;
            floats.extend(order.iter().filter_map(|&column| row.get(column)));
        }
        Ok(floats)
    }

    fn binary(&self, bytes: &[u8], order: &[usize], big: bool) -> Read<Vec<f32>> {
        let mut at = self.data;
        for element in &self.before {
            at = skip(element, bytes, at, big)?;
        }
        let Some(row) = row_size(&self.vertex) else {
            return walk(&self.vertex, bytes, at, big, order);
        };
        let offset = |index: usize| -> usize {
            self.vertex.properties.iter().take(index).map(|p| p.kind.size()).sum()
        };
        let columns: Vec<CloudColumn> = order
            .iter()
            .filter_map(|&index| {
                let kind = self.vertex.properties.get(index)?.kind;
                Some(CloudColumn { start: at + offset(index), step: row, kind, big })
            })
            .collect();
        whole(bytes, at, row, self.vertex.count)?;
        gather(bytes, &columns, self.vertex.count)
    }
}

fn form_of(name: &str, lines: &CloudLines<'_>) -> Read<PlyForm> {
    match name {
        "ascii" => Ok(PlyForm::Text),
        "binary_little_endian" => Ok(PlyForm::Bytes { big: false }),
        "binary_big_endian" => Ok(PlyForm::Bytes { big: true }),
        _ => Err(lines.flaw(format!("format {name}"))),
    }
}

fn property(words: &[&str]) -> Option<Property> {
    let (kind, list, name) = match *words {
        ["list", length, kind, name] => (kind, Some(kind_of(length)?), name),
        [kind, name] => (kind, None, name),
        _ => return None,
    };
    Some(Property { name: name.to_string(), kind: kind_of(kind)?, list })
}

fn kind_of(name: &str) -> Option<ColumnType> {
    Some(match name {
        "char" | "int8" => ColumnType::I8,
        "uchar" | "uint8" => ColumnType::U8,
        "short" | "int16" => ColumnType::I16,
        "ushort" | "uint16" => ColumnType::U16,
        "int" | "int32" => ColumnType::I32,
        "uint" | "uint32" => ColumnType::U32,
        "float" | "float32" => ColumnType::F32,
        "double" | "float64" => ColumnType::F64,
        _ => return None,
    })
}

fn order(vertex: &Element) -> Option<Vec<usize>> {
    let plain = |name: &str| {
        vertex
            .properties
            .iter()
            .position(|property| property.name == name && property.list.is_none())
    };
    let mut order = vec![plain("x")?, plain("y")?, plain("z")?];
    let others = (0..vertex.properties.len()).filter(|index| {
        !order.contains(index) && vertex.properties.get(*index).is_some_and(|p| p.list.is_none())
    });
    let others: Vec<usize> = others.collect();
    order.extend(others);
    Some(order)
}

/// Bytes of one, where it has no list.
fn row_size(element: &Element) -> Option<usize> {
    let sizes = element.properties.iter().map(|p| p.list.is_none().then_some(p.kind.size()));
    sizes.sum()
}

/// The numbers of a line, one for each property, lists being 0.
fn text_row(element: &Element, line: &str, row: &mut Vec<f32>) -> Result<(), String> {
    row.clear();
    let mut words = line.split_ascii_whitespace();
    let mut next = |name: &str| words.next().ok_or_else(|| format!("{name} is missing"));
    for property in &element.properties {
        let word = next(&property.name)?;
        if property.list.is_none() {
            row.push(number(word).ok_or_else(|| format!("{} is {word:?}", property.name))?);
            continue;
        }
        let length: usize = word.parse().map_err(|_| format!("a list of {word:?} numbers"))?;
        for _ in 0..length {
            next(&property.name)?;
        }
        row.push(0.0);
    }
    match words.next() {
        Some(more) => Err(format!("{more:?} is one number too many")),
        None => Ok(()),
    }
}

/// Where the bytes of all of an element end.
fn skip(element: &Element, bytes: &[u8], at: usize, big: bool) -> Read<usize> {
    if let Some(row) = row_size(element) {
        let end = row.checked_mul(element.count).and_then(|size| size.checked_add(at));
        return end.filter(|end| *end <= bytes.len()).ok_or_else(|| short(bytes, element));
    }
    let mut at = at;
    for _ in 0..element.count {
        for property in &element.properties {
            at = past(property, bytes, at, big).ok_or_else(|| short(bytes, element))?;
        }
    }
    Ok(at)
}

/// The byte after one value or list.
fn past(property: &Property, bytes: &[u8], at: usize, big: bool) -> Option<usize> {
    let length = match property.list {
        None => return at.checked_add(property.kind.size()).filter(|end| *end <= bytes.len()),
        Some(length) => length,
    };
    let start = at.checked_add(length.size())?;
    let length = length.value(bytes.get(at..start)?, big)?;
    if !(length >= 0.0 && length <= bytes.len() as f64) {
        return None;
    }
    let end = start.checked_add((length as usize).checked_mul(property.kind.size())?)?;
    (end <= bytes.len()).then_some(end)
}

/// Vertices with lists in them, whose places are known only by going there.
fn walk(vertex: &Element, bytes: &[u8], at: usize, big: bool, order: &[usize]) -> Read<Vec<f32>> {
    let (mut at, mut floats, mut row) = (at, Vec::new(), Vec::new());
    for _ in 0..vertex.count {
        row.clear();
        for property in &vertex.properties {
            let end = past(property, bytes, at, big).ok_or_else(|| short(bytes, vertex))?;
            let value = bytes.get(at..end).filter(|_| property.list.is_none());
            row.push(value.and_then(|b| property.kind.value(b, big)).unwrap_or(0.0) as f32);
            at = end;
        }
        floats.extend(order.iter().filter_map(|&column| row.get(column)));
    }
    Ok(floats)
}

fn short(bytes: &[u8], element: &Element) -> Flaw {
    let why = format!("it ends inside its {} {} elements", element.count, element.name);
    Flaw::at(bytes.len(), why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::flaw::FlawPlace;

    fn read(bytes: &[u8]) -> Read<Vec<f32>> {
        Ok(PlyHeader::parse(bytes)?.read(bytes, true)?.remove(0))
    }

    const HEAD: &str = "ply\nformat FORM 1.0\ncomment by hand\nelement camera 1\nproperty list uchar int at\n\
        element vertex 2\nproperty float x\nproperty uchar red\nproperty double y\nproperty float z\nend_header\n";

    #[test]
    fn the_three_forms_say_the_same() {
        let text = HEAD.replace("FORM", "ascii") + "2 7 8\n1 200 2 3\n4 100 5 -6e0\n";
        let want = [1.0, 2.0, 3.0, 200.0, 4.0, 5.0, -6.0, 100.0];
        assert_eq!(read(text.as_bytes()).unwrap(), want);
        for big in [false, true] {
            let order = if big { "binary_big_endian" } else { "binary_little_endian" };
            let mut bytes = HEAD.replace("FORM", order).into_bytes();
            let four = |v: f32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
            let eight = |v: f64| if big { v.to_be_bytes() } else { v.to_le_bytes() };
            bytes.push(1);
            bytes.extend([0; 4]);
            for (x, red, y, z) in [(1.0, 200, 2.0, 3.0), (4.0, 100, 5.0, -6.0)] {
                bytes.extend(four(x));
                bytes.push(red);
                bytes.extend(eight(y));
                bytes.extend(four(z));
            }
            assert_eq!(read(&bytes).unwrap(), want, "{order}");
            let end = bytes.len() - 1;
            assert_eq!(read(&bytes[..end]).unwrap_err().place, FlawPlace::Byte(end as u64));
        }
    }

    #[test]
    fn flaws_name_the_line() {
        let head = "ply\nformat ascii 1.0\nelement vertex 2\nproperty float x\nproperty float y\nproperty float z\nend_header\n";
        for (text, line) in [
            ("plz\n".to_string(), 1),
            ("ply\nformat utf-8 1.0\n".to_string(), 2),
            ("ply\nformat ascii 1.0\nelement vertex many\n".to_string(), 3),
            ("ply\nformat ascii 1.0\nproperty float x\n".to_string(), 3),
            (head.replace("float y", "float w"), 7),
            (head.to_string() + "1 2 3\n1 two 3\n", 9),
            (head.to_string() + "1 2 3\n1 2\n", 9),
            (head.to_string() + "1 2 3 4\n", 8),
            (head.to_string() + "1 2 3\n", 8),
            ("ply\nformat ascii 1.0\n".to_string(), 2),
        ] {
            let flaw = read(text.as_bytes()).unwrap_err();
            assert_eq!(flaw.place, FlawPlace::Line(line), "{text}: {flaw}");
        }
    }

    #[test]
    fn lists_inside_a_vertex_are_walked() {
        let mut bytes = b"ply\nformat binary_little_endian 1.0\nelement vertex 2\nproperty list uchar uchar near\nproperty float x\nproperty float y\nproperty float z\nend_header\n".to_vec();
        for near in [&[9u8, 9][..], &[]] {
            bytes.push(near.len() as u8);
            bytes.extend(near);
            bytes.extend([1.0f32, 2.0, 3.0].iter().flat_map(|v| v.to_le_bytes()));
        }
        assert_eq!(read(&bytes).unwrap(), [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
        assert!(read(&bytes[..bytes.len() - 1]).is_err());
    }
}
