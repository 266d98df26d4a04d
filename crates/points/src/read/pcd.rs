//! `.pcd`: the clouds of PCL, as text, as records, or as compressed columns.

use super::FileShape;
use super::columns::{CloudColumn, ColumnType, gather, whole};
use super::flaw::{Flaw, Read};
use super::lines::{CloudLines, number};
use super::lzf;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PcdForm {
    Text,
    Bytes,
    Compressed,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PcdField {
    name: String,
    kind: ColumnType,
    count: usize,
}

/// What the header says.
#[derive(Debug)]
pub(crate) struct PcdHeader {
    form: PcdForm,
    fields: Vec<PcdField>,
    points: usize,
    /// Numbers of a record (field, which of its numbers) in the order of floats.
    order: Vec<(usize, usize)>,
    data: usize,
    lines: usize,
}

#[derive(Debug, Default)]
struct Said<'a> {
    names: Vec<&'a str>,
    sizes: Vec<usize>,
    types: Vec<&'a str>,
    counts: Vec<usize>,
    width: Option<usize>,
    height: Option<usize>,
    points: Option<usize>,
}

impl PcdHeader {
    /// Reads it; the points may be missing.
    pub(crate) fn parse(bytes: &[u8]) -> Read<PcdHeader> {
        let mut lines = CloudLines::new(bytes);
        let mut said = Said::default();
        let form = loop {
            let line = lines.next()?.ok_or_else(|| lines.flaw("it ends before DATA"))?;
            let mut words = line.split_whitespace();
            let Some(key) = words.next().filter(|key| !key.starts_with('#')) else { continue };
            let words: Vec<&str> = words.collect();
            let flaw = || lines.flaw(format!("cannot be read: {line}"));
            match key {
                "VERSION" | "VIEWPOINT" => {}
                "FIELDS" | "COLUMNS" => said.names = words,
                "TYPE" => said.types = words,
                "SIZE" => said.sizes = numbers(&words).ok_or_else(flaw)?,
                "COUNT" => said.counts = numbers(&words).ok_or_else(flaw)?,
                "WIDTH" => said.width = Some(single(&words).ok_or_else(flaw)?),
                "HEIGHT" => said.height = Some(single(&words).ok_or_else(flaw)?),
                "POINTS" => said.points = Some(single(&words).ok_or_else(flaw)?),
                "DATA" => {
                    break match words[..] {
                        ["ascii"] => PcdForm::Text,
                        ["binary"] => PcdForm::Bytes,
                        ["binary_compressed"] => PcdForm::Compressed,
                        _ => return Err(flaw()),
                    };
                }
                _ => return Err(lines.flaw(format!("unknown: {line}"))),
            }
        };
        let extent = said.width.map(|width| width.saturating_mul(said.height.unwrap_or(1)));
        if let (Some(points), Some(extent)) = (said.points, extent)
            && points != extent
        {
            let why = format!("POINTS {points}, where WIDTH and HEIGHT make {extent}");
            return Err(lines.flaw(why));
        }
        let points = said
            .points
            .or(extent)
            .ok_or_else(|| lines.flaw("neither POINTS nor WIDTH and HEIGHT"))?;
        let fields = said.fields().map_err(|why| lines.flaw(why))?;
        let order = order(&fields).ok_or_else(|| lines.flaw("no fields x, y and z"))?;
        Ok(PcdHeader { form, fields, points, order, data: lines.at, lines: lines.number })
    }

    /// Points and features.
    pub(crate) fn shape(&self) -> FileShape {
        let counts = vec![self.points as u64];
        FileShape { counts, features: self.order.len() - 3, stacked: false }
    }

    /// The floats, with the features or without.
    pub(crate) fn read(&self, bytes: &[u8], features: bool) -> Read<Vec<Vec<f32>>> {
        let order = if features { &self.order[..] } else { &self.order[..3] };
        Ok(vec![match self.form {
            PcdForm::Text => self.text(bytes, order)?,
            PcdForm::Bytes => {
                whole(bytes, self.data, self.row(), self.points)?;
                gather(bytes, &self.records(order), self.points)?
            }
            PcdForm::Compressed => self.compressed(bytes, order)?,
        }])
    }

    /// Bytes of all columns, where they are packed.
    pub(crate) fn unpacked_bytes(&self) -> u64 {
        match self.form {
            PcdForm::Compressed => (self.row() as u64).saturating_mul(self.points as u64),
            PcdForm::Text | PcdForm::Bytes => 0,
        }
    }

