//! A line as a sample.

use super::{ClockRate, EngineLoad, TegraLine};
use crate::platform::MemInfo;
use crate::probe::sample::{CoreSample, EngineSample, GpuSample, MachineSample, Rail, Temperature};
use crate::units::Bytes;

impl ClockRate {
    /// One figure: the fastest where there are several.
    #[must_use]
    pub fn highest(&self) -> Option<f64> {
        match self {
            ClockRate::Unknown => None,
            ClockRate::One(mhz) => Some(*mhz),
            ClockRate::Many(all) => all.iter().copied().flatten().reduce(f64::max),
        }
    }
}

impl TegraLine<'_> {
    /// What the line says of the machine. Its MB are MiB. What it calls used leaves the
    /// page cache out, so the rest is what is available.
    #[must_use]
    pub fn to_sample(&self) -> MachineSample {
        let mib = |mb: Option<u64>| mb.map(|mb| Bytes(mb.saturating_mul(1 << 20)));
        let less = |total: Option<Bytes>, used| Some(total?.saturating_sub(mib(used)?));
        let total = mib(self.ram_total_mb);
        let swap_total = mib(self.swap_total_mb);
        let block = self.lfb_block_kb.filter(|_| self.lfb_blocks.is_some_and(|n| n > 0));
        MachineSample {
            memory: MemInfo {
                total,
                available: less(total, self.ram_used_mb),
                swap_total,
                swap_free: less(swap_total, self.swap_used_mb),
                ..MemInfo::default()
            },
            largest_free: block.map(|kb| Bytes(kb.saturating_mul(1 << 10))),
            cpu_percent: self.cpu_mean_online(),
            cores: self.cores(),
            gpus: self.gpus(),
            engines: self.engines(),
            temperatures: self
                .temps_c
                .iter()
                .map(|(name, celsius)| Temperature { name: name.to_string(), celsius: *celsius })
                .collect(),
            rails: self
                .power_mw
                .iter()
                .map(|(name, power)| Rail { name: name.to_string(), watts: Some(watts(power.cur)) })
                .collect(),
            total_power_w: self.total_power_mw().map(watts),
            ..MachineSample::default()
        }
    }

    fn cores(&self) -> Vec<CoreSample> {
        let cores = self.cpu.iter().flatten().map(|cpu| CoreSample {
            online: cpu.online,
            percent: cpu.util,
            mhz: cpu.mhz,
        });
        cores.collect()
    }

    /// The board's GPU is there even where the line says nothing of it (no root); the card beside
    /// it where the line names it.
    fn gpus(&self) -> Vec<GpuSample> {
        let gpu = self.gpu.as_ref();
        let sensors = self.temps_c.iter().find(|(name, _)| name.eq_ignore_ascii_case("gpu"));
        let board = GpuSample {
            unified: true,
            percent: gpu.and_then(|load| load.util),
            mhz: gpu.and_then(|load| load.mhz.highest()),
            celsius: sensors.and_then(|(_, celsius)| *celsius),
            ..GpuSample::default()
        };
        let card = self.gpu_pci.as_ref().map(|load| GpuSample {
            name: Some("GR3D_PCI".to_string()),
            percent: load.util,
            mhz: load.mhz.highest(),
            ..GpuSample::default()
        });
        std::iter::once(board).chain(card).collect()
    }

    fn engines(&self) -> Vec<EngineSample> {
        let engine = |name: &str, load: &EngineLoad| EngineSample {
            name: name.to_string(),
            off: load.off,
            percent: load.util,
            mhz: load.mhz.highest(),
        };
        let emc = self.emc.iter().map(|load| engine("EMC", load));
        let second = self.gpu2.iter().map(|load| engine("GR3D2", load));
        emc.chain(second)
            .chain(self.engines.iter().map(|(name, load)| engine(name, load)))
            .collect()
    }
}

fn watts(milliwatts: f64) -> f64 {
    milliwatts / 1000.0
}
