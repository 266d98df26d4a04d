//! `plimsoll chunk`: how to cut N items so that each chunk fits.
//!
//! The plan is the library's ([`ChunkPlan`]); the verb adds where the figure for
//! "available" came from, because a plan is only as good as that. One item that can
//! never fit is the answer no, not an error: the input was understood.

use anyhow::Context;
use plimsoll::backend::DeviceId;
use plimsoll::current::free_memory_on;
use plimsoll::{Bytes, ChunkPlan, ChunkingConfig, Error, SAFETY_MARGIN};
use serde::Serialize;

use crate::outcome::Outcome;
use crate::output::{Answer, Output};
use crate::page::{SizeUnit, TextCell, TextPage, TextTone};

const EXAMPLES: &str = "\
Examples:
  plimsoll chunk --items 64 --item-bytes 134MiB --available 3GiB
  plimsoll chunk --items 1000 --item-bytes 64MiB --fixed-bytes 3GiB --available 8GiB
  plimsoll chunk --items 64 --item-bytes 9588608 --device cuda:0   into what a GPU has now
  plimsoll chunk --items 64 --item-bytes 9588608 --json            into what the host has now";

/// Plan how many items to process at a time so that each chunk fits
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Items in all
    #[arg(long, value_name = "N")]
    items: u64,
    /// What each item takes: inputs, outputs and what lives between
    #[arg(long, value_name = "SIZE")]
    item_bytes: Bytes,
    /// What a chunk takes whatever its size: a model, a table
    #[arg(long, value_name = "SIZE", default_value = "0")]
    fixed_bytes: Bytes,
    /// What there is; without it, what the device has now
    #[arg(long, value_name = "SIZE")]
    available: Option<Bytes>,
    /// The device to plan for: cpu, cuda:N, rocm:N, …
    #[arg(long, value_name = "NAME", default_value = "cpu", conflicts_with = "available")]
    device: DeviceId,
    /// The share of it to use, above 0 and at most 1
    #[arg(long, value_name = "SHARE", default_value_t = SAFETY_MARGIN, value_parser = share)]
    safety: f64,
}

fn share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if share > 0.0 && share <= 1.0 => Ok(share),
        _ => Err("it must be a number above 0 and at most 1, such as 0.7".to_string()),
    }
}

#[derive(Debug, Serialize)]
struct ChunkAnswer {
    items: u64,
    item_bytes: u64,
    fixed_bytes: u64,
    /// Null where what is available was given.
    device: Option<String>,
    available_bytes: u64,
    /// `given`, or where it was read.
    available_source: String,
    safety: f64,
    fits: bool,
    /// Null where not even one item fits, as are the three below.
    num_chunks: Option<u64>,
    chunk_size: Option<u64>,
    last_chunk_size: Option<u64>,
    memory_per_chunk_bytes: Option<u64>,
    /// The plan in words, or why there is none.
    text: String,
}

/// Makes the plan.
pub(crate) fn run(args: &Args, out: &mut Output) -> anyhow::Result<Outcome> {
    let (available, source) = available(args)?;
    let plan = ChunkPlan::new(args.items, args.item_bytes, available)
        .with_fixed(args.fixed_bytes)
        .with_safety(args.safety);
    let (config, text) = match plan.config() {
        Ok(config) => (Some(config), config.to_string()),
        Err(error @ Error::NeverFits { .. }) => (None, error.to_string()),
        Err(error) => return Err(error.into()),
    };
    out.answer(&answer(args, available, source, config, text))?;
    Ok(Outcome::from(config.is_some()))
}

fn available(args: &Args) -> anyhow::Result<(Bytes, String)> {
    if let Some(given) = args.available {
        return Ok((given, "given".to_string()));
    }
    let free = free_memory_on(args.device).with_context(|| {
        format!("what {} has now is not known; give --available SIZE", args.device)
    })?;
    Ok((free.available, free.how.to_string()))
}

fn answer(
    args: &Args,
    available: Bytes,
    source: String,
    config: Option<ChunkingConfig>,
    text: String,
) -> ChunkAnswer {
    ChunkAnswer {
        items: args.items,
        item_bytes: args.item_bytes.get(),
        fixed_bytes: args.fixed_bytes.get(),
        device: args.available.is_none().then(|| args.device.to_string()),
        available_bytes: available.get(),
        available_source: source,
        safety: args.safety,
        fits: config.is_some(),
        num_chunks: config.map(|c| c.num_chunks),
        chunk_size: config.map(|c| c.chunk_size),
        last_chunk_size: config.map(|c| c.last_chunk_size),
        memory_per_chunk_bytes: config.map(|c| c.memory_per_chunk.get()),
        text,
    }
}

impl Answer for ChunkAnswer {
    fn bare(&self, page: &mut TextPage) {
        page.raw(&format!("{}\n", self.text));
    }

    fn page(&self, page: &mut TextPage) {
        page.line(&self.text);
        let sizes = [self.item_bytes, self.fixed_bytes, self.available_bytes];
        let unit = SizeUnit::of(sizes.map(Some).into_iter().chain([self.memory_per_chunk_bytes]));
        let size = |name: &str, bytes: Option<u64>, note: &str| {
            vec![name.into(), unit.figure(bytes), TextCell::new(note, TextTone::Faint)]
        };
        let beside = if self.fixed_bytes > 0 { "whatever its size" } else { "" };
        let percent = format!("{} % of it is used", (self.safety * 1000.0).round() / 10.0);
        page.table(&[
            size("an item", Some(self.item_bytes), ""),
            size("beside them", Some(self.fixed_bytes), beside),
            size("a full chunk", self.memory_per_chunk_bytes, ""),
            size("available", Some(self.available_bytes), &self.available_source),
            size("to use", Some(Bytes(self.available_bytes).fraction(self.safety).get()), &percent),
        ]);
        if !self.fits {
            page.advice("Make an item smaller (tiles, fewer features), or give it more memory.");
        }
    }
}
