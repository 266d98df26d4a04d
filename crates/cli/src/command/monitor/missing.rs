//! What a record does not tell, in words: a reader must not take an empty place for a zero.

use super::record::MonitorRecord;

/// What is missing: what can be done something about first, each with what to do, then the rest in
/// one sentence.
pub(super) fn missing(record: &MonitorRecord) -> Vec<String> {
    let recorded = record.how == "recorded";
    let mut sentences = Vec::new();
    let mut rest = Vec::new();
    if !record.late.is_empty() {
        let late = record.late.join(", ");
        sentences.push(format!("{late} did not answer in time: try a longer --interval"));
    }
    match record.gpus.is_empty() {
        true if record.awaits_gpu() => {}
        true if recorded => rest.push("a GPU".to_string()),
        true => sentences.push("no GPU found: plimsoll doctor".to_string()),
        false => of_gpus(record, recorded, &mut sentences, &mut rest),
    }
    if record.processes.is_empty() {
        rest.push("processes".to_string());
    }
    if record.cpu.percent.is_none() && record.cpu.cores.is_empty() {
        rest.push("processors".to_string());
    }
    let power = record.total_power_w.is_some() || record.power_w.values().any(Option::is_some);
    if !power && record.gpus.iter().all(|gpu| gpu.power_w.is_none()) {
        rest.push("power".to_string());
    }
    let heat = record.hottest().is_some();
    if !heat && record.gpus.iter().all(|gpu| gpu.temperature_c.is_none()) {
        rest.push("temperatures".to_string());
    }
    if !rest.is_empty() {
        let where_not = match recorded {
            true => "not recorded",
            false if !record.late.is_empty() => "not in this sample",
            false => "not told by this machine",
        };
        sentences.push(format!("{where_not}: {}", rest.join(", ")));
    }
    sentences
}

fn of_gpus(
    record: &MonitorRecord,
    recorded: bool,
    sentences: &mut Vec<String>,
    rest: &mut Vec<String>,
) {
    let unified = record.unified == Some(true);
    if unified && record.memory.gpu_share_bytes.is_none() {
        rest.push("the GPU's share of memory".to_string());
    }
    for (at, gpu) in record.gpus.iter().enumerate() {
        let name = if record.gpus.len() > 1 { format!("GPU{at}") } else { "GPU".to_string() };
        if !gpu.unified && record.own(at).is_none() {
            match recorded {
                true => rest.push(format!("{name} memory")),
                false => sentences.push(format!("{name} does not answer: plimsoll doctor")),
            }
        }
        if gpu.percent.is_none() {
            rest.push(format!("{name} load"));
        }
    }
    let by_process = record.processes.iter().any(|process| process.gpu_bytes.is_some());
    if !by_process && !record.processes.is_empty() {
        match unified && !recorded {
            true => sentences.push("GPU memory by process: run it as root".to_string()),
            false => rest.push("GPU memory by process".to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::monitor::record::{MonitorGpu, MonitorProcess};

    #[test]
    fn what_is_missing_is_said_with_what_to_do_first() {
        let bare = MonitorRecord { how: "sampled".to_string(), ..MonitorRecord::default() };
        let said = missing(&bare);
        assert_eq!(said[0], "no GPU found: plimsoll doctor");
        let rest = "not told by this machine: processes, processors, power, temperatures";
        assert_eq!(said[1..], [rest]);
        let mut log = MonitorRecord { how: "recorded".to_string(), ..bare };
        log.total_power_w = Some(1.0);
        log.temperatures_c = [("cpu".to_string(), Some(40.0))].into();
        log.cpu.percent = Some(1.0);
        assert_eq!(missing(&log), ["not recorded: a GPU, processes"]);
    }

    #[test]
    fn a_late_source_is_no_missing_one() {
        let late = |source: &str| {
            let (how, late) = ("sampled".to_string(), vec![source.to_string()]);
            missing(&MonitorRecord { how, late, ..MonitorRecord::default() })
        };
        let said = late("nvml");
        assert_eq!(said[0], "nvml did not answer in time: try a longer --interval");
        assert!(said[1].starts_with("not in this sample: processes"), "{said:?}");
        assert_eq!(late("proc")[1], "no GPU found: plimsoll doctor");
    }

    #[test]
    fn a_jetsons_user_learns_to_be_root() {
        let mut record = MonitorRecord { how: "sampled".to_string(), ..MonitorRecord::default() };
        record.unified = Some(true);
        record.memory.gpu_share_bytes = Some(1);
        record.gpus = vec![MonitorGpu { unified: true, ..MonitorGpu::default() }];
        record.processes = vec![MonitorProcess::default()];
        let said = missing(&record);
        assert_eq!(said[0], "GPU memory by process: run it as root");
        assert!(said[1].contains("GPU load"), "{said:?}");
        record.gpus = vec![MonitorGpu::default()];
        assert!(missing(&record).contains(&"GPU does not answer: plimsoll doctor".to_string()));
    }
}
