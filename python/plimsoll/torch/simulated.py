"""PyTorch as if there were a CUDA device: calls that name one, operators that PyTorch chooses by the
device, autocast, and `torch.cuda`."""

from __future__ import annotations

import functools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # before anything of torch.Tensor is replaced, which it looks at
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from . import kernels
from .dataless import CUDA, META, Dataless, Run, subclassed
from .operators import SPECIAL

aten = torch.ops.aten


def _is_cuda(word: Any) -> bool:
    if isinstance(word, str):
        return word == "cuda" or word.startswith("cuda:")
    return isinstance(word, torch.device) and word.type == "cuda"


class Calls(TorchFunctionMode):
    """Python's calls into PyTorch: `cuda` becomes the device without data, and what PyTorch decides
    in C++ by the device is decided here."""

    def __init__(self, run: Run) -> None:
        super().__init__()
        self.run = run

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (torch.device, torch._C._nn._parse_to):
            return func(*args, **kwargs)
        replaced = REPLACED.get(func)
        if replaced is not None:
            answer = replaced(self.run, func, args, kwargs)
            if answer is not NotImplemented:
                return answer
        if "device" in kwargs and (_is_cuda(kwargs["device"]) or type(kwargs["device"]) is int):
            kwargs["device"] = META
        elif any(_is_cuda(word) for word in args):
            args = tuple(META if _is_cuda(word) else word for word in args)
        return func(*args, **kwargs)


def _dataless(args: Any) -> bool:
    return any(isinstance(leaf, Dataless) for leaf in tree_leaves(args))


def _from_values(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    """torch.tensor and the like: made on the CPU, so that its values are known, and copied."""
    if not _is_cuda(kwargs.get("device")) or _dataless(args):
        return NotImplemented
    grad = kwargs.pop("requires_grad", False)
    made = func(*args, **{**kwargs, "device": "cpu"}).to(META)
    return made.requires_grad_() if grad else made


def _cuda(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0].to(META)


def _same(run: Run, func: Any, args: Any, kwargs: Any) -> Any:
    return args[0]


# Operators that PyTorch takes apart by the device. Each stands in for the one of that name.


def dropout(run: Run, source: Any, p: float, train: bool) -> Any:
    if not train or p == 0 or source.numel() == 0:
        return source.alias() if hasattr(source, "alias") else source.view_as(source)
    return torch.native_dropout(source, p, True)[0]


def softmax(run: Run, source: Any, dim: int, dtype: Any = None) -> Any:
    return _softmax(aten._softmax, source, dim, dtype)


def log_softmax(run: Run, source: Any, dim: int, dtype: Any = None) -> Any:
    return _softmax(aten._log_softmax, source, dim, dtype)


def _softmax(kernel: Any, source: Any, dim: int, dtype: Any) -> Any:
    """From 16 to 32 bits within the kernel, which CUDA has for float16 alone."""
    if source.dtype is torch.float16 and dtype is torch.float32:
        return kernel(source, dim, True)
    return kernel(source if dtype is None else source.to(dtype), dim, False)


def rms_norm(run: Run, source: Any, shape: Any, weight: Any = None, eps: float | None = None) -> Any:
    return aten._fused_rms_norm(source, list(shape), weight, eps)[0]


def scaled_dot_product_attention(
    run: Run,
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: Any = None,
    enable_gqa: bool = False,
) -> Any:
    return attention(run, query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


REPLACED_OPERATORS: dict[str, Callable[..., Any]] = {
    "dropout": dropout,
    "softmax.int": softmax,
    "log_softmax.int": log_softmax,
    "rms_norm": rms_norm,
    "scaled_dot_product_attention": scaled_dot_product_attention,
}


def attention(
    run: Run, query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: Any, grouped: bool
) -> Any:
    """Scaled dot product attention by the kernel that CUDA would take."""
    kernel = run.rules.attention_kernel(query, key, value, mask, dropout, causal, grouped)
    run.rules.attention[kernel] = run.rules.attention.get(kernel, 0) + 1
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.where(mask, torch.zeros((), dtype=query.dtype, device=META), -torch.inf).to(query.dtype)
    grad = torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value))
    if kernel == kernels.CUDNN:
        if mask is not None:
            mask = mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2])
        return aten._scaled_dot_product_cudnn_attention(query, key, value, mask, grad, dropout, causal, False, scale=scale)[0]
    if kernel == kernels.FLASH:
        return _flash(query, key, value, dropout, causal, scale)
    if kernel == kernels.EFFICIENT:
        if mask is not None:
            mask = _aligned(mask.expand(query.shape[0], query.shape[1], query.shape[2], key.shape[2]))
        return aten._scaled_dot_product_efficient_attention(query, key, value, mask, grad, dropout, causal, scale=scale)[0]
    return _math(query, key, value, mask, dropout, causal, scale, grouped)


