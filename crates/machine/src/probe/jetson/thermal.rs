//! Temperatures, and what holds clocks down because of them or of too much current.

use crate::machine::Machine;
use crate::probe::open_file::OpenFile;
use crate::probe::sample::{MachineSample, Temperature};

/// What a zone shows when its part of the chip is switched off.
const OFF: i64 = -256_000;

pub(super) struct JetsonThermal {
    zones: Vec<(String, OpenFile)>,
    /// What can be slowed down to cool, and how far it is: 0 is not at all.
    coolers: Vec<(String, OpenFile)>,
    /// How often the current was too high, by event, and the last count.
    overcurrent: Vec<(String, OpenFile, i64)>,
}

/// The temperature zones of a machine, by the names that `tegrastats` prints.
pub(in crate::probe) fn zones(machine: &Machine) -> Vec<(String, OpenFile)> {
    let zones = of(machine, "thermal_zone", "temp");
    zones.into_iter().map(|(name, held)| (plain(&name), held)).collect()
}

/// What they show now.
pub(in crate::probe) fn temperatures(zones: &[(String, OpenFile)]) -> Vec<Temperature> {
    let celsius = |held: &OpenFile| held.number().filter(|t| *t != OFF).map(|t| t as f64 / 1000.0);
    zones
        .iter()
        .map(|(name, held)| Temperature { name: name.clone(), celsius: celsius(held) })
        .collect()
}

/// Everything of a kind: its type, and the file with its value.
fn of(machine: &Machine, kind: &str, value: &str) -> Vec<(String, OpenFile)> {
    let folder = format!("/sys/class/thermal/{kind}");
    let paths = machine.list("/sys/class/thermal").into_iter();
    let one = |path: String| {
        let name = machine.read(&format!("{path}/type"))?;
        Some((name, OpenFile::open(machine, &format!("{path}/{value}"))?))
    };
    paths.filter(|path| path.starts_with(&folder)).filter_map(one).collect()
}

impl JetsonThermal {
    pub(super) fn open(machine: &Machine) -> JetsonThermal {
        let coolers = of(machine, "cooling_device", "cur_state");
        JetsonThermal {
            zones: zones(machine),
            coolers: coolers.into_iter().filter(|(name, _)| !name.contains("fan")).collect(),
            overcurrent: overcurrent(machine),
        }
    }

    pub(super) fn read(&mut self, sample: &mut MachineSample) {
        sample.temperatures = temperatures(&self.zones);
        if self.coolers.is_empty() && self.overcurrent.is_empty() {
            return;
        }
        let slowed = self.coolers.iter().filter(|(_, held)| held.number().is_some_and(|n| n > 0));
        let mut reasons: Vec<String> = slowed.map(|(name, _)| name.clone()).collect();
        for (name, held, last) in &mut self.overcurrent {
            let now = held.number().unwrap_or(*last);
            if now > *last {
                reasons.push(format!("over-current {name}"));
            }
            *last = now;
        }
        sample.throttled_by = Some(reasons);
    }
}

fn overcurrent(machine: &Machine) -> Vec<(String, OpenFile, i64)> {
    let chips = machine.list("/sys/class/hwmon").into_iter();
    let chips = chips
        .filter(|path| machine.read(&format!("{path}/name")).is_some_and(|n| n == "soctherm_oc"));
    let counters = chips.flat_map(|path| machine.list(&path)).filter_map(|path| {
        let name = path.rsplit('/').next()?.strip_suffix("_event_cnt")?.to_string();
        let held = OpenFile::open(machine, &path)?;
        let count = held.number()?;
        Some((name, held, count))
    });
    counters.collect()
}

/// The names that `tegrastats` prints for the same zones.
fn plain(zone: &str) -> String {
    if zone == "thermal-fan-est" {
        return "thermal".to_string();
    }
    let ends = ["-thermal", "_thermal", "-therm", "_therm", "-Die"];
    ends.iter().find_map(|end| zone.strip_suffix(end)).unwrap_or(zone).to_string()
}
