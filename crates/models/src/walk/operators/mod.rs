//! One rule for each operator: from the extents of its inputs to those of its outputs.

mod arrange;
mod combine;
mod slide;

use super::shapes::{Dim, Known};
use crate::onnx::{OnnxAttribute, OnnxNode};

/// A node with what is known of its inputs.
pub(super) struct OperatorCall<'a> {
    pub(super) node: &'a OnnxNode,
    pub(super) shapes: Vec<Option<&'a [Dim]>>,
    pub(super) elements: Vec<u64>,
    pub(super) known: Vec<Option<&'a [f64]>>,
    pub(super) opset: u64,
}

/// An output.
pub(super) struct OperatorOutput {
    pub(super) shape: Vec<Dim>,
    pub(super) element: u64,
}

/// Why there are no extents.
pub(super) enum ShapeRefusal {
    /// The operator is not known here.
    Unknown,
    /// An input's extents are not known, which was said where it began.
    Follows,
    /// They depend on the data.
    Data(String),
    /// The inputs do not go together.
    Impossible(String),
}

pub(super) type OperatorShapes = Result<Vec<OperatorOutput>, ShapeRefusal>;

const BOOL: u64 = 9;
const I64: u64 = 7;
const F32: u64 = 1;

impl<'a> OperatorCall<'a> {
    /// The extents of an input.
    pub(super) fn shape(&self, n: usize) -> Result<&'a [Dim], ShapeRefusal> {
        self.shapes.get(n).copied().flatten().ok_or(ShapeRefusal::Follows)
    }

    /// Whether an optional input is there.
    pub(super) fn has(&self, n: usize) -> bool {
        self.node.inputs.get(n).is_some_and(Option::is_some)
    }

    /// The elements of an input that is known.
    pub(super) fn list(&self, n: usize) -> Option<&'a [f64]> {
        self.known.get(n).copied().flatten()
    }

    /// Whole numbers from an input or, in older versions, from a setting.
    pub(super) fn numbers(
        &self,
        input: usize,
        name: &str,
    ) -> Result<Option<Vec<i64>>, ShapeRefusal> {
        if self.has(input) {
            let list = self.list(input).ok_or_else(|| self.data(name))?;
            return Ok(Some(list.iter().map(|&n| n as i64).collect()));
        }
        Ok(self.node.ints(name).map(<[i64]>::to_vec))
    }

    pub(super) fn data(&self, what: &str) -> ShapeRefusal {
        ShapeRefusal::Data(format!(
            "its {what} is only known when it runs; what follows is not counted"
        ))
    }

    pub(super) fn element(&self, n: usize) -> u64 {
        self.elements.get(n).copied().unwrap_or(0)
    }

    fn one(&self, shape: Vec<Dim>) -> OperatorShapes {
        Ok(vec![OperatorOutput { shape, element: self.element(0) }])
    }

    fn typed(&self, shape: Vec<Dim>, element: u64) -> OperatorShapes {
        Ok(vec![OperatorOutput { shape, element }])
    }

    /// A setting or input that names an axis, counted from the front.
    pub(super) fn axis(&self, axis: i64, rank: usize) -> Result<usize, ShapeRefusal> {
        let rank = rank as i64;
        let place = if axis < 0 { axis + rank } else { axis };
        if (0..rank.max(1)).contains(&place) {
            Ok(place as usize)
        } else {
            Err(ShapeRefusal::Impossible(format!("axis {axis} of {rank}")))
        }
    }
}

/// The outputs of a node.
pub(super) fn infer(call: &OperatorCall<'_>) -> OperatorShapes {
    match call.node.domain.as_str() {
        "" => standard(call),
        "com.microsoft" | "com.microsoft.nchwc" => contributed(call),
        _ => Err(ShapeRefusal::Unknown),
    }
}

/// Operators whose output is like their first input.
const SAME: [&str; 51] = [
    "Abs",
    "Acos",
    "Asin",
    "Atan",
    "BatchNormalization",
    "BitwiseNot",
    "Ceil",
    "Celu",
    "Clip",
    "Cos",
    "Cosh",
    "CumSum",
    "Dropout",
    "Elu",
    "Erf",
    "Exp",
    "Floor",
    "Gelu",
    "GroupNormalization",
    "HardSigmoid",
    "HardSwish",
    "Hardmax",
    "Identity",
    "InstanceNormalization",
    "LRN",
    "LayerNormalization",
    "LeakyRelu",
    "Log",
    "LogSoftmax",
    "LpNormalization",
    "MeanVarianceNormalization",
    "Mish",
    "Neg",
    "Not",
    "PRelu",
    "RMSNormalization",
    "Reciprocal",
    "Relu",
    "ReverseSequence",
    "Round",
    "Scatter",
    "ScatterElements",
    "ScatterND",
    "Selu",
    "Shrink",
    "Sigmoid",
    "Sign",
    "Sin",
    "Sinh",
    "Softmax",
    "Softplus",
];
/// More of them.
const SAME_TOO: [&str; 7] =
    ["Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu"];
/// Operators on two or more tensors of any shapes that go together.
const BROADCAST: [&str; 14] = [
    "Add",
    "BitShift",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Div",
    "Max",
    "Mean",
    "Min",
    "Mod",
    "Mul",
    "Pow",
    "Sub",
    "Sum",
];
/// The same with a truth as the result.
const COMPARE: [&str; 8] =
    ["And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Or", "Xor"];
const REDUCE: [&str; 10] = [
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "ReduceSumSquare",
];

