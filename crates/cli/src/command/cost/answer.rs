//! What `plimsoll cost` says.

use plimsoll::Bytes;
use serde::Serialize;

use super::rule::{BreakEven, CostFigures, CostMachine};
use super::table::{CostTables, megabytes};
use crate::output;
use crate::page::{SizeUnit, TextCell, TextPage, TextTone, or_unknown};

#[derive(Debug, Serialize)]
pub(super) struct CostAnswer {
    pub(super) first: Option<CostSide>,
    pub(super) second: Option<CostSide>,
    pub(super) break_even: Option<BreakEven>,
    pub(super) memory: Option<CostMemory>,
    pub(super) tables: Option<CostTables>,
}

#[derive(Debug, Serialize)]
pub(super) struct CostSide {
    #[serde(flatten)]
    pub(super) machine: CostMachine,
    /// `given`, or where it was read.
    pub(super) throughput_source: String,
    pub(super) cost: CostFigures,
}

#[derive(Debug, Serialize)]
pub(super) struct CostMemory {
    pub(super) batch: u64,
    pub(super) points_bytes: u64,
    pub(super) output_bytes: u64,
    pub(super) workspace_bytes: u64,
    pub(super) required_bytes: u64,
    /// Of which 70 % are what is required.
    pub(super) smallest_bytes: u64,
    /// The smallest that is sold, in GiB; null where none is large enough.
    pub(super) sold_gb: Option<u64>,
    /// How the batch is cut for a device; null where none was named.
    pub(super) plan: Option<CostPlan>,
}

/// A batch, cut to what a device has now.
#[derive(Debug, Serialize)]
pub(super) struct CostPlan {
    pub(super) device: String,
    pub(super) available_bytes: u64,
    pub(super) available_source: &'static str,
    /// Whether one cloud fits at least; where not, the three below are null.
    pub(super) fits: bool,
    pub(super) num_chunks: Option<u64>,
    pub(super) chunk_size: Option<u64>,
    pub(super) last_chunk_size: Option<u64>,
    /// The plan in words, or why there is none.
    pub(super) text: String,
}

impl output::Answer for CostAnswer {
    fn page(&self, page: &mut TextPage) {
        let sides = [("Cost", &self.first), ("Cost of the second", &self.second)];
        for (title, side) in sides {
            if let Some(side) = side {
                side.page(title, page);
            }
        }
        if let (Some(even), Some(first), Some(second)) =
            (&self.break_even, &self.first, &self.second)
        {
            even_page(even, &first.machine, &second.machine, page);
        }
        if let Some(memory) = &self.memory {
            memory.page(page);
        }
        if let Some(tables) = &self.tables {
            tables_page(tables, page);
        }
    }

    fn bare(&self, page: &mut TextPage) {
        for side in [&self.first, &self.second].into_iter().flatten() {
            let million = significant(side.cost.per_million_items);
            page.raw(&format!("{million} a million items\n"));
        }
        if let Some(memory) = &self.memory {
            page.raw(&format!("{}\n", Bytes(memory.smallest_bytes)));
        }
        if let Some(tables) = &self.tables {
            tables_page(tables, page);
        }
    }
}

fn row(name: &str, value: String, note: &str) -> Vec<TextCell> {
    vec![name.into(), TextCell::figure(Some(value)), TextCell::new(note, TextTone::Faint)]
}

impl CostSide {
    fn page(&self, title: &str, page: &mut TextPage) {
        let (machine, cost) = (&self.machine, &self.cost);
        page.heading(title);
        let share = format!("{} % of the time", (machine.utilisation * 1000.0).round() / 10.0);
        let life = format!("{} over {} years", machine.price, machine.lifetime_years);
        let electricity = cost.electricity_per_year.map(|cost| format!("{cost:.2}"));
        page.table(&[
            row(
                "throughput",
                format!("{} a second", plain(machine.throughput_per_second)),
                &self.throughput_source,
            ),
            row("items a day", format!("{:.0}", cost.items_per_day), &share),
            row("a million items", significant(cost.per_million_items), ""),
            row("a day", format!("{:.2}", cost.per_day), ""),
            row("a year", format!("{:.2}", cost.per_year), ""),
            row("of it the GPU", format!("{:.2}", cost.hardware_per_year), &life),
            row("of it electricity", or_unknown(electricity), ""),
        ]);
        if cost.electricity_per_year.is_none() {
            page.advice("Electricity is not counted: give --power and --electricity.");
        }
    }
}

