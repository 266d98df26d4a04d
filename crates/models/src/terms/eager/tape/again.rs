//! Parts that are run again for their backward pass (checkpoints), as PyTorch does without re-entry.
//!
//! A backward pass begins with what needs nothing that was saved: the sums at the end of a layer. The
//! first node that needs something has the part run again, up to the last thing that is saved in it.

use std::rc::Rc;

use super::{EagerMemory, EagerNode, EagerTape, EagerTensor, Gradient};

/// A part of a program, from its input.
pub(in crate::terms::eager) type Again<'a> =
    Rc<dyn Fn(&mut EagerTape<'a>, EagerTensor) -> EagerTensor + 'a>;

impl<'a> EagerTape<'a> {
    /// Runs a part without keeping what its backward pass needs; that runs it again.
    pub(in crate::terms::eager) fn checkpointed(
        &mut self,
        x: &EagerTensor,
        part: Again<'a>,
    ) -> EagerTensor {
        self.records = false;
        let mut out = part(self, EagerTensor { node: None, ..x.clone() });
        self.records = true;
        let inputs = x.node.map(|node| (node, Gradient::Same)).into_iter().collect();
        let again = Some((EagerTensor { node: None, ..x.clone() }, part));
        // Weights inside get gradients even where the input does not.
        out.node = Some(self.nodes.len());
        self.nodes.push(EagerNode { inputs, again, ..EagerNode::default() });
        out
    }

    pub(super) fn unwind_again(
        &mut self,
        node: &EagerNode<'a>,
        x: EagerTensor,
        part: &Again<'a>,
        gradient: EagerMemory,
    ) {
        let first = self.nodes.len();
        let (last, end, waiting) = self.unwind_end(&x, part, gradient);
        self.records = true;
        let retained = self.retained.len();
        let held = x.memory.clone();
        let x = self.leaf(x);
        self.last = Some(end);
        drop(part(self, x));
        self.last = None;
        // The second graph ends at once; the first has what it keeps.
        self.retained.truncate(retained);
        // Autocast begins and ends with it.
        self.casts.clear();
        self.nodes.truncate(last + 1);
        for (node, (gradient, view)) in self.nodes[first..].iter_mut().zip(waiting) {
            (node.gradient, node.view) = (gradient, view);
        }
        // What the part was run from stays until the first thing that was saved in it goes.
        let saves = |node: &&mut EagerNode<'a>| !(node.saved.is_empty() && node.weights.is_empty());
        if let Some(node) = self.nodes[first..].iter_mut().find(saves) {
            node.saved.push(held);
        }
        self.unpacks = true;
        self.unwind(first + 1);
        self.unpacks = false;
        let arrived = self.nodes.pop().and_then(|mut leaf| leaf.gradient.take());
        if let (Some(memory), Some(&(input, _))) = (arrived, node.inputs.first()) {
            self.give(input, memory, false);
        }
        self.records = false;
    }

    /// Unwinds what comes behind the last node that saved something. Gives that node's number, that of the
    /// last whose result is made again, and the gradients that wait for them and those before.
    fn unwind_end(
        &mut self,
        x: &EagerTensor,
        part: &Again<'a>,
        gradient: EagerMemory,
    ) -> (usize, usize, Vec<(Option<EagerMemory>, bool)>) {
        let first = self.nodes.len();
        // On a tape of its own: only what depends on what is of interest.
        let mut draft = EagerTape { records: true, ..EagerTape::default() };
        draft.nodes.resize_with(first, EagerNode::default);
        let x = draft.leaf(x.clone());
        let out = part(&mut draft, x).node;
        let saves = |node: &EagerNode<'_>| !(node.saved.is_empty() && node.weights.is_empty());
        let last = draft.nodes.iter().rposition(saves).unwrap_or(first).max(first);
        // A product saves what it is made of before it is made.
        let product = !draft.nodes[last].weights.is_empty() && draft.casts.is_empty();
        let end = if product { last.saturating_sub(1) } else { last };
        self.nodes.resize_with(last + 1, EagerNode::default);
        self.nodes.extend(draft.nodes.drain(last + 1..));
        if let Some(out) = out {
            self.nodes[out].gradient = Some(gradient);
        }
        self.unwind(last + 1);
        let waiting = self.nodes.drain(first..).map(|node| (node.gradient, node.view)).collect();
        (last, end, waiting)
    }
}
