//! What is held, against the limit: of a slot, the process, the device and the system. One
//! violation is one time that it rose past the limit.

use std::time::SystemTime;

use plimsoll::Bytes;

use super::guarded::BenchGuard;
use super::log::{Level, TARGET};
use super::probe::Resident;
use super::progress::BenchProgress;
use super::recorder::Recorder;
use crate::measure::FrameSample;
use crate::record::Violation;
use crate::record::time::rfc3339;

impl Recorder<'_> {
    /// Compares a slot's memory with the line. One violation is one time that it rose past it.
    pub(super) fn watch_line(&mut self, sample: &FrameSample, progress: &mut dyn BenchProgress) {
        let slot = sample.slot;
        let limit = self.limit_of(&self.pages[slot]);
        let Some((held, limit)) = sample.memory.zip(limit) else { return };
        let passed = held > limit;
        if passed && !self.pages[slot].over {
            let who = self.title(slot);
            self.violation(progress, Some(slot), &who, (held, limit));
        }
        self.pages[slot].over = passed;
    }

    /// The same for the whole process, where a slot's memory is only a part of it.
    pub(super) fn watch_process(&mut self, progress: &mut dyn BenchProgress) {
        let Some(held) = self.process.as_ref().and_then(Resident::read) else { return };
        self.process_peak = self.process_peak.max(Some(held));
        let passed = held > self.limit && self.limits.watches_process;
        if passed && !self.process_over {
            self.violation(progress, None, "the process", (held, self.limit));
        }
        self.process_over = passed;
    }

    /// The device as a whole against the line: what the driver takes for itself cannot be
    /// refused.
    pub(super) fn watch_device(&mut self, progress: &mut dyn BenchProgress) {
        let Some(held) = self.guard().and_then(BenchGuard::whole).map(|whole| whole.peak) else {
            return;
        };
        if held > self.limit && !self.device_over {
            self.violation(progress, None, "the device", (held, self.limit));
            self.device_over = true;
        }
    }

    /// The system's memory against what must stay free, where the GPU shares it.
    pub(super) fn watch_system(&mut self, progress: &mut dyn BenchProgress) {
        let check = self.limits.manager.validate_memory_within_limit();
        let over = check.violations.iter().find(|violation| violation.device == "system");
        if let Some(violation) = over.filter(|_| !self.limits.system_over) {
            let (held, limit) = (violation.held, violation.limit);
            self.violation(progress, None, "the system", (held, limit));
        }
        self.limits.system_over = over.is_some();
    }

    /// More is held than the limit allows: logged, and counted once for each time that it rose
    /// past the limit.
    fn violation(
        &mut self,
        progress: &mut dyn BenchProgress,
        slot: Option<usize>,
        who: &str,
        (held, limit): (Bytes, Bytes),
    ) {
        let text = format!("VIOLATION: {who} holds {held}, more than the limit of {limit}");
        tracing::error!(target: TARGET, "{text}");
        self.log(progress, Level::Error, &text);
        let time = rfc3339(SystemTime::now());
        self.safety.violated(Violation { time, slot, bytes: held.get() });
    }
}
