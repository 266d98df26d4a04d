//! Which tensors are seen through others, and when each is let go.

use std::collections::HashSet;

use super::super::live::is_view;
use super::super::ort::{Lowered, Step};
use super::super::shapes::Shaped;

/// What is known before it runs.
pub(super) struct TorchPlan {
    /// The steps in the order of the file, in which they were written down while they ran.
    pub(super) order: Vec<usize>,
    /// The value whose memory each value is in.
    pub(super) home: Vec<usize>,
    /// Whether its elements are not in a row.
    pub(super) turned: Vec<bool>,
    /// The homes that are let go after each step of the order.
    pub(super) ends: Vec<Vec<usize>>,
    /// The homes of results, which the caller lets go before the next run; it keeps the inputs.
    pub(super) results: Vec<usize>,
}

/// Whether an operator looks at its input's memory otherwise, instead of making something.
fn looks(op: &str) -> bool {
    is_view(op) || matches!(op, "Transpose" | "Split" | "Slice" | "Expand")
}

impl TorchPlan {
    pub(super) fn new(shaped: &Shaped, lowered: &Lowered) -> TorchPlan {
        let count = lowered.values.len();
        let mut order: Vec<usize> = (0..lowered.steps.len()).collect();
        order.sort_by_key(|&n| lowered.steps[n].node);
        let ends = vec![Vec::new(); order.len()];
        let mut plan = TorchPlan {
            order,
            home: (0..count).collect(),
            turned: vec![false; count],
            ends,
            results: Vec::new(),
        };
        plan.find_homes(lowered);
        plan.find_ends(shaped, lowered);
        let inputs: HashSet<usize> = shaped.graph.inputs.iter().copied().collect();
        let results = shaped.graph.outputs.iter().map(|&id| plan.home[id]);
        plan.results = results.filter(|home| !inputs.contains(home)).collect();
        plan
    }

    fn find_homes(&mut self, lowered: &Lowered) {
        for &n in &self.order {
            let step = &lowered.steps[n];
            let Some(&input) = step.inputs.first().filter(|_| looks(&step.op)) else { continue };
            // What is not in a row cannot be seen in another shape: it is copied.
            if matches!(step.op.as_str(), "Reshape" | "Flatten") && self.turned[input] {
                continue;
            }
            for &output in &step.outputs {
                self.home[output] = self.home[input];
                self.turned[output] = step.op == "Transpose" || self.turned[input];
            }
        }
    }

    /// After its last use; but what a module is called with lives until that returns, since the
    /// caller holds it. What the caller of all gave or gets is not let go here.
    fn find_ends(&mut self, shaped: &Shaped, lowered: &Lowered) {
        let steps: Vec<&Step> = self.order.iter().map(|&n| &lowered.steps[n]).collect();
        let modules = Modules::new(shaped, &steps);
        let mut made: Vec<Option<usize>> = vec![None; self.home.len()];
        let mut last: Vec<Option<usize>> = vec![None; self.home.len()];
        for (time, step) in steps.iter().enumerate() {
            for &id in &step.inputs {
                let end = Some(modules.return_of(time, made[id]));
                let last = &mut last[self.home[id]];
                *last = end.max(*last);
            }
            for &id in &step.outputs {
                made[id] = Some(time);
                let last = &mut last[self.home[id]];
                *last = Some(time).max(*last);
            }
        }
        for &id in shaped.graph.inputs.iter().chain(&shaped.graph.outputs) {
            last[self.home[id]] = None;
        }
        for (home, last) in last.into_iter().enumerate() {
            if let Some(time) = last {
                self.ends[time].push(home);
            }
        }
    }
}

/// The modules that operators are in. PyTorch's exporter names operators by them, as in
/// `/down.0/down.0.1/Conv`; operators with other names are in none.
struct Modules<'a> {
    /// The path of each step.
    paths: Vec<Vec<&'a str>>,
    /// For each module of the path, the last step before it returns.
    returns: Vec<Vec<usize>>,
}

impl<'a> Modules<'a> {
    fn new(shaped: &'a Shaped, steps: &[&Step]) -> Modules<'a> {
        let path = |step: &&Step| -> Vec<&'a str> {
            let name = shaped.graph.nodes[step.node].name.strip_prefix('/');
            let within = name.and_then(|name| name.rsplit_once('/')).map(|(within, _)| within);
            within.map_or(Vec::new(), |within| within.split('/').collect())
        };
        let paths: Vec<Vec<&str>> = steps.iter().map(path).collect();
        let mut returns: Vec<Vec<usize>> = vec![Vec::new(); paths.len()];
        for time in (0..paths.len()).rev() {
            let next = paths.get(time + 1).map_or(&[][..], |path| path);
            let common = common(&paths[time], next);
            let at = |depth: usize| if depth < common { returns[time + 1][depth] } else { time };
            returns[time] = (0..paths[time].len()).map(at).collect();
        }
        Modules { paths, returns }
    }

    /// Until when a step's input is held that was made by another step, or given.
    fn return_of(&self, time: usize, made: Option<usize>) -> usize {
        let outside = made.map_or(&[][..], |made| &self.paths[made]);
        let entered = common(&self.paths[time], outside);
        self.returns[time].get(entered).copied().unwrap_or(time)
    }
}

fn common(one: &[&str], other: &[&str]) -> usize {
    one.iter().zip(other).take_while(|(a, b)| a == b).count()
}