fn even_page(even: &BreakEven, first: &CostMachine, second: &CostMachine, page: &mut TextPage) {
    page.heading("Break-even");
    let text = match (even.items, even.days) {
        (Some(items), Some(days)) => {
            let past = days > first.lifetime_years * 365.0;
            let note = if past { ", which is past its years" } else { "" };
            format!(
                "  both have cost the same after {items:.3e} items, {days:.0} days of the \
                 first{note}\n"
            )
        }
        _ if even.cheaper == "equal" && first.price == second.price => {
            "  both cost the same from the first item on\n".to_string()
        }
        _ => {
            "  no amount of work makes up for the difference: one is cheaper from the first item\n"
                .to_string()
        }
    };
    page.raw(&text);
    let cheaper = match even.cheaper {
        "equal" => "  over their lives an item costs the same on both\n".to_string(),
        which => format!("  over their lives an item costs less on the {which}\n"),
    };
    page.raw(&cheaper);
    page.raw(&format!(
        "  an item costs the same where the second makes {} a second\n",
        significant(even.throughput_of_the_second)
    ));
}

impl CostMemory {
    fn page(&self, page: &mut TextPage) {
        page.heading("Memory");
        let unit = SizeUnit::of([Some(self.smallest_bytes), Some(self.required_bytes)]);
        let size = |name: &str, bytes: u64, note: &str| row(name, unit.text(bytes), note);
        let sold = self.sold_gb.map_or_else(
            || "more than one card: work in chunks".to_string(),
            |size| format!("sold as {size} GB"),
        );
        page.table(&[
            size("points", self.points_bytes, ""),
            size("grids", self.output_bytes, ""),
            size("between", self.workspace_bytes, ""),
            size("a batch", self.required_bytes, "estimated"),
            size("smallest", self.smallest_bytes, &format!("of which 70 % are used; {sold}")),
        ]);
        if let Some(plan) = &self.plan {
            page.heading(&format!("On {}", plan.device));
            page.table(&[size("available", plan.available_bytes, plan.available_source)]);
            page.raw(&format!("  {}\n", plan.text));
        }
    }
}

/// Three tables that can be read without anything else; how they differ from the figures that this
/// project was first described with is for `--verbose`.
fn tables_page(tables: &CostTables, page: &mut TextPage) {
    page.heading("One grid: a float (4 bytes) for each voxel");
    let mut rows = vec![head(&["voxels a side", "voxels", "memory"])];
    rows.extend(tables.grids.iter().map(|grid| {
        figures(&grid.side.to_string(), &[thousands(grid.voxels), megabytes(grid.f32_bytes)])
    }));
    page.table(&rows);
    page.heading("A batch: clouds of 1,000,000 points, each into a grid of 512 x 512 x 512 floats");
    let unit = SizeUnit::of(tables.sizes.iter().map(|size| Some(size.smallest_bytes)));
    let mut rows = vec![head(&["clouds", "needs", "smallest memory", "sold as"])];
    rows.extend(tables.sizes.iter().map(|size| {
        figures(
            &size.batch.to_string(),
            &[
                unit.text(size.required_bytes),
                unit.text(size.smallest_bytes),
                or_unknown(size.sold_gb.map(|size| format!("{size} GB"))),
            ],
        )
    }));
    page.table(&rows);
    page.advice("The smallest memory leaves 30 % free: 70 % of it is what the batch needs.");
    page.heading("An example: a GPU that makes a billion clouds a day, used for three years");
    let mut rows = vec![head(&["GPU", "price", "clouds a day", "cost of a million"])];
    rows.extend(tables.example.iter().map(|example| {
        let clouds = format!("{:.2} billion", example.clouds_per_day / 1e9);
        figures(
            example.gpu,
            &[thousands(example.price as u64), clouds, significant(example.per_million_clouds)],
        )
    }));
    page.table(&rows);
    page.advice("The price is spread over three years; electricity is not counted. Prices are examples, in any currency: --price and --throughput have your own.");
    if page.is_verbose() {
        page.heading("How this differs from the documents that Plimsoll was first described in");
        for correction in tables.corrections {
            page.raw(&format!("  - {correction}\n"));
        }
    }
}

/// A number with commas.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn head(names: &[&str]) -> Vec<TextCell> {
    let mut cells: Vec<TextCell> = names.iter().map(|name| TextCell::figure(Some(name))).collect();
    if let (Some(first), Some(name)) = (cells.first_mut(), names.first()) {
        *first = TextCell::new(name, TextTone::Strong);
    }
    cells
}

fn figures(name: &str, values: &[String]) -> Vec<TextCell> {
    std::iter::once(name.into())
        .chain(values.iter().map(|value| TextCell::figure(Some(value))))
        .collect()
}

/// A number as it was given, or four figures where it is a measured one.
fn plain(value: f64) -> String {
    if value.fract() == 0.0 { value.to_string() } else { significant(value) }
}

/// Four figures that say something, however small the number.
fn significant(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    format!("{value:.digits$}")
}
