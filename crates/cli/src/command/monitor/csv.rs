//! Records as comma-separated values: the figures that every machine may have, and a set of
//! columns for each GPU that the first record shows. What is not known is empty.

use plimsoll::text::one_line;

use super::record::MonitorRecord;

const FIRST: [&str; 15] = [
    "time",
    "t",
    "memory_total_bytes",
    "memory_used_bytes",
    "memory_available_bytes",
    "memory_free_bytes",
    "memory_gpu_share_bytes",
    "memory_largest_free_bytes",
    "swap_total_bytes",
    "swap_used_bytes",
    "cpu_percent",
    "power_w",
    "hottest_c",
    "time_left_s",
    "alerts",
];

const EACH_GPU: [&str; 6] =
    ["used_bytes", "total_bytes", "percent", "mhz", "power_w", "temperature_c"];

/// The header, for records with this many GPUs.
pub(super) fn header(gpus: usize) -> String {
    let each = (0..gpus).flat_map(|at| EACH_GPU.map(|name| format!("gpu{at}_{name}")));
    FIRST.iter().map(ToString::to_string).chain(each).collect::<Vec<_>>().join(",")
}

/// A record, with columns for this many GPUs.
pub(super) fn row(record: &MonitorRecord, gpus: usize) -> String {
    let memory = &record.memory;
    let mut cells = vec![
        quoted(record.time.as_deref().unwrap_or_default()),
        text(record.t),
        text(memory.total_bytes),
        text(memory.used_bytes),
        text(memory.available_bytes),
        text(memory.free_bytes),
        text(memory.gpu_share_bytes),
        text(memory.largest_free_bytes),
        text(record.swap.total_bytes),
        text(record.swap.used_bytes),
        text(record.cpu.percent),
        text(record.total_power_w),
        text(record.hottest().map(|(_, celsius)| celsius)),
        text(record.time_left.as_ref().map(|left| left.seconds)),
        quoted(&record.alerts.join("; ")),
    ];
    for at in 0..gpus {
        let gpu = record.gpus.get(at);
        cells.extend([
            text(gpu.and_then(|gpu| gpu.used_bytes)),
            text(gpu.and_then(|gpu| gpu.total_bytes)),
            text(gpu.and_then(|gpu| gpu.percent)),
            text(gpu.and_then(|gpu| gpu.mhz)),
            text(gpu.and_then(|gpu| gpu.power_w)),
            text(gpu.and_then(|gpu| gpu.temperature_c)),
        ]);
    }
    cells.join(",")
}

fn text(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}

/// Quoted where it must be; a log may contain anything.
fn quoted(text: &str) -> String {
    let text = one_line(text);
    match text.contains([',', '"']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::monitor::record::MonitorGpu;

    #[test]
    fn rows_have_the_columns_of_the_header() {
        let record = MonitorRecord {
            time: Some("a,\"b\"".to_string()),
            t: Some(1.5),
            gpus: vec![MonitorGpu { used_bytes: Some(7), ..MonitorGpu::default() }],
            ..MonitorRecord::default()
        };
        for gpus in 0..3 {
            let columns = header(gpus).split(',').count();
            let row = row(&MonitorRecord { time: None, ..record.clone() }, gpus);
            assert_eq!(row.split(',').count(), columns, "{row}");
        }
        assert!(row(&record, 1).starts_with("\"a,\"\"b\"\"\",1.5,,"), "{}", row(&record, 1));
        assert!(row(&record, 1).ends_with(",7,,,,,"), "{}", row(&record, 1));
    }
}
