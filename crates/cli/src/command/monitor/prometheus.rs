//! A record as Prometheus reads it: base units, a help line and a type for each name.

use std::fmt::Write;

use super::record::{
    MOST_WRITTEN, MonitorCost, MonitorProcess, MonitorRecord, MonitorRun, MonitorTimeLeft,
};
use super::summary::MonitorSummary;

/// A family of metrics: name, help, and a value for each set of labels.
struct Family {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    values: Vec<(Vec<(&'static str, String)>, f64)>,
}

type Labels = Vec<(&'static str, String)>;

fn gauge(name: &'static str, help: &'static str, value: Option<f64>) -> Family {
    let values = value.into_iter().map(|value| (Labels::new(), value)).collect();
    Family { name, help, kind: "gauge", values }
}

fn labelled(
    name: &'static str,
    help: &'static str,
    values: impl Iterator<Item = (Labels, Option<f64>)>,
) -> Family {
    let values = values.filter_map(|(labels, value)| Some((labels, value?))).collect();
    Family { name, help, kind: "gauge", values }
}

/// The whole text.
pub(super) fn text(record: &MonitorRecord, summary: &MonitorSummary) -> String {
    let mut out = String::new();
    let families =
        [system(record), processors(record), gpus(record), sensors(record), processes(record)];
    for family in families.into_iter().flatten().chain(counters(summary)).chain(cost(record)) {
        write(&mut out, &family);
    }
    out
}

fn bytes(value: Option<u64>) -> Option<f64> {
    value.map(|bytes| bytes as f64)
}

fn system(record: &MonitorRecord) -> Vec<Family> {
    let memory = &record.memory;
    let left = record
        .time_left
        .iter()
        .map(|left: &MonitorTimeLeft| (vec![("memory", left.memory.clone())], Some(left.seconds)));
    vec![
        gauge("plimsoll_memory_size_bytes", "System memory.", bytes(memory.total_bytes)),
        gauge(
            "plimsoll_memory_used_bytes",
            "System memory that is not available without swapping.",
            bytes(record.system().map(|pool| pool.used)),
        ),
        gauge(
            "plimsoll_memory_available_bytes",
            "System memory that is available without swapping.",
            bytes(memory.available_bytes),
        ),
        gauge(
            "plimsoll_memory_free_bytes",
            "System memory that is unused, page cache not counted.",
            bytes(memory.free_bytes),
        ),
        gauge(
            "plimsoll_memory_gpu_share_bytes",
            "Unified memory that the GPU, codecs and cameras use; part of the used memory.",
            bytes(memory.gpu_share_bytes),
        ),
        gauge(
            "plimsoll_memory_largest_free_block_bytes",
            "The largest free piece of system memory.",
            bytes(memory.largest_free_bytes),
        ),
        gauge(
            "plimsoll_memory_limit_bytes",
            "What use of system memory is compared with.",
            bytes(memory.limit_bytes),
        ),
        gauge("plimsoll_swap_size_bytes", "Swap.", bytes(record.swap.total_bytes)),
        gauge("plimsoll_swap_used_bytes", "Swap in use.", bytes(record.swap.used_bytes)),
        labelled(
            "plimsoll_memory_time_left_seconds",
            "When the memory that runs out first does so at the present growth.",
            left,
        ),
    ]
}

fn processors(record: &MonitorRecord) -> Vec<Family> {
    let cores = || record.cpu.cores.iter().enumerate();
    let core = |at: usize| vec![("core", at.to_string())];
    vec![
        gauge(
            "plimsoll_cpu_utilization_ratio",
            "Load of all processors.",
            ratio(record.cpu.percent),
        ),
        labelled(
            "plimsoll_cpu_core_utilization_ratio",
            "Load of a processor that is on.",
            cores().map(|(at, one)| (core(at), ratio(one.percent))),
        ),
        labelled(
            "plimsoll_cpu_core_frequency_hertz",
            "Clock of a processor that is on.",
            cores().map(|(at, one)| (core(at), one.mhz.map(|mhz| mhz * 1e6))),
        ),
    ]
}

fn ratio(percent: Option<f64>) -> Option<f64> {
    percent.map(|percent| percent / 100.0)
}

fn gpus(record: &MonitorRecord) -> Vec<Family> {
    let each = |value: fn(&super::record::MonitorGpu) -> Option<f64>| {
        record.gpus.iter().enumerate().map(move |(at, gpu)| {
            let name = gpu.name.clone().unwrap_or_default();
            (vec![("gpu", at.to_string()), ("name", name)], value(gpu))
        })
    };
    vec![
        labelled(
            "plimsoll_gpu_memory_size_bytes",
            "Memory of a GPU's own.",
            each(|gpu| bytes(gpu.total_bytes)),
        ),
        labelled(
            "plimsoll_gpu_memory_used_bytes",
            "Memory that a GPU uses; part of the system's where memory is unified.",
            each(|gpu| bytes(gpu.used_bytes)),
        ),
        labelled(
            "plimsoll_gpu_memory_limit_bytes",
            "What use of a GPU's own memory is compared with.",
            each(|gpu| bytes(gpu.limit_bytes)),
        ),
        labelled(
            "plimsoll_gpu_utilization_ratio",
            "Load of a GPU.",
            each(|gpu| ratio(gpu.percent)),
        ),
        labelled(
            "plimsoll_gpu_frequency_hertz",
            "Clock of a GPU.",
            each(|gpu| gpu.mhz.map(|mhz| mhz * 1e6)),
        ),
        labelled(
            "plimsoll_gpu_memory_frequency_hertz",
            "Clock of a GPU's memory.",
            each(|gpu| gpu.memory_mhz.map(|mhz| mhz * 1e6)),
        ),
        labelled("plimsoll_gpu_power_watts", "Power of a GPU.", each(|gpu| gpu.power_w)),
        labelled(
            "plimsoll_gpu_power_limit_watts",
            "The power limit of a GPU.",
            each(|gpu| gpu.power_limit_w),
        ),
        labelled(
            "plimsoll_gpu_temperature_celsius",
            "Temperature of a GPU.",
            each(|gpu| gpu.temperature_c),
        ),
        labelled(
            "plimsoll_gpu_throttled",
            "Whether a GPU's clocks are throttled.",
            each(|gpu| gpu.throttled_by.as_ref().map(|by| f64::from(u8::from(!by.is_empty())))),
        ),
    ]
}

fn sensors(record: &MonitorRecord) -> Vec<Family> {
    let named = |label: &'static str, name: &String| vec![(label, name.clone())];
    vec![
        labelled(
            "plimsoll_temperature_celsius",
            "Temperature by sensor.",
            record.temperatures_c.iter().map(|(name, t)| (named("sensor", name), *t)),
        ),
        labelled(
            "plimsoll_power_watts",
            "Power by rail.",
            record.power_w.iter().map(|(name, watts)| (named("rail", name), *watts)),
        ),
        gauge("plimsoll_board_power_watts", "Power of the whole board.", record.total_power_w),
        labelled(
            "plimsoll_engine_utilization_ratio",
            "Load of an engine beside the GPU.",
            record.engines.iter().map(|(name, one)| (named("engine", name), ratio(one.percent))),
        ),
        labelled(
            "plimsoll_fan_drive_ratio",
            "How far a fan is driven.",
            record.fans.iter().map(|(name, fan)| (named("fan", name), ratio(fan.percent))),
        ),
    ]
}

fn processes(record: &MonitorRecord) -> Vec<Family> {
    let labels = |process: &MonitorProcess| {
        let name = process.name.clone().unwrap_or_default();
        vec![("pid", process.pid.to_string()), ("name", name)]
    };
    let listed = &record.processes[..record.processes.len().min(MOST_WRITTEN)];
    let held = listed.iter().map(|process| {
        let gpu = process.gpu.map(|gpu| ("gpu", gpu.to_string()));
        (labels(process).into_iter().chain(gpu).collect(), bytes(process.gpu_bytes))
    });
    // One that uses several GPUs stands there once for each, and is resident once.
    let first = |at: usize, pid: u32| !listed[..at].iter().any(|p| p.pid == pid);
    let each = listed.iter().enumerate().filter(|(at, p)| first(*at, p.pid));
    let resident = each.map(|(_, process)| (labels(process), bytes(process.resident_bytes)));
    let run = |value: fn(&MonitorRun) -> Option<u64>| {
        record.runs.iter().map(move |run| {
            let labels = vec![("run", run.pid.to_string()), ("gpu", run.gpu.to_string())];
            (labels, bytes(value(run)))
        })
    };
    vec![
        labelled(
            "plimsoll_run_gpu_memory_used_bytes",
            "GPU memory that the guard has counted for a run.",
            run(|run| Some(run.used_bytes)),
        ),
        labelled(
            "plimsoll_run_gpu_memory_limit_bytes",
            "The limit of a run that the guard holds.",
            run(|run| run.limit_bytes),
        ),
        labelled("plimsoll_process_gpu_memory_bytes", "GPU memory that a process uses.", held),
        labelled(
            "plimsoll_process_resident_memory_bytes",
            "System memory that a process has resident.",
            resident,
        ),
    ]
}

fn counters(summary: &MonitorSummary) -> [Family; 2] {
    let counter = |name, help, value: u64| Family {
        name,
        help,
        kind: "counter",
        values: vec![(Labels::new(), value as f64)],
    };
    [
        counter("plimsoll_samples_total", "Samples since the start.", summary.samples),
        counter("plimsoll_alerts_total", "Alerts since the start.", summary.alerts),
    ]
}

/// What the watching itself costs. The kernel counts from a program's start, and a program
/// that was started again begins anew, as Prometheus expects of a counter.
fn cost(record: &MonitorRecord) -> [Family; 2] {
    let each = |value: fn(&MonitorCost) -> Option<f64>| {
        let program = |one: &MonitorCost| vec![("program", one.program.clone())];
        record.cost.iter().map(move |one| (program(one), value(one)))
    };
    let time = labelled(
        "plimsoll_monitor_cpu_seconds_total",
        "Processor time of this program and of those that it runs to see.",
        each(|one| Some(one.cpu_s)),
    );
    let memory = labelled(
        "plimsoll_monitor_resident_memory_bytes",
        "Memory of this program and of those that it runs to see.",
        each(|one| bytes(one.resident_bytes)),
    );
    [Family { kind: "counter", ..time }, memory]
}

fn write(out: &mut String, family: &Family) {
    let Family { name, help, kind, values } = family;
    if values.is_empty() {
        return;
    }
    // Writing to a string cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in values {
        let labels: Vec<String> =
            labels.iter().map(|(label, text)| format!("{label}=\"{}\"", escaped(text))).collect();
        let labels =
            if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(out, "{name}{labels} {value}");
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::monitor::record::MonitorGpu;

    #[test]
    fn names_have_help_and_what_is_not_known_is_left_out() {
        let gpu = MonitorGpu {
            name: Some("a \"b\"\\".to_string()),
            percent: Some(50.0),
            ..MonitorGpu::default()
        };
        let record =
            MonitorRecord { gpus: vec![gpu], total_power_w: Some(4.5), ..MonitorRecord::default() };
        let text = text(&record, &MonitorSummary::default());
        assert!(text.contains("# TYPE plimsoll_gpu_utilization_ratio gauge\n"), "{text}");
        let line = "plimsoll_gpu_utilization_ratio{gpu=\"0\",name=\"a \\\"b\\\"\\\\\"} 0.5\n";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("plimsoll_board_power_watts 4.5\n"), "{text}");
        assert!(!text.contains("plimsoll_memory_used_bytes"), "{text}");
    }
}
