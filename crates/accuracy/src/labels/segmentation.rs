//! The field `segmentation` of a COCO annotation: polygons, counts as numbers, or counts as text.

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// As the file has it.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Segmentation {
    #[default]
    None,
    Polygons(Vec<Vec<f64>>),
    /// Rows, columns, and counts.
    Counts([u32; 2], Vec<u32>),
    /// Rows, columns, and the text of counts.
    Text([u32; 2], String),
}

impl<'de> Deserialize<'de> for Segmentation {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Segmentation, D::Error> {
        from.deserialize_any(SegmentationVisitor)
    }
}

struct SegmentationVisitor;

impl<'de> Visitor<'de> for SegmentationVisitor {
    type Value = Segmentation;

    fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("polygons, or an object with size and counts")
    }

    fn visit_unit<E: Error>(self) -> Result<Segmentation, E> {
        Ok(Segmentation::None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Segmentation, A::Error> {
        let mut polygons: Vec<Vec<f64>> = Vec::new();
        while let Some(polygon) = list.next_element()? {
            polygons.push(polygon);
        }
        Ok(if polygons.is_empty() { Segmentation::None } else { Segmentation::Polygons(polygons) })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Segmentation, A::Error> {
        let (mut size, mut counts) = (None, None);
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "size" => size = Some(map.next_value::<[u32; 2]>()?),
                "counts" => counts = Some(map.next_value::<CountsForm>()?),
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        match (size, counts) {
            (Some(size), Some(CountsForm::Numbers(counts))) => {
                Ok(Segmentation::Counts(size, counts))
            }
            (Some(size), Some(CountsForm::Text(text))) => Ok(Segmentation::Text(size, text)),
            _ => Err(A::Error::custom("a mask needs size and counts")),
        }
    }
}

enum CountsForm {
    Numbers(Vec<u32>),
    Text(String),
}

impl<'de> Deserialize<'de> for CountsForm {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<CountsForm, D::Error> {
        from.deserialize_any(CountsFormVisitor)
    }
}

struct CountsFormVisitor;

impl<'de> Visitor<'de> for CountsFormVisitor {
    type Value = CountsForm;

    fn expecting(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("counts as numbers or as text")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<CountsForm, E> {
        Ok(CountsForm::Text(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<CountsForm, A::Error> {
        let mut counts = Vec::new();
        while let Some(count) = list.next_element()? {
            counts.push(count);
        }
        Ok(CountsForm::Numbers(counts))
    }
}
