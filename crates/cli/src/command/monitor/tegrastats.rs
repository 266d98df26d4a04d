//! A tegrastats line as JSON, with the program's own names and units.

use plimsoll::probe::tegrastats::{ClockRate, EngineLoad, TegraLine};
use serde_json::{Map, Value, json};

/// Every field of the line; what it does not say is null.
pub(super) fn fields(line: &TegraLine<'_>) -> Value {
    let iram = line.iram.map(
        |iram| json!({"used_kb": iram.used_kb, "total_kb": iram.total_kb, "lfb_kb": iram.lfb_kb}),
    );
    let cpu = line.cpu.as_ref().map(|cores| {
        let core = |core: &plimsoll::probe::tegrastats::TegraCpu| {
            json!({"online": core.online, "util": core.util.map(plain), "mhz": core.mhz.map(plain)})
        };
        cores.iter().map(core).collect::<Vec<_>>()
    });
    let unit = |load: &Option<EngineLoad>| {
        load.as_ref().map(|load| json!({"util": load.util, "mhz": clock(&load.mhz)}))
    };
    let power = map(&line.power_mw, |power| {
        let (cur, avg, peak) = (plain(power.cur), power.avg.map(plain), power.peak.map(plain));
        json!({"cur": cur, "avg": avg, "peak": peak})
    });
    json!({
        "timestamp": line.timestamp,
        "ram_used_mb": line.ram_used_mb,
        "ram_total_mb": line.ram_total_mb,
        "lfb_blocks": line.lfb_blocks,
        "lfb_block_kb": line.lfb_block_kb,
        "swap_used_mb": line.swap_used_mb,
        "swap_total_mb": line.swap_total_mb,
        "swap_cached_mb": line.swap_cached_mb,
        "iram": iram,
        "cpu": cpu,
        "cpu_mean_online": line.cpu_mean_online().map(|mean| (mean * 1e4).round() / 1e4),
        "gpu": unit(&line.gpu),
        "gpu2": line.gpu2.as_ref().map(engine),
        "gpu_pci": line.gpu_pci.as_ref().map(engine),
        "emc": unit(&line.emc),
        "engines": map(&line.engines, engine),
        "mts": line.mts.map(|mts| json!({"fg": plain(mts.fg), "bg": plain(mts.bg)})),
        "temps_c": map(&line.temps_c, |celsius| json!(celsius)),
        "temps_peak_c": (!line.temps_peak_c.is_empty())
            .then(|| map(&line.temps_peak_c, |celsius| json!(celsius))),
        "power_mw": power,
        "total_power_mw": line.total_power_mw().map(plain),
    })
}

fn map<T>(list: &[(&str, T)], value: impl Fn(&T) -> Value) -> Value {
    let entries = list.iter().map(|(name, one)| (name.to_string(), value(one)));
    Value::Object(entries.collect::<Map<String, Value>>())
}

/// Whole numbers without a point, as the program prints them.
fn plain(number: f64) -> Value {
    if number.fract() == 0.0 && number.abs() < 1e15 { json!(number as i64) } else { json!(number) }
}

fn engine(load: &EngineLoad) -> Value {
    json!({"off": load.off, "util": load.util, "mhz": clock(&load.mhz)})
}

fn clock(clock: &ClockRate) -> Value {
    match clock {
        ClockRate::Unknown => Value::Null,
        ClockRate::One(mhz) => json!(mhz),
        ClockRate::Many(all) => json!(all),
    }
}
