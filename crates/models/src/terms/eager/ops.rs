//! PyTorch's operators as far as memory goes: what each makes, and what it saves for its backward
//! pass.

use super::job::{EagerBase, EagerJob};
use super::tape::{EagerNode, EagerTape, EagerTensor, Gradient, WeightGradient};
use crate::families::style::NormKind;

/// A matrix of a model and how it is trained.
#[derive(Debug, Clone, Copy)]
pub(super) struct EagerMatrix {
    /// Its number among the weights.
    pub(super) weight: usize,
    pub(super) inputs: u64,
    pub(super) outputs: u64,
    /// Whether it has a bias.
    pub(super) bias: bool,
    /// Whether adapters and small types apply to it: to all but the output matrix.
    pub(super) inner: bool,
}

/// bitsandbytes: weights of a block share a scale.
pub(super) const NF4_BLOCK: u64 = 64;

/// What an operator with one input saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Saved {
    Nothing,
    Input,
    Output,
}

/// The gradient of a product's input.
fn through(x: &EagerTensor) -> Vec<(usize, Gradient)> {
    x.node.map(|node| (node, Gradient::View(x.bytes()))).into_iter().collect()
}

fn to(x: &EagerTensor, bytes: u64) -> Vec<(usize, Gradient)> {
    x.node.map(|node| (node, Gradient::New(bytes))).into_iter().collect()
}

/// What the blocks of a sum over rows leave for each other on a GPU with 132 multiprocessors:
/// blocks of 128 threads, four columns to a thread, and as many of them as keep it busy.
pub(super) fn column_sums(rows: u64, columns: u64) -> u64 {
    let each = rows.div_ceil(4);
    if each < 256 || columns == 0 {
        return 0;
    }
    let across = (columns / 4).div_ceil(32).max(1);
    let busy = 132 * 16;
    let shares = u64::div_ceil(busy, across).min(each.div_ceil(16)).max(each.div_ceil(256));
    if shares <= 1 || across > busy {
        return 0;
    }
    columns.saturating_mul(4 * 128).saturating_mul(shares)
}

/// The backward pass of a product of a tensor with itself, or with a number for each row.
fn saving<'a>(x: &EagerTensor) -> EagerNode<'a> {
    EagerNode {
        inputs: to(x, x.bytes()),
        saved: vec![x.memory.clone()],
        working: vec![x.bytes()],
        ..EagerNode::default()
    }
}