    fn row(&self) -> usize {
        // Counts and sizes were bounded when they were read.
        self.fields.iter().map(|field| field.kind.size() * field.count).sum()
    }

    fn offset(&self, field: usize) -> usize {
        self.fields.iter().take(field).map(|field| field.kind.size() * field.count).sum()
    }

    fn records(&self, order: &[(usize, usize)]) -> Vec<CloudColumn> {
        let column = |&(field, which): &(usize, usize)| {
            let kind = self.fields.get(field)?.kind;
            let start = self.data + self.offset(field) + which * kind.size();
            Some(CloudColumn { start, step: self.row(), kind, big: false })
        };
        order.iter().filter_map(column).collect()
    }

    fn compressed(&self, bytes: &[u8], order: &[(usize, usize)]) -> Read<Vec<f32>> {
        let word = |at: usize| {
            let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
            let short = || Flaw::at(bytes.len(), "it ends before the sizes of what is packed");
            four.map(u32::from_le_bytes).ok_or_else(short)
        };
        let (packed, length) = (word(self.data)? as usize, word(self.data + 4)? as usize);
        let wanted = self.row().checked_mul(self.points);
        if wanted != Some(length) {
            let why = format!("{length} bytes unpacked are not {} points", self.points);
            return Err(Flaw::at(self.data + 4, why));
        }
        let start = self.data + 8;
        let packed = start.checked_add(packed).and_then(|end| bytes.get(start..end));
        let packed =
            packed.ok_or_else(|| Flaw::at(bytes.len(), "it ends inside what is packed"))?;
        let unpacked = lzf::unpack(packed, length)
            .map_err(|at| Flaw::at(start + at, "what is packed cannot be unpacked from here"))?;
        let column = |&(field, which): &(usize, usize)| {
            let of = self.fields.get(field)?;
            let start = self.offset(field) * self.points + which * of.kind.size();
            Some(CloudColumn { start, step: of.kind.size() * of.count, kind: of.kind, big: false })
        };
        let columns: Vec<CloudColumn> = order.iter().filter_map(column).collect();
        gather(&unpacked, &columns, self.points)
    }

    fn text(&self, bytes: &[u8], order: &[(usize, usize)]) -> Read<Vec<f32>> {
        let before = |field: usize| self.fields.iter().take(field).map(|f| f.count).sum::<usize>();
        let places: Vec<usize> =
            order.iter().map(|&(field, which)| before(field) + which).collect();
        let width = before(self.fields.len());
        let mut lines = CloudLines::new(bytes);
        (lines.at, lines.number) = (self.data, self.lines);
        let (mut floats, mut words) = (Vec::new(), Vec::new());
        for _ in 0..self.points {
            let line = lines.next_full()?;
            let line = line.ok_or_else(|| lines.flaw("it ends before its last point"))?;
            words.clear();
            words.extend(line.split_ascii_whitespace());
            if words.len() != width {
                return Err(lines.flaw(format!("{} numbers and not {width}", words.len())));
            }
            for word in places.iter().filter_map(|&place| words.get(place)) {
                let value =
                    number(word).ok_or_else(|| lines.flaw(format!("{word:?} is no number")))?;
                floats.push(value);
            }
        }
        Ok(floats)
    }
}

impl Said<'_> {
    fn fields(&self) -> Result<Vec<PcdField>, String> {
        let length = self.names.len();
        let counts = if self.counts.is_empty() { vec![1; length] } else { self.counts.clone() };
        if [self.sizes.len(), self.types.len(), counts.len()] != [length; 3] {
            return Err("FIELDS, SIZE, TYPE and COUNT are not equally long".to_string());
        }
        (0..length)
            .map(|index| {
                let (name, size) = (self.names[index], self.sizes[index]);
                let kind = kind_of(self.types[index], size);
                let kind = kind.ok_or_else(|| format!("{name} is {}{size}", self.types[index]))?;
                let count = counts[index];
                if count > 65_536 {
                    return Err(format!("{name} has {count} numbers"));
                }
                Ok(PcdField { name: name.to_string(), kind, count })
            })
            .collect()
    }
}

fn numbers(words: &[&str]) -> Option<Vec<usize>> {
    words.iter().map(|word| word.parse().ok()).collect()
}

fn single(words: &[&str]) -> Option<usize> {
    match words {
        [word] => word.parse().ok(),
        _ => None,
    }
}

