//! Applies a limit to every device: on all of them or on none.

use super::report::DeviceLimit;
use super::slot::Slot;
use crate::config::MemoryConfig;
use plimsoll_machine::error::Result;
use plimsoll_machine::machine::{MPS_LIMIT_VARIABLE, Machine};
use plimsoll_machine::units::Bytes;

/// What became of the limit, before it is made a report.
#[derive(Debug, Default)]
pub(super) struct Applied {
    pub(super) devices: Vec<DeviceLimit>,
    pub(super) methods: Vec<&'static str>,
    pub(super) warnings: Vec<String>,
}

/// Applies the limit. Where one device fails, all others get back what they had.
pub(super) fn apply(
    slots: &mut [Slot],
    config: &MemoryConfig,
    line: Bytes,
    machine: &Machine,
) -> Result<Applied> {
    let before: Vec<_> = slots.iter().map(Slot::state).collect();
    let applied = apply_to_all(slots, config, line, machine);
    if applied.is_err() {
        slots.iter_mut().zip(before).for_each(|(slot, state)| slot.restore(state));
    }
    applied
}

fn apply_to_all(
    slots: &mut [Slot],
    config: &MemoryConfig,
    line: Bytes,
    machine: &Machine,
) -> Result<Applied> {
    let mut applied = Applied::default();
    if slots.is_empty() {
        return Ok(applied);
    }
    let daemon = machine.mps().is_ok();
    let (mut by_pool, mut by_driver) = (true, false);
    for slot in slots {
        let one = slot.limit(config, line, daemon)?;
        let name = &slot.name;
        if !one.by_pool {
            by_pool = false;
            applied.warnings.push(format!(
                "the pool on {name} was made before, with a larger budget: the gate enforces the limit"
            ));
        }
        if one.limit.held > line {
            applied.warnings.push(format!("{} is already reserved on {name}", one.limit.held));
        }
        if daemon && slot.is_cuda() && !one.by_driver {
            applied.warnings.push(format!(
                "an MPS daemon runs, but does not limit this process to {line} on {name}: \
                 {MPS_LIMIT_VARIABLE} must be in its environment when it starts"
            ));
        }
        by_driver |= one.by_driver;
        applied.devices.push(one.limit);
    }
    applied.methods.push("gate");
    applied.methods.extend(by_pool.then_some("pool"));
    applied.methods.extend(by_driver.then_some("mps"));
    Ok(applied)
}
