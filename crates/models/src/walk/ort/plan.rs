//! ONNX Runtime's plan: which tensors share a buffer, when buffers come and go.

use std::collections::VecDeque;

use super::OrtSettings;
use super::arena::{BfcArena, Pattern};
use super::lower::{Lowered, Step};

/// Tensors are aligned to this.
const ALIGNMENT: u64 = 256;

/// What the arena would say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Arenas {
    /// Bytes that are set aside when the model is loaded: weights in another layout.
    pub loaded: u64,
    /// The most in use, over the first runs.
    pub peak: u64,
    /// Bytes that the arena holds from then on.
    pub reserved: u64,
    /// The least and the most of that, by the order in which weights are loaded.
    pub reserved_between: (u64, u64),
    /// The most that lives in the first run, without the arena's slack.
    pub live: u64,
    /// The buffer that the runtime plans after the first run.
    pub pattern: u64,
    /// The operator at the worst moment.
    pub step: usize,
}

/// What else is in the arena, on a device.
#[derive(Debug, Clone, Default)]
pub(super) struct DeviceContents {
    pub(super) weights: Vec<u64>,
    pub(super) inputs: Vec<u64>,
}

/// Where a value's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BufferPlace {
    /// Not ours: an input or a weight.
    Outside,
    /// In a buffer of its own.
    Own,
    /// A result, which the caller keeps.
    Result,
    /// In the buffer of another value.
    In(usize),
}

pub(super) struct OrtPlan<'a> {
    lowered: &'a Lowered,
    order: Vec<usize>,
    place: Vec<BufferPlace>,
    /// The last step that uses a buffer.
    last: Vec<usize>,
}

