//! `plimsoll cost`: what an item costs, which GPU is cheaper, how much memory is enough.
//!
//! The arithmetic is in `rule`; the verb reads a throughput from flags or from a record of
//! `plimsoll voxelize --json` or `plimsoll bench`, and says which it was.

mod answer;
mod rule;
mod table;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context;
use plimsoll::Bytes;
use plimsoll::backend::DeviceId;
use plimsoll::current::free_memory_on;
use plimsoll::files::read_bounded;
use plimsoll_points::{
    VoxelizationShape, estimate_voxelization_memory, suggest_voxelization_chunking,
};
use serde_json::Value;

use answer::{CostAnswer, CostMemory, CostPlan, CostSide};
use rule::{BreakEven, CostMachine};

use crate::outcome::{BadInput, OrBadInput, Outcome};
use crate::output::Output;

/// A record larger than this is none of ours.
const LARGEST_RECORD: u64 = 64 << 20;

const EXAMPLES: &str = "\
Examples:
  plimsoll cost --throughput 12000 --price 15000 --lifetime 3 --power 400 --electricity 0.15
  plimsoll cost --record voxelize.json --price 15000 --utilisation 0.6
  plimsoll cost --throughput 12000 --price 15000 --power 400 --electricity 0.15 \\
    --other-throughput 11400 --other-price 10000 --other-power 300
  plimsoll cost --batch 64 --points 100000 --grid 128,128,128    the smallest memory
  plimsoll cost --batch 64 --grid 128,128,128 --device cuda:0    into what a GPU has now
  plimsoll cost --table                                          sizes and an example";

/// Say what an item costs on a GPU, when another is cheaper, and how much memory is enough
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Items a second while it works
    #[arg(long, value_name = "N", value_parser = above_zero)]
    throughput: Option<f64>,
    /// Where to read that: the JSON of voxelize, or the report.json of bench
    #[arg(long, value_name = "FILE", conflicts_with = "throughput")]
    record: Option<PathBuf>,
    /// What the GPU costs, in any currency
    #[arg(long, value_name = "N", value_parser = at_least_zero)]
    price: Option<f64>,
    /// Years that it is used
    #[arg(long, value_name = "YEARS", default_value_t = 3.0, value_parser = above_zero)]
    lifetime: f64,
    /// Watts while it works
    #[arg(long, value_name = "WATTS", value_parser = at_least_zero, requires = "electricity")]
    power: Option<f64>,
    /// The price of a kilowatt-hour
    #[arg(long, value_name = "N", value_parser = at_least_zero)]
    electricity: Option<f64>,
    /// The share of the time that it works, above 0 and at most 1
    #[arg(long, alias = "utilization", value_name = "SHARE", default_value_t = 1.0, value_parser = share)]
    utilisation: f64,
    /// Items a second of a second GPU, to compare with
    #[arg(long, value_name = "N", value_parser = above_zero, requires = "price")]
    other_throughput: Option<f64>,
    /// Where to read that
    #[arg(long, value_name = "FILE", conflicts_with = "other_throughput", requires = "price")]
    other_record: Option<PathBuf>,
    /// What the second costs
    #[arg(long, value_name = "N", value_parser = at_least_zero)]
    other_price: Option<f64>,
    /// Watts of the second while it works
    #[arg(long, value_name = "WATTS", value_parser = at_least_zero, requires = "electricity")]
    other_power: Option<f64>,
    /// Clouds at a time, for the smallest memory that holds them
    #[arg(long, value_name = "N", requires = "grid", value_parser = clap::value_parser!(u64).range(1..))]
    batch: Option<u64>,
    /// Points of a cloud
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    points: u64,
    /// Voxels along depth, height and width
    #[arg(long, value_name = "D,H,W", requires = "batch")]
    grid: Option<CostGrid>,
    /// Numbers of a point beside its coordinates
    #[arg(long, value_name = "N", default_value_t = 0)]
    features: u64,
    /// A device to plan for: how many clouds at a time fit into what it has now
    #[arg(long, value_name = "NAME", requires = "batch")]
    device: Option<DeviceId>,
    /// Show tables of sizes and an example
    #[arg(long)]
    table: bool,
}