impl EagerTape<'_> {
    /// A result of one input's size, in its type or another.
    pub(super) fn unary(&mut self, x: &EagerTensor, width: u64, saved: Saved) -> EagerTensor {
        let out = self.tensor(x.count, width);
        let saved = match saved {
            Saved::Nothing => Vec::new(),
            Saved::Input => vec![x.memory.clone()],
            Saved::Output => vec![out.memory.clone()],
        };
        self.record(out, EagerNode { inputs: to(x, x.bytes()), saved, ..EagerNode::default() })
    }

    /// A softmax; its backward pass has the product of its result and gradient for a moment.
    pub(super) fn softmax(&mut self, x: &EagerTensor, width: u64) -> EagerTensor {
        let out = self.tensor(x.count, width);
        let (saved, brief) = (vec![out.memory.clone()], vec![out.bytes()]);
        let node = EagerNode { inputs: to(x, x.bytes()), saved, brief, ..EagerNode::default() };
        self.record(out, node)
    }

    /// A power; its gradient is made of a lower power, and of that times a number.
    pub(super) fn power(&mut self, x: &EagerTensor) -> EagerTensor {
        let out = self.tensor(x.count, x.width);
        self.record(out, EagerNode { working: vec![x.bytes(); 2], ..saving(x) })
    }

    /// A result of its own whose gradient is the input's: a copy, or a sum with a number.
    pub(super) fn shifted(&mut self, x: &EagerTensor) -> EagerTensor {
        let out = self.tensor(x.count, x.width);
        let inputs = x.node.map(|node| (node, Gradient::Same)).into_iter().collect();
        self.record(out, EagerNode { inputs, ..EagerNode::default() })
    }

    /// In another type; nothing where it has it.
    pub(super) fn cast(&mut self, x: &EagerTensor, width: u64) -> EagerTensor {
        if x.width == width {
            return x.clone();
        }
        self.unary(x, width, Saved::Nothing)
    }

    /// The product of two tensors of one shape; each is saved for the other's gradient, of which that of the
    /// second comes first.
    pub(super) fn multiply(&mut self, a: &EagerTensor, b: &EagerTensor) -> EagerTensor {
        let out = self.tensor(a.count, a.width.max(b.width));
        let mut node = EagerNode::default();
        for (this, other) in [(b, a), (a, b)] {
            if this.node.is_some() {
                node.inputs.extend(to(this, this.bytes()));
                node.saved.push(other.memory.clone());
            }
        }
        self.record(out, node)
    }

    /// The sum of two tensors of one shape.
    pub(super) fn add(&mut self, a: &EagerTensor, b: &EagerTensor) -> EagerTensor {
        let out = self.tensor(a.count, a.width.max(b.width));
        let mut node = EagerNode::default();
        for x in [a, b] {
            let kind = if x.width == out.width { Gradient::Same } else { Gradient::New(x.bytes()) };
            node.inputs.extend(x.node.map(|node| (node, kind)));
        }
        self.record(out, node)
    }

    /// The same numbers in another form; the gradient is seen through a view.
    pub(super) fn viewed(&mut self, x: &EagerTensor) -> EagerTensor {
        let inputs = x.node.map(|node| (node, Gradient::Seen)).into_iter().collect();
        self.record(x.clone(), EagerNode { inputs, ..EagerNode::default() })
    }

    /// A copy in another order or a part of it; the gradient has the input's size.
    pub(super) fn copied(&mut self, x: &EagerTensor, count: u64) -> EagerTensor {
        self.spread(x, count, x.width)
    }

    /// The same memory, read several times over; the gradients of all readings become a sum.
    pub(super) fn expanded(&mut self, x: &EagerTensor, count: u64) -> EagerTensor {
        self.record(x.part(count), EagerNode { inputs: to(x, x.bytes()), ..EagerNode::default() })
    }

    /// The same in another type.
    pub(super) fn spread(&mut self, x: &EagerTensor, count: u64, width: u64) -> EagerTensor {
        let out = self.tensor(count, width);
        self.record(out, EagerNode { inputs: to(x, x.bytes()), ..EagerNode::default() })
    }

    /// With a mask of a byte for each number, while training.
    pub(super) fn dropout(&mut self, x: &EagerTensor, is_on: bool) -> EagerTensor {
        if !is_on {
            return x.clone();
        }
        let out = self.tensor(x.count, x.width);
        let mask = self.take(x.count);
        let saved = vec![mask];
        self.record(out, EagerNode { inputs: to(x, x.bytes()), saved, ..EagerNode::default() })
    }

    /// A product with a matrix, as the job has it.
    pub(super) fn linear(
        &mut self,
        job: &EagerJob,
        x: &EagerTensor,
        matrix: EagerMatrix,
    ) -> EagerTensor {
        let rows = x.count.checked_div(matrix.inputs).unwrap_or(0);
        if matrix.inner {
            self.seen.insert(matrix.weight, (matrix.inputs, matrix.outputs));
        }
        match job.adapters.filter(|_| matrix.inner) {
            Some(adapters) => {
                let base = self.frozen(job, x, matrix, adapters.base);
                self.adapted(job, x, base, matrix, adapters.rank)
            }
            None => self.product_with(job, x, matrix, rows, job.trains()),
        }
    }

    /// A plain product; the matrix gets a gradient or is left alone.
    fn product_with(
        &mut self,
        job: &EagerJob,
        x: &EagerTensor,
        matrix: EagerMatrix,
        rows: u64,
        trains: bool,
    ) -> EagerTensor {
        let elements = matrix.inputs.saturating_mul(matrix.outputs);
        let mut node = EagerNode::default();
        let x = if job.amp { self.cast(x, 2) } else { x.clone() };
        if job.amp {
            // Kept by autocast until the forward pass is over, and by the tape.
            let narrow = self.take(elements.saturating_mul(2));
            node.saved.push(narrow.clone());
            self.casts.push(narrow);
        }
        let out = self.tensor(rows.saturating_mul(matrix.outputs), x.width);
        self.product();
        node.inputs = through(&x);
        if trains {
            node.saved.push(x.memory.clone());
            let bytes = elements.saturating_mul(job.weight_width);
            if matrix.bias {
                // One operator adds the bias and multiplies; its backward pass has another order.
                node.inputs_first = true;
                node.brief.push(column_sums(rows, matrix.outputs));
            }
            let narrow = if job.amp { elements.saturating_mul(2) } else { 0 };
            node.weights.push(WeightGradient { weight: matrix.weight, bytes, narrow });
        }
        self.record(out, node)
    }

    /// A product of sorted rows with each expert's own matrix.
    pub(super) fn grouped(
        &mut self,
        job: &EagerJob,
        x: &EagerTensor,
        matrix: EagerMatrix,
        (rows, experts): (u64, u64),
    ) -> EagerTensor {
        let all = EagerMatrix { outputs: matrix.outputs.saturating_mul(experts), ..matrix };
        let out = self.tensor(rows.saturating_mul(matrix.outputs), x.width);
        self.product();
        let mut node = EagerNode { inputs: to(x, x.bytes()), ..EagerNode::default() };
        if job.trains() {
            node.saved.push(x.memory.clone());
            let bytes = all.inputs.saturating_mul(all.outputs).saturating_mul(job.weight_width);
            node.weights.push(WeightGradient { weight: matrix.weight, bytes, narrow: 0 });
        }
        self.record(out, node)
    }

    /// A product with a matrix that gets no gradient, as its type needs it.
    fn frozen(
        &mut self,
        job: &EagerJob,
        x: &EagerTensor,
        matrix: EagerMatrix,
        base: EagerBase,
    ) -> EagerTensor {
        let rows = x.count.checked_div(matrix.inputs).unwrap_or(0);
        let (elements, count) =
            (matrix.inputs.saturating_mul(matrix.outputs), rows.saturating_mul(matrix.outputs));
        if base == EagerBase::Plain {
            return self.product_with(job, x, matrix, rows, false);
        }
        if base == EagerBase::Int8 {
            return self.in_8_bits(x, elements, count);
        }
        let unpacked = elements.saturating_mul(2);
        let scales = elements / NF4_BLOCK * 4;
        let x16 = self.cast(x, 2);
        let working = [scales, scales, unpacked].map(|bytes| self.take(bytes));
        let out = self.tensor(count, 2);
        drop(working);
        let (opening, working) = (scales, vec![unpacked]);
        let inputs = through(&x16);
        let node = EagerNode { inputs, opening, working, ..EagerNode::default() };
        let out = self.record(out, node);
        let wide = self.cast(&out, x.width);
        drop(out);
        drop(x16);
        // PEFT copies what 4-bit weights give.
        self.shifted(&wide)
    }

    /// Rows in 8 bits with a scale each, sums in 32 bits, and float16 on the way; the matrix is unpacked in
    /// the input's type for the backward pass. bitsandbytes keeps the input itself: past that pass, and past
    /// a checkpoint, which let go only of what autograd saves.
    fn in_8_bits(&mut self, x: &EagerTensor, elements: u64, count: u64) -> EagerTensor {
        let half = self.take(x.count.saturating_mul(2));
        let rows = self.take(x.count);
        drop(half);
        let working = [4, 2].map(|width: u64| self.take(count.saturating_mul(width)));
        let out = self.tensor(count, x.width);
        self.product();
        drop((working, rows));
        self.retained.push(x.memory.clone());
        let working = vec![elements.saturating_mul(x.width)];
        self.record(out, EagerNode { inputs: through(x), working, ..EagerNode::default() })
    }

    /// What adapters of a rank add: two thin products in 32 bits, scaled.
    fn adapted(
        &mut self,
        job: &EagerJob,
        x: &EagerTensor,
        base: EagerTensor,
        matrix: EagerMatrix,
        rank: u64,
    ) -> EagerTensor {
        let width = base.width;
        let rows = x.count.checked_div(matrix.inputs).unwrap_or(0);
        let thin = EagerJob { weight_width: 4, adapters: None, amp: job.amp, ..*job };
        let x = if job.amp { x.clone() } else { self.cast(x, 4) };
        let plain = EagerMatrix { bias: false, ..matrix };
        let down = EagerMatrix { weight: matrix.weight + super::ADAPTERS, outputs: rank, ..plain };
        let up = EagerMatrix { weight: matrix.weight + 2 * super::ADAPTERS, inputs: rank, ..plain };
        let a = self.product_with(&thin, &x, down, rows, true);
        let b = self.product_with(&thin, &a, up, rows, true);
        drop(a);
        let scaled = self.unary(&b, b.width, Saved::Nothing);
        drop(b);
        let sum = self.add(&base, &scaled);
        drop((scaled, base));
        self.cast(&sum, width)
    }

    /// A norm of vectors of a width, whose scale is trained where the job trains all weights.
    pub(super) fn norm(
        &mut self,
        job: &EagerJob,
        (kind, width): (NormKind, u64),
        x: &EagerTensor,
    ) -> EagerTensor {
        match kind {
            NormKind::Layer => {
                let x = if job.amp { self.cast(x, 4) } else { x.clone() };
                self.unary(&x, x.width, Saved::Input)
            }
            NormKind::Plain32 => {
                let wide = self.cast(x, 4);
                let out = self.unary(&wide, 4, Saved::Input);
                drop(wide);
                self.cast(&out, x.width)
            }
            NormKind::Rms => {
                let scaled = self.root_mean_square(x, false);
                let narrow = self.cast(&scaled, x.width);
                let out = self.scale(job, &narrow, (width, true));
                drop((narrow, scaled));
                out
            }
            NormKind::RmsHeld => {
                let scaled = self.root_mean_square(x, false);
                let out = self.scale(job, &scaled, (width, true));
                let narrow = self.cast(&out, x.width);
                drop(out);
                drop(scaled);
                narrow
            }
            NormKind::RmsInside | NormKind::Centered => {
                let scaled = self.root_mean_square(x, kind == NormKind::Centered);
                let out = self.scale(job, &scaled, (width, kind == NormKind::Centered));
                drop(scaled);
                self.cast(&out, x.width)
            }
        }
    }

    /// In 32 bits: squares, their mean, and the input by its root; the mean is taken off first, for
    /// each of the two, where that is asked for.
    fn root_mean_square(&mut self, x: &EagerTensor, centered: bool) -> EagerTensor {
        let wide = self.cast(x, 4);
        let mean = centered.then(|| {
            let none = self.tensor(0, 4);
            let inputs = to(&wide, wide.bytes());
            self.record(none, EagerNode { inputs, ..EagerNode::default() })
        });
        let base = self.centered(&wide, mean.as_ref());
        let squares = self.tensor(wide.count, 4);
        // Its gradient is made of the mean's, of its derivative, and of that times two.
        let working = vec![base.bytes(); 3];
        let squares = self.record(squares, EagerNode { working, ..saving(&base) });
        let path = squares.node;
        drop((squares, base));
        let base = self.centered(&wide, mean.as_ref());
        let out = self.tensor(wide.count, 4);
        let mut node = saving(&base);
        node.inputs.extend(path.map(|path| (path, Gradient::New(1))));
        self.record(out, node)
    }

    /// Less its mean, where there is one; what goes to that is summed up at once.
    fn centered(&mut self, x: &EagerTensor, mean: Option<&EagerTensor>) -> EagerTensor {
        let Some(mean) = mean else { return x.clone() };
        let out = self.tensor(x.count, x.width);
        let inputs = x.node.map(|node| (node, Gradient::Same)).into_iter();
        let inputs = inputs.chain(to(mean, 0)).collect();
        self.record(out, EagerNode { inputs, brief: vec![x.bytes()], ..EagerNode::default() })
    }

    /// By a vector, which is saved with what it scales where it is trained. Where the vector is the product's
    /// first side, its gradient comes after the input's.
    fn scale(
        &mut self,
        job: &EagerJob,
        x: &EagerTensor,
        (width, inputs_first): (u64, bool),
    ) -> EagerTensor {
        let out = self.tensor(x.count, x.width);
        let trains = job.trains() && self.records;
        let node = EagerNode {
            inputs: to(x, x.bytes()),
            // The vector is saved in any case.
            saved: vec![if trains { x.memory.clone() } else { self.take(0) }],
            working: if trains { vec![x.bytes()] } else { Vec::new() },
            brief: if trains {
                vec![column_sums(x.count.checked_div(width).unwrap_or(0), width)]
            } else {
                Vec::new()
            },
            inputs_first,
            ..EagerNode::default()
        };
        self.record(out, node)
    }
}
