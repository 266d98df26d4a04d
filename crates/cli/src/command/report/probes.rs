//! What the probes see. The system's own files are read apart from the drivers, so that a driver
//! that hangs takes only its own figures away.

use plimsoll::machine::{Machine, with_timeout};
use plimsoll::probe::{MachineSample, ProbeKind, look};

use super::devices::{Absent, DeviceReport, why};
use crate::driver_timeout::no_answer;

/// Probes that are read together. tegrastats is left out, as it needs a second to say anything.
const GROUPS: [&[ProbeKind]; 3] =
    [&[ProbeKind::Proc, ProbeKind::Jetson], &[ProbeKind::Nvml], &[ProbeKind::Amdgpu]];

/// What became of a look: nothing where it was not over in time.
type ProbeLook = Option<plimsoll::Result<MachineSample>>;

/// A probe that told nothing, and why.
#[derive(Debug)]
struct FailedProbe {
    kind: ProbeKind,
    why: String,
    /// It did not answer, and is not asked again: each time would take as long.
    hangs: bool,
}

/// The probes, from one report to the next.
#[derive(Debug, Default)]
pub(super) struct ReportProbes {
    failed: Vec<FailedProbe>,
}

impl ReportProbes {
    /// What they see now, with the processes.
    pub(super) fn look(&mut self, machine: &Machine) -> MachineSample {
        self.look_by(|kinds| {
            let root = machine.root().to_path_buf();
            with_timeout(move || look(root, kinds))
        })
    }

    fn look_by(&mut self, look: impl Fn(&'static [ProbeKind]) -> ProbeLook) -> MachineSample {
        self.failed.retain(|probe| probe.hangs);
        let mut sample = MachineSample::default();
        for kinds in GROUPS {
            let kind = kinds[0];
            if self.failed.iter().any(|probe| probe.kind == kind) {
                continue;
            }
            let (why, hangs) = match look(kinds) {
                Some(Ok(part)) => {
                    sample.merge(part);
                    continue;
                }
                Some(Err(error)) => (why(error), false),
                None => (no_answer(), true),
            };
            tracing::debug!("{}: {why}", kind.name());
            self.failed.push(FailedProbe { kind, why, hangs });
        }
        sample
    }

    /// The probes that ought to tell something and do not: those that do not answer, and where no
    /// GPU is seen, those of a GPU that a driver has.
    pub(super) fn absent(&self, sample: &MachineSample, devices: &[DeviceReport]) -> Vec<Absent> {
        let has = |backend: &str| devices.iter().any(|device| device.device.starts_with(backend));
        let is_missed = |probe: &&FailedProbe| match probe.kind {
            _ if probe.hangs => true,
            ProbeKind::Nvml => sample.gpus.is_empty() && has("cuda:"),
            ProbeKind::Amdgpu => sample.gpus.is_empty() && has("rocm:"),
            ProbeKind::Proc | ProbeKind::Jetson | ProbeKind::Tegrastats => false,
        };
        let absent = |probe: &FailedProbe| Absent {
            backend: probe.kind.name(),
            why: probe.why.clone(),
            is_probe: true,
        };
        self.failed.iter().filter(is_missed).map(absent).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::path::PathBuf;

    use super::super::answer::MachineReport;
    use super::super::devices::FoundDevices;
    use super::*;

    fn xavier() -> Machine {
        let tree = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        Machine::recorded(tree.join("../machine/tests/machines/agx-xavier"))
    }

    #[test]
    fn a_driver_that_hangs_takes_only_its_own_figures_away() {
        let machine = xavier();
        let mut probes = ReportProbes::default();
        let whole = probes.look(&machine);
        assert!(!whole.processes.is_empty() && whole.memory.page_cache.is_some());
        assert!(probes.absent(&whole, &[]).is_empty(), "no driver of it was asked");
        let asked = RefCell::new(Vec::new());
        let hanging = |kinds: &'static [ProbeKind]| {
            asked.borrow_mut().push(kinds[0]);
            let root = machine.root().to_path_buf();
            (kinds[0] != ProbeKind::Nvml).then(|| look(root, kinds))
        };
        for _ in 0..2 {
            let sample = probes.look_by(hanging);
            assert_eq!(sample.processes, whole.processes);
            assert_eq!(sample.memory, whole.memory);
            let absent = probes.absent(&sample, &[]);
            let found = FoundDevices { devices: Vec::new(), absent };
            let report = MachineReport::new(&machine, &sample, found);
            assert_eq!(report.absent[0].backend, "nvml");
            assert!(report.absent[0].why.contains("did not answer within"), "{report:?}");
            let advice = report.recommendations.join("; ");
            assert!(advice.contains("nvml") && !advice.contains("no GPU was found"), "{advice}");
            assert!(report.into_devices().absent.is_empty(), "it is looked at anew");
        }
        let of_nvml = asked.borrow().iter().filter(|kind| **kind == ProbeKind::Nvml).count();
        assert_eq!(of_nvml, 1, "it is not waited for in every round");
    }
}