/// Works it out.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let first = machine(args)?;
    let second = other(args)?;
    let memory = memory(args)?;
    if first.is_none() && memory.is_none() && !args.table {
        let what = "nothing to work out: give --throughput (or --record) and --price, or --batch \
                    and --grid, or --table";
        return Err(BadInput::new(what).into());
    }
    let break_even = match (&first, &second) {
        (Some(first), Some(second)) => {
            check_alike(&first.machine, &second.machine)?;
            Some(BreakEven::between(&first.machine, &second.machine))
        }
        _ => None,
    };
    let tables = args.table.then(table::CostTables::new);
    let fits = memory.as_ref().and_then(|memory| memory.plan.as_ref()).is_none_or(|plan| plan.fits);
    out.answer(&CostAnswer { first, second, break_even, memory, tables })?;
    Ok(Outcome::from(fits))
}

/// Electricity of one and not of the other would make the other look cheaper than it is.
fn check_alike(first: &CostMachine, second: &CostMachine) -> anyhow::Result<()> {
    let missing = match (first.power_watts, second.power_watts) {
        (Some(_), None) => "--other-power",
        (None, Some(_)) => "--power",
        _ => return Ok(()),
    };
    let what = format!("electricity would be counted for one of the two: give {missing}, too");
    Err(BadInput::new(what).into())
}

fn machine(args: &Args) -> anyhow::Result<Option<CostSide>> {
    let throughput = throughput(args.throughput, args.record.as_deref())?;
    match (throughput, args.price) {
        (Some((throughput, source)), Some(price)) => {
            Ok(Some(side(args, throughput, source, price, args.power)))
        }
        (None, None) => Ok(None),
        (Some(_), None) => Err(BadInput::new("a throughput without --price").into()),
        (None, Some(_)) => {
            Err(BadInput::new("a price without a throughput: give --throughput or --record").into())
        }
    }
}

fn other(args: &Args) -> anyhow::Result<Option<CostSide>> {
    let throughput = throughput(args.other_throughput, args.other_record.as_deref())?;
    match (throughput, args.other_price) {
        (Some((throughput, source)), Some(price)) => {
            Ok(Some(side(args, throughput, source, price, args.other_power)))
        }
        (None, None) => Ok(None),
        _ => {
            let what =
                "the second GPU needs --other-price and --other-throughput (or --other-record)";
            Err(BadInput::new(what).into())
        }
    }
}

fn side(args: &Args, throughput: f64, source: String, price: f64, power: Option<f64>) -> CostSide {
    let machine = CostMachine {
        throughput_per_second: throughput,
        price,
        lifetime_years: args.lifetime,
        power_watts: power,
        electricity_per_kwh: args.electricity,
        utilisation: args.utilisation,
    };
    CostSide { machine, throughput_source: source, cost: machine.cost() }
}

fn throughput(given: Option<f64>, record: Option<&Path>) -> anyhow::Result<Option<(f64, String)>> {
    let Some(path) = record else {
        return Ok(given.map(|given| (given, "given".to_string())));
    };
    // Another program's answer may come through a pipe.
    let text = File::open(path).and_then(|file| read_bounded(file, 0, LARGEST_RECORD));
    let text = text.or_bad_input(|| format!("cannot read {}", path.display()))?;
    let value: Value =
        serde_json::from_slice(&text).or_bad_input(|| format!("{} is not JSON", path.display()))?;
    let (items, what) = measured(&value).ok_or_else(|| {
        BadInput::new(format!(
            "{} has no throughput: neither the JSON of voxelize nor a report.json of bench",
            path.display()
        ))
    })?;
    Ok(Some((items, format!("recorded: {what} of {}", path.display()))))
}