impl<'a> OrtPlan<'a> {
    pub(super) fn new(lowered: &'a Lowered) -> OrtPlan<'a> {
        let order = lowered.order();
        let mut plan = OrtPlan {
            lowered,
            place: vec![BufferPlace::Outside; lowered.values.len()],
            last: vec![0; lowered.values.len()],
            order,
        };
        plan.share();
        plan.lifetimes();
        plan
    }

    fn root(&self, mut value: usize) -> usize {
        while let BufferPlace::In(other) = self.place[value] {
            value = other;
        }
        value
    }

    /// Finds an input or a dead buffer for each output, as the runtime does.
    fn share(&mut self) {
        let lowered = self.lowered;
        let mut uses = lowered.uses();
        let mut dead: VecDeque<usize> = VecDeque::new();
        for &index in &self.order.clone() {
            let step = &lowered.steps[index];
            for (n, &output) in step.outputs.iter().enumerate() {
                self.place[output] = if lowered.is_output[output] {
                    BufferPlace::Result
                } else if let Some(input) = self.input_to_share(step, n, output, &uses) {
                    let root = self.root(input);
                    uses[root] += uses[output];
                    BufferPlace::In(root)
                } else if let Some(found) = dead.iter().position(|&free| {
                    lowered.has_readers[output] && lowered.same_size(free, output)
                }) {
                    let root = dead.remove(found).unwrap_or(output);
                    uses[root] += uses[output];
                    BufferPlace::In(root)
                } else {
                    BufferPlace::Own
                };
            }
            for &value in step.inputs.iter().chain(&step.outputs) {
                let root = self.root(value);
                uses[root] = uses[root].saturating_sub(1);
                if uses[root] == 0 && self.place[root] == BufferPlace::Own {
                    dead.push_front(root);
                }
            }
        }
    }

    /// The input whose buffer an output takes: always for views, where it is the last use for
    /// those that may write over it.
    fn input_to_share(
        &self,
        step: &Step,
        n: usize,
        output: usize,
        uses: &[usize],
    ) -> Option<usize> {
        if n > 0 {
            return None;
        }
        if step.is_view {
            let input = *step.inputs.first()?;
            // A view of what the caller gave or keeps is not in the arena either.
            return Some(input);
        }
        step.in_place.iter().copied().find(|&input| {
            let root = self.root(input);
            uses[root] == 1
                && matches!(self.place[root], BufferPlace::Own)
                && self.lowered.same_size(input, output)
        })
    }

    fn lifetimes(&mut self) {
        for (time, &index) in self.order.iter().enumerate() {
            let step = &self.lowered.steps[index];
            for &value in step.inputs.iter().chain(&step.outputs) {
                let root = self.root(value);
                self.last[root] = time;
            }
        }
    }

    /// What the arena says after the first runs. `packed` is set aside beside it, `weights`
    /// and the inputs are in it.
    pub(super) fn simulate(
        &self,
        settings: OrtSettings,
        packed: &[u64],
        inside: &DeviceContents,
    ) -> Arenas {
        let mut arena = BfcArena::new(settings.extend);
        for &bytes in packed {
            arena.reserve(bytes);
        }
        for &bytes in &inside.weights {
            arena.take(bytes);
        }
        let loaded = arena.in_use;
        let inputs: Vec<usize> = inside.inputs.iter().filter_map(|&n| arena.take(n)).collect();
        let mut pattern = Pattern::default();
        let (live, step) = self.first_run(&mut arena, &mut pattern);
        for _ in 1..settings.runs {
            self.planned_run(&mut arena, pattern.size);
        }
        for token in inputs {
            arena.free(token);
        }
        let (peak, reserved) = (arena.peak, arena.reserved);
        let reserved_between = (reserved, reserved);
        Arenas { loaded, peak, reserved, reserved_between, live, pattern: pattern.size, step }
    }

    /// Every tensor for itself, and the plan is made.
    fn first_run(&self, arena: &mut BfcArena, pattern: &mut Pattern) -> (u64, usize) {
        let values = self.lowered.values.len();
        let mut tokens: Vec<Option<usize>> = vec![None; values];
        let mut results = Vec::new();
        let (mut now, mut worst, mut at) = (0u64, 0, 0);
        for (time, &index) in self.order.iter().enumerate() {
            let step = &self.lowered.steps[index];
            for &output in &step.outputs {
                let size = self.size(output);
                match self.place[output] {
                    BufferPlace::Own => {
                        tokens[output] = arena.take(size);
                        pattern.take(output, size);
                        now = now.saturating_add(size);
                    }
                    BufferPlace::Result => {
                        results.extend(arena.take(size));
                        now = now.saturating_add(size);
                    }
                    BufferPlace::Outside | BufferPlace::In(_) => {}
                }
            }
            let most = step.workspace.iter().fold(now, |sum, &bytes| sum.saturating_add(bytes));
            if most > worst {
                worst = most;
                at = index;
            }
            work(arena, step);
            for root in self.dying(time, step) {
                if let Some(token) = tokens[root].take() {
                    arena.free(token);
                    now = now.saturating_sub(self.size(root));
                }
                pattern.free(root);
            }
        }
        for token in results {
            arena.free(token);
        }
        (worst, at)
    }

    /// One buffer for all tensors, and results and workspaces beside it.
    fn planned_run(&self, arena: &mut BfcArena, size: u64) {
        let buffer = arena.take(size);
        let mut results = Vec::new();
        for &index in &self.order {
            let step = &self.lowered.steps[index];
            for &output in &step.outputs {
                if self.place[output] == BufferPlace::Result {
                    results.extend(arena.take(self.size(output)));
                }
            }
            work(arena, step);
        }
        for token in results.into_iter().chain(buffer) {
            arena.free(token);
        }
    }

    fn dying(&self, time: usize, step: &Step) -> Vec<usize> {
        let mut roots: Vec<usize> = step
            .inputs
            .iter()
            .chain(&step.outputs)
            .map(|&value| self.root(value))
            .filter(|&root| self.place[root] == BufferPlace::Own && self.last[root] == time)
            .collect();
        roots.sort_unstable();
        roots.dedup();
        roots
    }

    fn size(&self, value: usize) -> u64 {
        self.lowered.values[value].bytes.next_multiple_of(ALIGNMENT)
    }
}

/// A kernel's own buffers come and go while it runs.
fn work(arena: &mut BfcArena, step: &Step) {
    let tokens: Vec<usize> = step.workspace.iter().filter_map(|&bytes| arena.take(bytes)).collect();
    for token in tokens {
        arena.free(token);
    }
}