def _flash(query: Any, key: Any, value: Any, dropout: float, causal: bool, scale: Any) -> Any:
    wide = query.shape[-1]
    if wide % 8:
        scale = wide**-0.5 if scale is None else scale
        query, key, value = (torch.nn.functional.pad(t, (0, 8 - wide % 8)) for t in (query, key, value))
    return aten._scaled_dot_product_flash_attention(query, key, value, dropout, causal, False, scale=scale)[0][..., :wide]


def _aligned(mask: Any) -> Any:
    """As the memory-efficient kernel wants it: rows in steps of 16 elements."""
    last = mask.shape[-1]
    if last % 16:
        padded = torch.nn.functional.pad(mask, (0, 16 - last % 16))
        return padded[..., :last]
    return mask if all(stride % 16 == 0 for stride in mask.stride()[:3]) else mask.contiguous()


def _math(query: Any, key: Any, value: Any, mask: Any, dropout: float, causal: bool, scale: Any, grouped: bool) -> Any:
    """By matrix products, with scores stored, in 32 bits. What a name holds lives as long as in C++."""
    kind = query.dtype
    low = kind in (torch.float16, torch.bfloat16)
    root = (query.shape[-1] ** -0.5 if scale is None else abs(scale)) ** 0.5
    wide_query, wide_key, wide_value = (t.float() if low else t for t in (query, key, value))
    scaled = wide_query * root
    if causal:
        below = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=META).tril()
        mask = torch.where(below, torch.zeros((), dtype=scaled.dtype, device=META), -torch.inf).to(scaled.dtype)
        del below
    keys, values = wide_key, wide_value
    if grouped and query.shape[-3] != key.shape[-3]:
        keys = wide_key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        values = wide_value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = torch.matmul(scaled, keys.transpose(-2, -1) * root)
    if mask is not None:
        scores.add_(mask)
    scores = _safe_softmax(scores)
    if dropout > 0:
        scores = torch.native_dropout(scores, dropout, True)[0]
    # PyTorch gives the scores back besides, in the type of the inputs, and makes those first.
    given_back = scores.to(kind)
    out = torch.matmul(scores, values).to(kind)
    del given_back
    return out


def _safe_softmax(scores: Any) -> Any:
    """A softmax that gives 0 for rows that are masked out; while it runs there is a byte a score."""
    weights = aten._softmax(scores, -1, False)
    with torch.no_grad():
        masked = torch.eq(scores.detach(), -torch.inf)
        masked.all(-1, keepdim=True)
    return weights


REPLACED: dict[Any, Callable[[Run, Any, Any, Any], Any]] = {
    torch.tensor: _from_values,
    torch.as_tensor: _from_values,
    torch.asarray: _from_values,
    torch.Tensor.cuda: _cuda,
    torch.Tensor.pin_memory: _same,
}

# Autocast: PyTorch's own looks at the device in C++, and passes these tensors by.

LOWER = """conv1d conv2d conv3d conv_transpose1d conv_transpose2d.input conv_transpose3d.input convolution linear matmul mm
bmm mv addmm addmv addr baddbmm addbmm chain_matmul linalg_multi_dot prelu scaled_dot_product_attention""".split()
UPPER = """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm cosine_similarity poisson_nll_loss
cosine_embedding_loss nll_loss nll_loss2d hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss
margin_ranking_loss multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp""".split()
SET_DTYPE = """softmax.int log_softmax.int prod prod.dim_int cumprod cumsum linalg_vector_norm sum sum.dim_IntList""".split()