/// Clouds a second of a voxelize record, or the frames a second of all slots of a bench report:
/// slots that ran at once add up, those that took turns made all frames in all of the time.
fn measured(record: &Value) -> Option<(f64, &'static str)> {
    let positive = |value: f64| (value.is_finite() && value > 0.0).then_some(value);
    if let Some(clouds) = record.get("clouds_per_second").and_then(Value::as_f64) {
        return Some((positive(clouds)?, "clouds a second"));
    }
    let models = record.get("models")?.as_array()?;
    let sum = |name: &str| -> f64 {
        let of = |model: &Value| model.get("performance")?.get(name)?.as_f64();
        models.iter().filter_map(of).sum()
    };
    if record.get("config")?.get("parallel")?.as_bool()? {
        return Some((positive(sum("fps"))?, "frames a second, slots at once,"));
    }
    Some((positive(sum("frames") / sum("wall_s"))?, "frames a second, slots in turn,"))
}

fn memory(args: &Args) -> anyhow::Result<Option<CostMemory>> {
    let Some((batch, grid)) = args.batch.zip(args.grid) else { return Ok(None) };
    let shape = VoxelizationShape::new(batch, args.points, grid.0).with_features(args.features);
    let estimate = estimate_voxelization_memory(&shape);
    let required: Bytes = estimate.total();
    if required == Bytes(u64::MAX) {
        let text = "the batch needs 2^64 bytes or more: --batch, --points, --features or --grid is too large";
        return Err(BadInput::new(text).into());
    }
    let plan = args.device.map(|device| plan(&shape, device)).transpose()?;
    Ok(Some(CostMemory {
        batch,
        points_bytes: estimate.points.get(),
        output_bytes: estimate.output.get(),
        workspace_bytes: estimate.workspace.get(),
        required_bytes: required.get(),
        smallest_bytes: rule::smallest(required).get(),
        sold_gb: rule::sold(required),
        plan,
    }))
}

/// How many clouds at a time fit into what a device has now.
fn plan(shape: &VoxelizationShape, device: DeviceId) -> anyhow::Result<CostPlan> {
    let free = free_memory_on(device).with_context(|| {
        format!("what {device} has now is not known; leave --device out for the sizes alone")
    })?;
    let (config, text) = match suggest_voxelization_chunking(shape, free.available) {
        Ok(config) => (Some(config), config.to_string()),
        Err(error @ plimsoll::Error::NeverFits { .. }) => (None, error.to_string()),
        Err(error) => return Err(error.into()),
    };
    Ok(CostPlan {
        device: device.to_string(),
        available_bytes: free.available.get(),
        available_source: free.how,
        fits: config.is_some(),
        num_chunks: config.map(|config| config.num_chunks),
        chunk_size: config.map(|config| config.chunk_size),
        last_chunk_size: config.map(|config| config.last_chunk_size),
        text,
    })
}

/// Prices, powers and throughputs beyond these are typing errors, and their products would overflow.
const LEAST: f64 = 1e-12;
const MOST: f64 = 1e15;

fn above_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (LEAST..=MOST).contains(&number) => Ok(number),
        Ok(number) if number > 0.0 => {
            Err(format!("it must be a number from {LEAST:e} to {MOST:e}"))
        }
        _ => Err("it must be a number above 0".to_string()),
    }
}

fn at_least_zero(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number == 0.0 || (LEAST..=MOST).contains(&number) => Ok(number),
        Ok(number) if number > 0.0 => Err(format!("it must be 0, or from {LEAST:e} to {MOST:e}")),
        _ => Err("it must be a number of at least 0".to_string()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("it must be a number above 0 and at most 1, such as 0.6".to_string()),
    }
}

/// Cells along an axis, as a grid may have.
const MOST_CELLS: u64 = 1 << 23;

/// Three extents with commas between them.
#[derive(Debug, Clone, Copy)]
struct CostGrid([u64; 3]);

impl FromStr for CostGrid {
    type Err = String;

    fn from_str(text: &str) -> Result<CostGrid, String> {
        let numbers: Option<Vec<u64>> =
            text.split(',').map(|number| number.trim().parse().ok().filter(|n| *n > 0)).collect();
        let three: Option<[u64; 3]> = numbers.and_then(|numbers| numbers.try_into().ok());
        let three = three.filter(|extents| extents.iter().all(|extent| *extent <= MOST_CELLS));
        let wrong = || format!("it must be three numbers from 1 to {MOST_CELLS}: D,H,W");
        three.map(CostGrid).ok_or_else(wrong)
    }
}
