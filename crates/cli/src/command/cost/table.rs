//! The documents' tables, from the rule, beside what they say.
//!
//! The first is right but for its last figure. The second follows from no size of an item: 16,
//! 24, 40 and 80 GB for 8, 32, 64 and more are 2 GB, 0.75 GB and 0.63 GB an item. The third
//! divides a whole price by one day's output, as if a GPU were thrown away every evening, and
//! what it saves a year follows from neither reckoning.

use plimsoll::Bytes;
use plimsoll_points::{VoxelizationShape, estimate_voxelization_memory};
use serde::Serialize;

use super::rule::{smallest, sold};

/// The documents' tables, corrected.
#[derive(Debug, Serialize)]
pub(super) struct CostTables {
    pub(super) grids: Vec<GridRow>,
    pub(super) sizes: Vec<SizeRow>,
    pub(super) example: Vec<ExampleRow>,
    pub(super) corrections: [&'static str; 4],
}

#[derive(Debug, Serialize)]
pub(super) struct GridRow {
    pub(super) side: u64,
    pub(super) voxels: u64,
    pub(super) f32_bytes: u64,
    /// As the documents print it.
    pub(super) documents: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct SizeRow {
    pub(super) batch: u64,
    pub(super) required_bytes: u64,
    pub(super) smallest_bytes: u64,
    /// In GiB, as boards are sold; null where none is large enough.
    pub(super) sold_gb: Option<u64>,
    pub(super) documents: &'static str,
}

#[derive(Debug, Serialize)]
pub(super) struct ExampleRow {
    pub(super) gpu: &'static str,
    pub(super) price: f64,
    pub(super) clouds_per_day: f64,
    /// Over three years, electricity not counted.
    pub(super) per_million_clouds: f64,
    pub(super) documents_per_million_clouds: f64,
}

pub(super) const CORRECTIONS: [&str; 4] = [
    "512³ floats are 537 MB; the documents print 536",
    "the documents' sizes follow from no item size (2 GB, 0.75 GB and 0.63 GB an item); these \
     are for 1,000,000 points into 512³ floats, with 70 % of the memory used",
    "the documents divide a GPU's whole price by one day's output; over three years an item \
     costs a thousandth of that (1,095 days), and the smaller GPU is 30 % cheaper, not 27 %",
    "the documents' saving of 1,460 a year would be 1,460,000 on their own figures; over three \
     years the same clouds cost 1,491 a year less on the smaller GPU",
];

impl CostTables {
    pub(super) fn new() -> CostTables {
        CostTables { grids: grids(), sizes: sizes(), example: example(), corrections: CORRECTIONS }
    }
}

fn grids() -> Vec<GridRow> {
    let row = |(side, documents): (u64, &'static str)| {
        let voxels = side * side * side;
        GridRow { side, voxels, f32_bytes: voxels * 4, documents }
    };
    [(64, "1.0 MB"), (128, "8.4 MB"), (256, "67 MB"), (512, "536 MB")].map(row).into()
}

fn sizes() -> Vec<SizeRow> {
    let row = |(batch, documents): (u64, &'static str)| {
        let shape = VoxelizationShape::new(batch, 1_000_000, [512; 3]);
        let required = estimate_voxelization_memory(&shape).total();
        SizeRow {
            batch,
            required_bytes: required.get(),
            smallest_bytes: smallest(required).get(),
            sold_gb: sold(required),
            documents,
        }
    };
    [(8, "16 to 24 GB"), (32, "24 to 40 GB"), (64, "40 to 80 GB"), (128, "80 GB or several")]
        .map(row)
        .into()
}

fn example() -> Vec<ExampleRow> {
    let row = |(gpu, price, clouds_per_day, documents): (&'static str, f64, f64, f64)| ExampleRow {
        gpu,
        price,
        clouds_per_day,
        per_million_clouds: price / (clouds_per_day * 365.0 * 3.0) * 1e6,
        documents_per_million_clouds: documents,
    };
    [("80 GB", 15_000.0, 1e9, 15.0), ("40 GB, chunked", 10_000.0, 0.95e9, 11.0)].map(row).into()
}

/// Decimal megabytes, as the documents count.
pub(super) fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", Bytes(bytes).get() as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_are_the_rules_and_the_corrections_true() {
        let tables = CostTables::new();
        assert_eq!(tables.grids[3].f32_bytes, 536_870_912);
        assert_eq!(megabytes(tables.grids[3].f32_bytes), "536.9 MB");
        let sold: Vec<_> = tables.sizes.iter().map(|row| row.sold_gb).collect();
        assert_eq!(sold, [Some(8), Some(32), Some(64), Some(128)]);
        let [large, small] = &tables.example[..] else { unreachable!() };
        assert!((large.per_million_clouds - 15.0 / 1095.0).abs() < 1e-12);
        let cheaper = 1.0 - small.per_million_clouds / large.per_million_clouds;
        assert!((cheaper - 0.298).abs() < 0.001, "{cheaper}");
        let millions = 1000.0 * 365.0;
        let saved = (large.per_million_clouds - small.per_million_clouds) * millions;
        assert_eq!(saved.round(), 1491.0);
        let theirs = large.documents_per_million_clouds - small.documents_per_million_clouds;
        assert_eq!(theirs * millions, 1_460_000.0);
    }
}
