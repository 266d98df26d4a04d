"""What CUDA's kernels allocate that a run without data does not show, by PyTorch 2.11's sources and
by traces of single operators on an H200 (docs/results/2026-11-16-estimates-torch-h200.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

MIB = 1 << 20

aten = torch.ops.aten

#: Matrix products of cuBLAS, and those of them that add a bias by cuBLASLt.
PRODUCTS = {
    aten.mm.default,
    aten.bmm.default,
    aten.addmm.default,
    aten.baddbmm.default,
    aten.addbmm.default,
    aten.addmv.default,
    aten.mv.default,
    aten._addmm_activation.default,
}
WITH_BIAS = {aten.addmm.default, aten._addmm_activation.default}

#: Reductions, with the bytes that a thread carries for each element.
REDUCTIONS = {
    aten.sum.default: 4,
    aten.sum.dim_IntList: 4,
    aten.mean.default: 4,
    aten.mean.dim: 4,
    aten.amax.default: 4,
    aten.amin.default: 4,
    aten.linalg_vector_norm.default: 4,
    aten.norm.ScalarOpt_dim: 4,
    aten.norm.Scalar: 4,
    aten.var.correction: 16,
    aten.var_mean.correction: 16,
    aten.std.correction: 16,
}

#: What scaled dot product attention is computed by.
CUDNN, FLASH, EFFICIENT, MATH = "cuDNN", "flash", "memory-efficient", "math"


@dataclass
class Rules:
    """How a GPU of this compute capability, with so many multiprocessors, runs operators."""

    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    attention: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    _workspaces: set[tuple[str, bool]] = field(default_factory=set)
    _held: list[int] = field(default_factory=list)

    @property
    def cublas_bytes(self) -> int:
        """cuBLAS's workspace for each thread's handle: 32 MiB from Hopper on, else 8,320 KiB."""
        return 32 * MIB if self.capability[0] in (9, 10) else 8320 << 10

    def before(self, run: Any, func: Any, args: Any, kwargs: Any) -> None:
        """What is there while the operator's results are made, and goes after it."""
        held = HELD.get(func.name())
        self._held = []
        if held is not None:
            self.used |= {"product"} if "4bit" in func.name() else {"int8 product"}
            place = run.place()
            self._held = [run.log.take(size, place, func.name()) for size in held(args) if size > 0]

    def after(self, run: Any, func: Any, args: Any, kwargs: Any, made: Any) -> None:
        """What an operator takes once its results have their memory."""
        for number in self._held:
            run.log.free(number)
        self._held = []
        backward = "backward " if torch._C._current_autograd_node() is not None else ""
        if func in PRODUCTS:
            self.used.add(f"{backward}product")
            self._workspace(run, "cuBLAS workspace", self.cublas_bytes)
            if func in WITH_BIAS and args[0].dim() == 1:
                self._workspace(run, "cuBLASLt workspace", MIB)
        elif func in REDUCTIONS:
            self._reduction(run, func, args, kwargs)
        else:
            name = func.name()
            if "cudnn" in name or func in CONVOLUTIONS:
                self.used |= {"cudnn", "cudnn backward"} if "backward" in name else {"cudnn"}
            temporary = TEMPORARIES.get(func)
            if temporary is not None:
                run.briefly(*temporary(args, made), operator=func.name())

    def _workspace(self, run: Any, name: str, size: int) -> None:
        # CUDA's backward passes run on a thread of their own, which has a handle of its own.
        key = name, torch._C._current_autograd_node() is not None
        if key not in self._workspaces:
            self._workspaces.add(key)
            run.for_good(size, name)

    def _reduction(self, run: Any, func: Any, args: Any, kwargs: Any) -> None:
        source = args[0]
        dims = dimensions(func, args, kwargs, source.dim())
        run.briefly(self.reduction_bytes(source, dims, REDUCTIONS[func]), operator=func.name())

    def reduction_bytes(self, source: Any, dims: list[int], carried: int) -> int:
        """What a reduction's blocks leave for each other, where several share an output."""
        inputs = 1
        for dim in dims:
            inputs *= source.shape[dim]
        if source.numel() == 0 or inputs <= 1:
            return 0
        outputs = source.numel() // inputs
        kept = [d for d in range(source.dim()) if d not in dims and source.shape[d] > 1]
        reduced = [d for d in dims if source.shape[d] > 1]
        fastest = not kept or min(source.stride(d) for d in reduced) < min(source.stride(d) for d in kept)
        width, height, vector = self._block(inputs, outputs, fastest, bool(kept), source, kept)
        threads = width * height
        each = -(-inputs // width) if fastest else inputs
        if each >= height * 16 or each >= 256:
            each = -(-each // height)
            step = 1 if fastest else width
        else:
            return 0
        grid = -(-(outputs // vector) // step)
        target = self.multiprocessors * (2048 // threads)
        if each < 256 or grid > target:
            return 0
        shares = max(min(-(-target // grid), -(-each // 16)), -(-each // 256))
        if shares <= 1:
            return 0
        size = carried * outputs * shares
        return int(size if fastest else size * width * vector)

    def _block(
        self, inputs: int, outputs: int, fastest: bool, partial: bool, source: Any, kept: list[int]
    ) -> tuple[int, int, int]:
        first, second, vector = (inputs, outputs, 1) if fastest else (outputs, inputs, 1)
        if fastest and not partial and first > 128:
            first //= 4
        elif not fastest and min(source.stride(d) for d in kept) == 1:
            last = min(kept, key=source.stride)
            while vector < 4 and source.shape[last] % (2 * vector) == 0:
                vector *= 2
            first //= vector
        most = 512 // vector
        wide = min(_power(first), most)
        width = min(wide, 32)
        height = min(min(_power(second), most), most // width)
        return min(wide, most // height), height, vector

    def attention_kernel(self, query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, shared: bool) -> str:
        """Which kernel PyTorch chooses for scaled dot product attention."""
        half = query.dtype in (torch.float16, torch.bfloat16)
        heads = query.shape[-3] if query.dim() == 4 else 1
        if query.dim() != 4 or self.capability < (8, 0) and not half:
            return MATH
        same = heads == key.shape[1] == value.shape[1] and query.shape[0] == key.shape[0]
        grouped = shared and key.shape[1] == value.shape[1] and heads % key.shape[1] == 0
        wide, out = query.shape[-1], value.shape[-1]
        dense = all(tensor.stride(-1) == 1 for tensor in (query, key, value))
        if not dense or 0 in (query.shape[2], key.shape[2]) or not (same or grouped) or query.requires_grad and mask is not None and mask.requires_grad:
            return MATH if not same or not dense else EFFICIENT
        if half and self._cudnn(query, key, wide, out, dropout):
            return CUDNN
        square = not causal or query.shape[2] == key.shape[2]
        if half and mask is None and wide == out <= 256 and square and self.capability >= (8, 0):
            return FLASH
        aligned = 8 if half else 4
        if same and wide % aligned == 0 and out % aligned == 0:
            return EFFICIENT
        return MATH

    def _cudnn(self, query: Any, key: Any, wide: int, out: int, dropout: float) -> bool:
        if self.capability[0] not in (9, 10) or not torch.backends.cuda.cudnn_sdp_enabled():
            return False
        if wide % 8 or out % 8 or key.shape[2] == 1 or (dropout > 0 and query.shape[2] == 1):
            return False
        return max(wide, out) <= 256 if self.capability == (9, 0) else max(wide, out) <= 128


def _power(number: int) -> int:
    """The largest power of two that is no larger."""
    return 1 << max(number, 1).bit_length() - 1


def dimensions(func: Any, args: Any, kwargs: Any, count: int) -> list[int]:
    """The dimensions that a reduction is over."""
    names = [argument.name for argument in func._schema.arguments]
    dims: Any = kwargs.get("dim")
    if dims is None and "dim" in names and names.index("dim") < len(args):
        dims = args[names.index("dim")]
    if dims is None or dims == []:
        return list(range(count))
    dims = [dims] if isinstance(dims, int) else dims
    return [dim % count for dim in dims] if count else []


def _bytes(tensor: Any) -> int:
    return int(tensor.numel() * tensor.element_size())


def _softmax_backward(args: Any, made: Any) -> tuple[int, ...]:
    return (_bytes(args[0]),)


def _embedding_backward(args: Any, made: Any) -> tuple[int, ...]:
    """Rows are sorted by where they go, and summed in parts of at most ten."""
    count, width, padding = args[1].numel(), args[0].shape[-1], args[3]
    if count <= 3072 and padding < 0:
        return ()
    return (8 * count,) * 4 + ((count + count // 10) * 8, (count + count // 10) * width * 4)


def _cudnn_backward(args: Any, made: Any) -> tuple[int, ...]:
    """Query gradients in 32 bits, a sum for each row, and with shared heads those of each head."""
    query, key, value = args[1], args[2], args[3]
    batch, heads, rows, wide = query.shape
    size = batch * heads * rows * (wide + 1) * 4 + 256
    if key.shape[1] != heads:
        size += batch * heads * key.shape[2] * (wide + value.shape[-1]) * query.element_size()
    return (size,)


def _cudnn_forward(args: Any, made: Any) -> tuple[int, ...]:
    batch, heads, rows, wide = args[0].shape
    return (256 if rows > 1 else batch * heads * (32 * wide + 64) + 256,)


def _efficient_backward(args: Any, made: Any) -> tuple[int, ...]:
    query = args[1]
    batch, heads, rows, wide = query.shape
    padded = wide if wide <= 64 else -(-wide // 128) * 128
    product = batch * heads * rows * args[3].shape[-1] * 4
    return (max(product, batch * heads * (-(-rows // 64) * 64 * padded * 4 + 256)), batch * heads * rows * 4)


def _flash_backward(args: Any, made: Any) -> tuple[int, ...]:
    """Query gradients in 32 bits, by rows and widths that the kernel rounds up."""
    query, key = args[1], args[2]
    batch, heads, rows, wide = query.shape
    rounded, padded = -(-rows // 128) * 128, -(-wide // 32) * 32 if wide <= 128 else -(-wide // 64) * 64
    size = batch * heads * rounded * (padded + 1) * 4
    if key.shape[1] != heads:
        size += 2 * batch * heads * key.shape[2] * wide * query.element_size()
    return (size,)


def _convolution(args: Any, made: Any) -> tuple[int, ...]:
    """cuDNN's copies of input, filter and output in the order that tensor cores want."""
    image, weights, groups = args[0], args[1], args[8]
    if weights.shape[2:].numel() == 1 or (groups > 1 and weights.shape[1] == 1) or weights.dim() < 4:
        return ()
    return (_bytes(image) + _bytes(weights) + _bytes(made),)


def _convolution_backward(args: Any, made: Any) -> tuple[int, ...]:
    grad, image, weights, groups = args[0], args[1], args[2], args[9]
    if weights.shape[2:].numel() == 1 or (groups > 1 and weights.shape[1] == 1) or weights.dim() < 4:
        return ()
    return (_bytes(grad) + _bytes(image) + 14 * _bytes(weights),)


CONVOLUTIONS = {aten.convolution.default, aten.convolution_backward.default}

#: Operators whose last result has its memory first.
LAST_FIRST = {"bitsandbytes::quantize_4bit", "bitsandbytes::quantize_blockwise"}


def _int8_product(args: Any) -> tuple[int, ...]:
    """Sums in 32 bits, and the result in float16 before it is in the type that is wanted."""
    count = args[0].numel() // args[0].shape[-1] * args[1].shape[0]
    return (4 * count, 2 * count)


def _four_bit_product(args: Any) -> tuple[int, ...]:
    """Beyond a few rows: the weights as they are multiplied, and their scales in 32 bits."""
    given, shape = args[0], args[2]
    if given.numel() // given.shape[-1] <= 16:
        return ()
    scales = shape[0] * shape[1] // args[4] * 4
    return (scales, scales, shape[0] * shape[1] * given.element_size())


#: What bitsandbytes' operators make before their result.
HELD = {"bitsandbytes::int8_scaled_mm": _int8_product, "bitsandbytes::gemm_4bit": _four_bit_product}

#: What a kernel takes while it runs, by its arguments and results.
TEMPORARIES = {
    aten._softmax_backward_data.default: _softmax_backward,
    aten.embedding_dense_backward.default: _embedding_backward,
    aten._scaled_dot_product_cudnn_attention.default: _cudnn_forward,
    aten._scaled_dot_product_cudnn_attention_backward.default: _cudnn_backward,
    aten._scaled_dot_product_efficient_attention_backward.default: _efficient_backward,
    aten._scaled_dot_product_flash_attention_backward.default: _flash_backward,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
}
