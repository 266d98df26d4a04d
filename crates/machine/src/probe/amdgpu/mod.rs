//! The files of AMD's driver.
//!
//! A card's own memory is VRAM. An APU's is a slice that the firmware cut from the
//! system's memory, plus what the driver maps beside it (GTT): both are the system's, so
//! they count as its share and not as a memory of their own. Which process holds what is
//! told beside each file that it has open (`clients`).

mod clients;

use std::time::Duration;

use super::Probe;
use super::fans::fan_percent;
use super::open_file::OpenFile;
use super::sample::{GpuSample, MachineSample};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::units::Bytes;
use clients::{ClientGpu, Clients};

const VENDOR: &str = "0x1002";

struct Card {
    name: Option<String>,
    apu: bool,
    vram_total: Option<OpenFile>,
    vram_used: Option<OpenFile>,
    gtt_used: Option<OpenFile>,
    busy: Option<OpenFile>,
    /// In Hz.
    clock: Option<OpenFile>,
    memory_clock: Option<OpenFile>,
    /// In microwatts.
    power: Option<OpenFile>,
    power_cap: Option<OpenFile>,
    /// In thousandths of a degree.
    heat: Option<OpenFile>,
    /// Up to 255.
    fan: Option<OpenFile>,
}

/// The probe.
pub(super) struct Amdgpu {
    cards: Vec<Card>,
    places: Vec<ClientGpu>,
    clients: Clients,
}

impl Amdgpu {
    pub(super) fn open(machine: &Machine, processes: Option<Duration>) -> Result<Amdgpu> {
        let cards = machine.list("/sys/class/drm").into_iter();
        let cards = cards.filter(|path| {
            let name = path.rsplit('/').next().unwrap_or_default();
            name.strip_prefix("card").is_some_and(|n| n.parse::<u32>().is_ok())
        });
        let found = cards.filter_map(|path| Some((card(machine, &path)?, bus(machine, &path))));
        let (cards, places): (Vec<Card>, Vec<Option<String>>) = found.unzip();
        if cards.is_empty() {
            return Err(Error::Unavailable {
                what: "an AMD GPU".to_string(),
                why: format!(
                    "no /sys/class/drm/card*/device has vendor {VENDOR} and the driver's \
                              mem_info files"
                ),
            });
        }
        let places = places.into_iter().zip(&cards);
        let places = places.map(|(bus, card)| ClientGpu { bus, unified: card.apu }).collect();
        Ok(Amdgpu { cards, places, clients: Clients::new(machine, processes) })
    }
}

/// Its place on the PCI bus.
fn bus(machine: &Machine, path: &str) -> Option<String> {
    let text = machine.read(&format!("{path}/device/uevent"))?;
    text.lines().find_map(|line| line.strip_prefix("PCI_SLOT_NAME=")).map(String::from)
}

fn card(machine: &Machine, path: &str) -> Option<Card> {
    let device = format!("{path}/device");
    let file = |name: &str| OpenFile::open(machine, &format!("{device}/{name}"));
    if machine.read(&format!("{device}/vendor"))? != VENDOR {
        return None;
    }
    let vram_total = file("mem_info_vram_total")?;
    let sensors = machine.list(&format!("{device}/hwmon")).into_iter().next();
    let sensor = |name: &str| OpenFile::open(machine, &format!("{}/{name}", sensors.as_ref()?));
    let label = sensors.as_ref().and_then(|path| machine.read(&format!("{path}/in1_label")));
    let text = |name: &str| machine.read(&format!("{device}/{name}")).filter(|t| !t.is_empty());
    Some(Card {
        name: text("product_name").or_else(|| Some(format!("AMD GPU {}", text("device")?))),
        // Only an APU has the voltage of a northbridge to tell.
        apu: label.is_some_and(|label| label == "vddnb"),
        vram_total: Some(vram_total),
        vram_used: file("mem_info_vram_used"),
        gtt_used: file("mem_info_gtt_used"),
        busy: file("gpu_busy_percent"),
        clock: sensor("freq1_input"),
        memory_clock: sensor("freq2_input"),
        power: sensor("power1_average").or_else(|| sensor("power1_input")),
        power_cap: sensor("power1_cap"),
        heat: sensor("temp1_input"),
        fan: sensor("pwm1"),
    })
}

impl Card {
    fn look(&self) -> GpuSample {
        let number = |held: &Option<OpenFile>| held.as_ref()?.number();
        let scaled = |held: &Option<OpenFile>, scale: f64| number(held).map(|n| n as f64 / scale);
        let bytes = |held: &Option<OpenFile>| u64::try_from(number(held)?).ok().map(Bytes);
        let vram = bytes(&self.vram_used);
        let shared = || Some(vram?.saturating_add(bytes(&self.gtt_used)?));
        GpuSample {
            name: self.name.clone(),
            unified: self.apu,
            used: if self.apu { shared() } else { vram },
            total: bytes(&self.vram_total).filter(|_| !self.apu),
            percent: scaled(&self.busy, 1.0),
            mhz: scaled(&self.clock, 1e6),
            memory_mhz: scaled(&self.memory_clock, 1e6),
            power_w: scaled(&self.power, 1e6),
            power_limit_w: scaled(&self.power_cap, 1e6),
            celsius: scaled(&self.heat, 1e3),
            fan_percent: number(&self.fan).map(fan_percent),
            ..GpuSample::default()
        }
    }
}

impl Probe for Amdgpu {
    fn read(&mut self, sample: &mut MachineSample) -> Result<()> {
        sample.gpus.extend(self.cards.iter().map(Card::look));
        sample.processes.extend(self.clients.look(&self.places));
        Ok(())
    }
}
