//! Fans, by the files of the kernel's sensors.
//!
//! A driver of a fan tells how far it drives it (`pwm1`, up to 255), how fast it turns
//! (`fan1_input`), or both; on a Jetson one driver tells the first and another the second.

use super::open_file::OpenFile;
use super::sample::FanSample;
use crate::machine::Machine;

/// A driver that has the fan of a GPU: its own probe tells it.
const OF_GPUS: [&str; 2] = ["amdgpu", "nouveau"];
/// A controller has this many at most.
const MOST_FANS: u32 = 8;

struct Fan {
    name: String,
    driven: Option<OpenFile>,
    turns: Option<OpenFile>,
}

/// The fans of a machine.
pub(super) struct Fans(Vec<Fan>);

/// Percent of what a fan can be driven with.
pub(super) fn fan_percent(pwm: i64) -> f64 {
    (pwm as f64 / 255.0 * 100.0).clamp(0.0, 100.0)
}

impl Fans {
    pub(super) fn open(machine: &Machine) -> Fans {
        let mut fans: Vec<Fan> = Vec::new();
        for path in machine.list("/sys/class/hwmon") {
            let Some(name) = machine.read(&format!("{path}/name")) else { continue };
            if OF_GPUS.contains(&name.as_str()) {
                continue;
            }
            let file = |name: &str| OpenFile::open(machine, &format!("{path}/{name}"));
            for at in 1..=MOST_FANS {
                let driven = file(&format!("pwm{at}"));
                let turns =
                    file(&format!("fan{at}_input")).or_else(|| file("rpm").filter(|_| at == 1));
                if driven.is_some() || turns.is_some() {
                    let number = if at == 1 { String::new() } else { format!(" {at}") };
                    fans.push(Fan { name: format!("{name}{number}"), driven, turns });
                }
            }
        }
        // JetPack 4.
        if let Some(driven) = OpenFile::open(machine, "/sys/devices/pwm-fan/cur_pwm") {
            let turns = OpenFile::open(machine, "/sys/devices/pwm-fan/rpm_measured");
            fans.push(Fan { name: "pwm-fan".to_string(), driven: Some(driven), turns });
        }
        Fans(joined(fans))
    }

    pub(super) fn read(&self) -> Vec<FanSample> {
        let number = |file: &Option<OpenFile>| file.as_ref()?.number();
        let one = |fan: &Fan| FanSample {
            name: fan.name.clone(),
            percent: number(&fan.driven).map(fan_percent),
            rpm: number(&fan.turns).map(|rpm| rpm as f64),
        };
        self.0.iter().map(one).collect()
    }
}

/// A Jetson's driver of its only fan, and the one that counts its turns, are one fan.
fn joined(mut fans: Vec<Fan>) -> Vec<Fan> {
    let counter = fans.iter().position(|fan| fan.name.contains("tach") && fan.driven.is_none());
    let driver = fans.iter().position(|fan| fan.name == "pwmfan" && fan.turns.is_none());
    if let (Some(counter), Some(driver)) = (counter, driver) {
        fans[driver].turns = fans[counter].turns.take();
        fans.remove(counter);
    }
    fans
}
