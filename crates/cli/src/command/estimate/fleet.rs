//! One model against a table of boards and GPUs: what people ask first.
//!
//! The table is a data file of facts: memory as boards are sold, and as the driver or kernel
//! shows it where that is on record. What is shown counts where it is known. Where the GPU uses the system's memory,
//! it is less what `plimsoll run` would leave free, but for Apple's, of which the table has the GPU's part.

use plimsoll::Bytes;
use plimsoll_guard::launch::KEEP_FREE;
use plimsoll_models::terms::Terms;
use serde::Serialize;

use super::answer::FitVerdict;

const TABLE: &str = include_str!("../../../data/fleet.tsv");

/// A board or GPU and whether the model fits there.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Board {
    pub(super) name: String,
    pub(super) unified: bool,
    pub(super) memory_bytes: u64,
    /// Whether the memory is what a driver or kernel showed, or what it is sold with.
    pub(super) memory_how: &'static str,
    /// What is left free of it for the system.
    pub(super) system_bytes: u64,
    pub(super) verdict: FitVerdict,
}

/// All boards, the smallest first.
pub(super) fn against(terms: &Terms) -> anyhow::Result<Vec<Board>> {
    let mut boards = boards(TABLE)?
        .into_iter()
        .map(|BoardRow { name, unified, memory, how, system }| Board {
            name,
            unified,
            memory_bytes: memory.get(),
            memory_how: how,
            system_bytes: system.get(),
            verdict: FitVerdict::of_terms(terms, memory.saturating_sub(system), None),
        })
        .collect::<Vec<_>>();
    boards.sort_by_key(|board| board.memory_bytes);
    Ok(boards)
}

struct BoardRow {
    name: String,
    unified: bool,
    memory: Bytes,
    how: &'static str,
    system: Bytes,
}

fn boards(table: &str) -> anyhow::Result<Vec<BoardRow>> {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    lines
        .map(|line| row(line).ok_or_else(|| anyhow::anyhow!("the table of boards: {line}")))
        .collect()
}

fn row(line: &str) -> Option<BoardRow> {
    let mut columns = line.split('\t');
    let (name, kind) = (columns.next()?, columns.next()?);
    let sold: u64 = columns.next()?.trim().parse().ok()?;
    let shown = columns.next().map(str::trim).filter(|text| !text.is_empty());
    let (memory, how) = match shown {
        Some(text) => (Bytes::mib(text.parse().ok()?), "shown"),
        None => (Bytes::gib(sold), "sold"),
    };
    let (unified, system) = match kind {
        "unified" => (true, Bytes(KEEP_FREE)),
        "share" => (true, Bytes::ZERO),
        "discrete" => (false, Bytes::ZERO),
        _ => return None,
    };
    Some(BoardRow { name: name.to_string(), unified, memory, how, system })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_table_is_a_fact() -> anyhow::Result<()> {
        let rows = boards(TABLE)?;
        assert!(rows.len() > 30);
        for BoardRow { name, memory, .. } in &rows {
            assert!(*memory >= Bytes::gib(3) && *memory <= Bytes::gib(512), "{name}: {memory}");
            assert_eq!(rows.iter().filter(|row| row.name == *name).count(), 1, "{name} twice");
        }
        let left = |name: &str| {
            let row = rows.iter().find(|row| row.name == name);
            row.map(|row| (row.memory.saturating_sub(row.system).get() >> 20, row.unified))
        };
        assert_eq!(left("Jetson Orin Nano 8GB"), Some((7607 - 512, true)));
        assert_eq!(left("Apple M1 8GB"), Some((5461, true)));
        assert!(boards("a\tboth\t8\t").is_err());
        assert!(boards("a\tunified\tmany\t").is_err());
        Ok(())
    }
}