class Operators:
    """Autocast by operators in Python, with its cache of weights that were cast, and the stand-ins."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.cache: dict[int, tuple[Any, Any]] = {}

    def cast(self, tensor: Any, dtype: Any) -> Any:
        if not isinstance(tensor, Dataless) or not tensor.is_floating_point() or tensor.dtype in (dtype, torch.float64):
            return tensor
        kept = tensor.dtype is torch.float32 and tensor.requires_grad and tensor.is_leaf and tensor._base is None
        if not kept or dtype is torch.float32 or not torch.is_autocast_cache_enabled():
            return tensor.to(dtype)
        if id(tensor) not in self.cache:
            self.cache[id(tensor)] = (tensor, tensor.to(dtype))
        return self.cache[id(tensor)][1]

    def kernel(self, func: Any, how: str) -> Callable[..., Any]:
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCUDA)

        def call(*args: Any, **kwargs: Any) -> Any:
            with torch._C._ExcludeDispatchKeyGuard(keys):
                dtype = torch.get_autocast_dtype("cuda") if how == "lower" else torch.float32
                if how == "set":
                    first = args[0]
                    if kwargs.get("dtype") is None and first.dtype in (torch.float16, torch.bfloat16):
                        kwargs["dtype"] = torch.float32
                    return func(*args, **kwargs)
                if any(isinstance(leaf, torch.Tensor) and leaf.dtype is torch.float64 for leaf in tree_leaves((args, kwargs))):
                    return func(*args, **kwargs)
                args, kwargs = tree_map(
                    lambda leaf: self.cast(leaf, dtype) if isinstance(leaf, torch.Tensor) else leaf, (args, kwargs)
                )
                return func(*args, **kwargs)

        return call

    @contextmanager
    def installed(self) -> Iterator[None]:
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for how, names in (("lower", LOWER), ("upper", UPPER), ("set", SET_DTYPE)):
                for name in names:
                    packet, _, overload = name.partition(".")
                    func = getattr(getattr(aten, packet), overload or "default")
                    library.impl(name, self.kernel(func, how), "AutocastCUDA")
            for name, stand_in in REPLACED_OPERATORS.items():
                library.impl(name, functools.partial(stand_in, self.run), "AutogradCUDA")
        try:
            with mock.patch.object(torch, "clear_autocast_cache", self.cache.clear):
                yield
        finally:
            self.cache.clear()
            library._destroy()


def _memory(run: Run) -> dict[str, Callable[..., Any]]:
    log = run.log

    def allocated(*_: Any, **__: Any) -> int:
        return sum(-(-block.size // 512) * 512 for block in log.blocks if block.freed is None)

    return {
        "memory_allocated": allocated,
        "memory_reserved": allocated,
        "max_memory_allocated": allocated,
        "max_memory_reserved": allocated,
        "empty_cache": log.give_back,
        "reset_peak_memory_stats": lambda *_, **__: log.count_anew(),
        "reset_max_memory_allocated": lambda *_, **__: log.count_anew(),
    }


def _device(run: Run, total: int) -> dict[str, Callable[..., Any]]:
    major, minor = run.rules.capability
    about = types.SimpleNamespace(
        name="simulated", major=major, minor=minor, total_memory=total, warp_size=32,
        multi_processor_count=run.rules.multiprocessors, is_integrated=0, L2_cache_size=50 << 20,
    )
    return {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_, **__: major >= 8,
        "init": lambda: None,
        "_lazy_init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda *_: None,
        "synchronize": lambda *_, **__: None,
        "get_device_capability": lambda *_: (major, minor),
        "get_device_name": lambda *_: about.name,
        "get_device_properties": lambda *_: about,
        "mem_get_info": lambda *_: (total, total),
        "manual_seed": lambda *_: None,
        "manual_seed_all": lambda *_: None,
        "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda *_, **__: None,
        "is_current_stream_capturing": lambda: False,
    }


def _accelerator() -> dict[str, Callable[..., Any]]:
    # PyTorch's optimizers ask the stream whether a graph is recorded on it.
    stream = types.SimpleNamespace(is_capturing=lambda: False)
    return {
        "empty_cache": lambda *_, **__: None,
        "synchronize": lambda *_, **__: None,
        "current_stream": lambda *_, **__: stream,
    }


@contextmanager
def cuda_device(run: Run, total: int) -> Iterator[None]:
    """Within it PyTorch has one CUDA device, without memory."""
    for name, stand_in in REPLACED_OPERATORS.items():
        packet, _, overload = name.partition(".")
        run.stand_ins[getattr(getattr(aten, packet), overload or "default")] = stand_in
    run.special.update(SPECIAL)
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*CUDA is not available.*")
        for name, answer in {**_memory(run), **_device(run, total)}.items():
            if hasattr(torch.cuda, name):
                stack.enter_context(mock.patch.object(torch.cuda, name, answer))
        for name, answer in _accelerator().items():
            if hasattr(torch, "accelerator") and hasattr(torch.accelerator, name):
                stack.enter_context(mock.patch.object(torch.accelerator, name, answer))
        stack.enter_context(mock.patch.object(torch.Tensor, "_make_subclass", staticmethod(subclassed)))
        for supported in _supported_types():
            supported.append(Dataless)
            stack.callback(supported.remove, Dataless)
        # A module's parameters become tensors without data when it moves: `.data` alone would leave their
        # type, and autocast would pass them by.
        swapped = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        stack.callback(torch.__future__.set_swap_module_params_on_conversion, swapped)
        # What a compiler would make of it is not known; it runs as written.
        stack.enter_context(mock.patch.object(torch, "compile", _as_written))
        stack.enter_context(Operators(run).installed())
        stack.enter_context(run)
        stack.enter_context(Calls(run))
        yield


def _supported_types() -> list[list[Any]]:
    """The types that PyTorch's optimizers and clipping take in groups."""
    modules = (sys.modules.get(name) for name in ("torch.optim.optimizer", "torch.utils._foreach_utils"))
    lists = [getattr(module, "_foreach_supported_types", None) for module in modules]
    return list({id(found): found for found in lists if found is not None}.values())


def _as_written(model: Any = None, **_: Any) -> Any:
    return model if model is not None else lambda function: function


__all__ = ["CUDA", "Calls", "attention", "cuda_device"]