fn standard(call: &OperatorCall<'_>) -> OperatorShapes {
    let op = call.node.op.as_str();
    match op {
        _ if SAME.contains(&op) || SAME_TOO.contains(&op) => same(call),
        _ if BROADCAST.contains(&op) => combine::broadcast(call, None),
        _ if COMPARE.contains(&op) => combine::broadcast(call, Some(BOOL)),
        _ if REDUCE.contains(&op) => combine::reduce(call),
        "IsNaN" | "IsInf" => call.typed(call.shape(0)?.to_vec(), BOOL),
        "Cast" => call.typed(call.shape(0)?.to_vec(), call.node.int("to").unwrap_or(0) as u64),
        "CastLike" => call.typed(call.shape(0)?.to_vec(), call.element(1)),
        "Where" => combine::select(call),
        "MatMul" | "MatMulInteger" => combine::matmul(call),
        "Gemm" => combine::gemm(call),
        "Einsum" => combine::einsum(call),
        "ArgMax" | "ArgMin" => combine::arg(call),
        "TopK" => combine::top(call),
        "LSTM" | "GRU" | "RNN" => combine::recurrent(call),
        "QLinearMatMul" => combine::quantized_matmul(call),
        "Conv" | "ConvInteger" | "QLinearConv" => slide::conv(call),
        "ConvTranspose" => slide::conv_transpose(call),
        "MaxPool" | "AveragePool" | "LpPool" => slide::pool(call),
        "GlobalAveragePool" | "GlobalMaxPool" | "GlobalLpPool" => slide::global(call),
        "Resize" | "Upsample" => slide::resize(call),
        "STFT" => slide::stft(call),
        "GridSample" => slide::grid_sample(call),
        "RoiAlign" => slide::roi_align(call),
        "QuantizeLinear" => quantized(call),
        "DequantizeLinear" => call.typed(call.shape(0)?.to_vec(), call.element(1)),
        "DynamicQuantizeLinear" => dynamic_quantize(call),
        "Constant" => constant(call),
        "NonMaxSuppression" | "NonZero" | "Unique" | "Compress" => Err(ShapeRefusal::Data(
            "how much it keeps depends on the data; what follows is not counted".into(),
        )),
        "If" | "Loop" | "Scan" | "SequenceMap" => Err(ShapeRefusal::Data(
            "a branch or loop: what it makes is counted only as far as the file declares it".into(),
        )),
        _ => arrange::infer(call),
    }
}

fn contributed(call: &OperatorCall<'_>) -> OperatorShapes {
    match call.node.op.as_str() {
        "QuickGelu" | "Gelu" | "FastGelu" | "BiasGelu" | "BiasSplitGelu" | "FusedConvAdd" => {
            same(call)
        }
        "FusedConv" => slide::conv(call),
        "FusedMatMul" | "FusedGemm" => {
            if call.node.op == "FusedGemm" {
                combine::gemm(call)
            } else {
                combine::matmul(call)
            }
        }
        "MatMulNBits" => combine::nbits(call),
        "SkipLayerNormalization"
        | "SkipSimplifiedLayerNormalization"
        | "SimplifiedLayerNormalization" => same(call),
        "Conv" => slide::conv(call),
        "MaxPool" | "AveragePool" => slide::pool(call),
        "GlobalMaxPool" | "GlobalAveragePool" => slide::global(call),
        "ReorderInput" => slide::reorder_input(call),
        "ReorderOutput" => slide::reorder_output(call),
        "Upsample" => slide::nchwc_upsample(call),
        "QLinearAdd" | "QLinearMul" | "QLinearSigmoid" | "QLinearLeakyRelu" | "QLinearSoftmax" => {
            same(call)
        }
        _ => Err(ShapeRefusal::Unknown),
    }
}

/// One output like the first input.
fn same(call: &OperatorCall<'_>) -> OperatorShapes {
    call.one(call.shape(0)?.to_vec())
}

fn quantized(call: &OperatorCall<'_>) -> OperatorShapes {
    let element = if call.has(2) {
        call.element(2)
    } else {
        call.node.int("output_dtype").filter(|&n| n > 0).unwrap_or(2) as u64
    };
    call.typed(call.shape(0)?.to_vec(), element)
}

fn dynamic_quantize(call: &OperatorCall<'_>) -> OperatorShapes {
    Ok(vec![
        OperatorOutput { shape: call.shape(0)?.to_vec(), element: 2 },
        OperatorOutput { shape: Vec::new(), element: F32 },
        OperatorOutput { shape: Vec::new(), element: 2 },
    ])
}

fn constant(call: &OperatorCall<'_>) -> OperatorShapes {
    let node = call.node;
    if let Some(OnnxAttribute::Tensor(tensor)) = node.attributes.get("value") {
        let declared = tensor.declared.clone().unwrap_or_default();
        let dims = declared.into_iter().map(|extent| match extent {
            crate::onnx::DeclaredExtent::Fixed(n) => Dim::fixed(n),
            _ => Dim::fixed(0),
        });
        return call.typed(dims.collect(), tensor.element);
    }
    let list = |n: usize, element| call.typed(vec![Dim::fixed(n as u64)], element);
    for (name, attribute) in &node.attributes {
        match (name.as_str(), attribute) {
            ("value_int", _) => return call.typed(Vec::new(), I64),
            ("value_float", _) => return call.typed(Vec::new(), F32),
            ("value_ints", OnnxAttribute::Ints(ints)) => return list(ints.len(), I64),
            _ => {}
        }
    }
    Err(ShapeRefusal::Unknown)
}

/// An extent that was computed from others: fixed where all of them are.
pub(super) fn computed(n: u64, from: &[Dim]) -> Dim {
    let fixed = from.iter().all(|dim| dim.known == Known::Fixed);
    Dim { n, known: if fixed { Known::Fixed } else { Known::Given } }
}
