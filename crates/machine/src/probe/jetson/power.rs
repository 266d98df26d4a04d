//! Power by rail, from the board's current sensors (INA3221).
//!
//! JetPack 5 and later show them as hwmon: volts and amperes of three channels a chip.
//! JetPack 4 shows milliwatts under iio. A channel that is not connected is called NC, and
//! channel 7 is the chip's own sum.

use crate::machine::Machine;
use crate::probe::open_file::OpenFile;
use crate::probe::rails::whole_board;
use crate::probe::sample::{MachineSample, Rail};

/// How the power of a rail is read, in milliwatts.
enum RailSource {
    Product { millivolts: OpenFile, milliamperes: OpenFile },
    Direct(OpenFile),
}

impl RailSource {
    fn milliwatts(&self) -> Option<f64> {
        match self {
            RailSource::Direct(power) => Some(power.number()? as f64),
            RailSource::Product { millivolts, milliamperes } => {
                Some(millivolts.number()? as f64 * milliamperes.number()? as f64 / 1000.0)
            }
        }
    }
}

pub(super) struct JetsonPower {
    rails: Vec<(String, RailSource)>,
}

impl JetsonPower {
    pub(super) fn open(machine: &Machine) -> JetsonPower {
        let chips = machine.list("/sys/class/hwmon").into_iter();
        let chips = chips.filter(|path| {
            machine.read(&format!("{path}/name")).is_some_and(|name| name.starts_with("ina3221"))
        });
        let mut rails: Vec<_> = chips.flat_map(|path| hwmon(machine, &path)).collect();
        if rails.is_empty() {
            rails = iio(machine);
        }
        rails.retain(|(name, _)| name != "NC" && !name.is_empty());
        JetsonPower { rails }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rails.is_empty()
    }

    pub(super) fn read(&self, sample: &mut MachineSample) {
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
fn hwmon(machine: &Machine, path: &str) -> Vec<(String, RailSource)> {
    let channel = |n: u32| {
        let name = machine.read(&format!("{path}/in{n}_label"))?;
        let millivolts = OpenFile::open(machine, &format!("{path}/in{n}_input"))?;
        let milliamperes = OpenFile::open(machine, &format!("{path}/curr{n}_input"))?;
        Some((name, RailSource::Product { millivolts, milliamperes }))
    };
    (1..=6).filter_map(channel).collect()
}

fn iio(machine: &Machine) -> Vec<(String, RailSource)> {
    let chips = machine.list("/sys/bus/i2c/drivers/ina3221x").into_iter();
    let devices = chips.flat_map(|chip| machine.list(&chip));
    let devices =
        devices.filter(|path| path.contains("/iio:device") || path.contains("/iio_device"));
    let rail = |device: &str, n: u32| {
        let name = machine.read(&format!("{device}/rail_name_{n}"))?;
        Some((
            name,
            RailSource::Direct(OpenFile::open(machine, &format!("{device}/in_power{n}_input"))?),
        ))
    };
    devices
        .flat_map(|device| (0..3).filter_map(move |n| rail(&device, n)).collect::<Vec<_>>())
        .collect()
}
