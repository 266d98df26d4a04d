//! Recorded traces, where the folder that keeps them is beside the workspace. What its
//! README says of each is held against what is read.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Instant;

use flate2::read::GzDecoder;
use plimsoll_models::trace::Trace;

/// The rows of the README's first table: name, events, and peak live bytes where it states them.
fn promised(readme: &str) -> Vec<(String, usize, Option<u64>)> {
    let number = |cell: &str| cell.replace(',', "").parse::<u64>().ok();
    readme
        .lines()
        .filter_map(|line| {
            let cells: Vec<_> = line.split('|').map(str::trim).collect();
            let [_, name, _, events, peak, _] = cells[..] else { return None };
            Some((name.to_string(), number(events)? as usize, number(peak)))
        })
        .collect()
}

fn unpacked(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(path)?).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn recorded_traces_are_what_their_table_says() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let Ok(readme) = std::fs::read_to_string(folder.join("README.md")) else {
        println!("skipped: no recorded traces beside the workspace");
        return;
    };
    let promised = promised(&readme);
    let mut seen = 0;
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let file = path.file_name().unwrap().to_string_lossy().into_owned();
        let Some(name) = file.strip_suffix(".csv.gz") else { continue };
        let bytes = unpacked(&path).unwrap();
        let start = Instant::now();
        let trace = Trace::parse(&bytes).unwrap();
        let rate = bytes.len() as f64 / start.elapsed().as_secs_f64() / 1e6;
        println!("{name}: {} events, {rate:.0} MB/s", trace.events().len());
        let (_, events, peak) = promised.iter().find(|(row, ..)| row == name).unwrap();
        assert_eq!(trace.events().len(), *events, "{name}");
        if let Some(peak) = peak {
            assert_eq!(trace.peak_live().get(), *peak, "{name}");
        }
        let again = Trace::parse(trace.to_csv().as_bytes()).unwrap();
        assert!(again.events() == trace.events(), "{name}: its csv is another trace");
        seen += 1;
    }
    assert_eq!(seen, promised.len());
}