fn kind_of(name: &str, size: usize) -> Option<ColumnType> {
    Some(match (name, size) {
        ("I", 1) => ColumnType::I8,
        ("U", 1) => ColumnType::U8,
        ("I", 2) => ColumnType::I16,
        ("U", 2) => ColumnType::U16,
        ("I", 4) => ColumnType::I32,
        ("U", 4) => ColumnType::U32,
        ("I", 8) => ColumnType::I64,
        ("U", 8) => ColumnType::U64,
        ("F", 4) => ColumnType::F32,
        ("F", 8) => ColumnType::F64,
        _ => return None,
    })
}

/// x, y, z, then every other number in the order of the file; `_` is PCL's name for padding.
fn order(fields: &[PcdField]) -> Option<Vec<(usize, usize)>> {
    let find = |name: &str| fields.iter().position(|field| field.name == name && field.count == 1);
    let place = [find("x")?, find("y")?, find("z")?];
    let mut order: Vec<(usize, usize)> = place.iter().map(|&field| (field, 0)).collect();
    for (index, field) in fields.iter().enumerate() {
        if !place.contains(&index) && field.name != "_" {
            order.extend((0..field.count).map(|which| (index, which)));
        }
    }
    (order.len() <= 4096).then_some(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::read::flaw::FlawPlace;

    const HEAD: &str = "# .PCD v0.7\nVERSION 0.7\nFIELDS x y z ring\nSIZE 4 4 4 2\nTYPE F F F U\n\
        COUNT 1 1 1 1\nWIDTH 2\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS 2\nDATA ";

    fn read(bytes: &[u8]) -> Read<Vec<f32>> {
        Ok(PcdHeader::parse(bytes)?.read(bytes, true)?.remove(0))
    }

    fn columns() -> Vec<u8> {
        let mut bytes = Vec::new();
        for column in [[1.0f32, 4.0], [2.0, 5.0], [3.0, f32::NAN]] {
            bytes.extend(column.iter().flat_map(|v| v.to_le_bytes()));
        }
        bytes.extend([7u16, 900].iter().flat_map(|v| v.to_le_bytes()));
        bytes
    }

    fn check(floats: &[f32]) {
        assert_eq!(floats[..6], [1.0, 2.0, 3.0, 7.0, 4.0, 5.0]);
        assert!(floats[6].is_nan());
        assert_eq!(floats[7], 900.0);
    }

    #[test]
    fn the_three_forms_say_the_same() {
        check(&read(format!("{HEAD}ascii\n1 2 3 7\n4 5 nan 900\n").as_bytes()).unwrap());
        let mut bytes = format!("{HEAD}binary\n").into_bytes();
        for (x, y, z, ring) in [(1.0f32, 2.0f32, 3.0f32, 7u16), (4.0, 5.0, f32::NAN, 900)] {
            bytes.extend([x, y, z].iter().flat_map(|v| v.to_le_bytes()));
            bytes.extend(ring.to_le_bytes());
        }
        check(&read(&bytes).unwrap());
        assert_eq!(
            read(&bytes[..bytes.len() - 1]).unwrap_err().place,
            FlawPlace::Byte(bytes.len() as u64 - 1)
        );

        let (columns, mut bytes) = (columns(), format!("{HEAD}binary_compressed\n").into_bytes());
        bytes.extend((columns.len() as u32 + 1).to_le_bytes());
        bytes.extend((columns.len() as u32).to_le_bytes());
        bytes.push(columns.len() as u8 - 1);
        bytes.extend(columns);
        check(&read(&bytes).unwrap());
        assert!(read(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn flaws_name_the_line() {
        for (text, line) in [
            (format!("{HEAD}ascii\n1 2 3 7\n4 5\n"), 13),
            (format!("{HEAD}ascii\n1 2 3 7\n4 5 x 7\n"), 13),
            (format!("{HEAD}ascii\n1 2 3 7\n"), 12),
            (format!("{HEAD}zipped\n"), 11),
            (HEAD.replace("SIZE 4 4 4 2", "SIZE 4 4 4") + "ascii\n", 11),
            (HEAD.replace("SIZE 4 4 4 2", "SIZE 4 4 4 3") + "ascii\n", 11),
            (HEAD.replace("WIDTH 2", "WIDTH two") + "ascii\n", 7),
            (HEAD.replace("WIDTH 2", "WIDTH 3") + "ascii\n1 2 3 7\n4 5 6 7\n", 11),
            (HEAD.replace("FIELDS x", "FIELDS q") + "ascii\n", 11),
            ("nonsense\n".to_string(), 1),
            (String::new(), 1),
        ] {
            let flaw = read(text.as_bytes()).unwrap_err();
            assert_eq!(flaw.place, FlawPlace::Line(line), "{text}: {flaw}");
        }
    }
}
