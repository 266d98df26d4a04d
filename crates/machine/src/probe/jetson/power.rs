//! Power by rail, from the board's current sensors (INA3221).
//!
//! JetPack 5 and later show them as hwmon: volts and amperes of three channels a chip.
//! JetPack 4 shows milliwatts under iio. A channel that is not connected is called NC, and
//! channel 7 is the chip's own sum.

use crate::machine::Machine;
use crate::probe::held::Held;
use crate::probe::rails::whole_board;
use crate::probe::sample::{Rail, Sample};

/// How the power of a rail is read, in milliwatts.
enum Source {
    Product { millivolts: Held, milliamperes: Held },
    Direct(Held),
}

impl Source {
    fn milliwatts(&self) -> Option<f64> {
        match self {
            Source::Direct(power) => Some(power.number()? as f64),
            Source::Product { millivolts, milliamperes } => {
                Some(millivolts.number()? as f64 * milliamperes.number()? as f64 / 1000.0)
            }
        }
    }
}

pub(super) struct Power {
    rails: Vec<(String, Source)>,
}

impl Power {
    pub(super) fn open(machine: &Machine) -> Power {
        let chips = machine.list("/sys/class/hwmon").into_iter();
        let chips = chips.filter(|path| {
            machine.read(&format!("{path}/name")).is_some_and(|name| name.starts_with("ina3221"))
        });
        let mut rails: Vec<_> = chips.flat_map(|path| hwmon(machine, &path)).collect();
        if rails.is_empty() {
            rails = iio(machine);
        }
        rails.retain(|(name, _)| name != "NC" && !name.is_empty());
        Power { rails }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rails.is_empty()
    }

    pub(super) fn read(&self, sample: &mut Sample) {
        sample.rails = self
            .rails
            .iter()
            .map(|(name, source)| Rail {
                name: name.clone(),
                watts: source.milliwatts().map(|milliwatts| milliwatts / 1000.0),
            })
            .collect();
        let rails = &sample.rails;
        let named = |name: &str| rails.iter().find(|rail| rail.name == name);
        sample.total_power_w = whole_board(|name| named(name)?.watts);
    }
}

/// The three channels of a chip.
fn hwmon(machine: &Machine, path: &str) -> Vec<(String, Source)> {
    let channel = |n: u32| {
        let name = machine.read(&format!("{path}/in{n}_label"))?;
        let millivolts = Held::open(machine, &format!("{path}/in{n}_input"))?;
        let milliamperes = Held::open(machine, &format!("{path}/curr{n}_input"))?;
        Some((name, Source::Product { millivolts, milliamperes }))
    };
    (1..=6).filter_map(channel).collect()
}

fn iio(machine: &Machine) -> Vec<(String, Source)> {
    let chips = machine.list("/sys/bus/i2c/drivers/ina3221x").into_iter();
    let devices = chips.flat_map(|chip| machine.list(&chip));
    let devices =
        devices.filter(|path| path.contains("/iio:device") || path.contains("/iio_device"));
    let rail = |device: &str, n: u32| {
        let name = machine.read(&format!("{device}/rail_name_{n}"))?;
        Some((name, Source::Direct(Held::open(machine, &format!("{device}/in_power{n}_input"))?)))
    };
    devices
        .flat_map(|device| (0..3).filter_map(move |n| rail(&device, n)).collect::<Vec<_>>())
        .collect()
}
