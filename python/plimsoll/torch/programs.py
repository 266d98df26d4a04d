"""What `plimsoll estimate --exact` runs: Transformers' own code for a prompt and a few tokens, or for
some training steps, as most programs have it.

It knows nothing of Plimsoll: `estimate` runs it on tensors without data, and
scripts/estimates-gpu/run_rows.py runs the same on a GPU, to compare.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

OPTIMIZERS = ("adamw", "adamw-fused", "adamw-8bit", "sgd", "adafactor")
PRECISIONS = ("fp32", "bf16", "amp")
BASE_DTYPES = ("nf4", "int8", "bf16")
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Inference:
    """A prompt of `tokens - new_tokens` tokens for each of `batch` sequences, then `new_tokens`."""

    config: dict[str, Any]
    dtype: str = "bfloat16"
    batch: int = 1
    tokens: int = 4096
    new_tokens: int = 8


@dataclass(frozen=True)
class Training:
    """`steps` optimizer steps of `grad_accumulation` batches each."""

    config: dict[str, Any]
    precision: str = "bf16"
    optimizer: str = "adamw"
    batch: int = 1
    tokens: int = 1024
    checkpointing: bool = False
    lora: int | None = None
    base_dtype: str | None = None
    grad_accumulation: int = 1
    steps: int = 3


def configuration(settings: dict[str, Any]) -> Any:
    """A configuration of Transformers, from what config.json says."""
    transformers = importlib.import_module("transformers")
    rest = {key: value for key, value in settings.items() if key != "model_type"}
    for key in ("transformers_version", "quantization_config", "torch_dtype", "dtype"):
        rest.pop(key, None)
    return transformers.AutoConfig.for_model(settings["model_type"], **rest)


def language_model(settings: dict[str, Any], dtype: torch.dtype) -> Any:
    transformers = importlib.import_module("transformers")
    with torch.device("cuda"):
        return transformers.AutoModelForCausalLM.from_config(configuration(settings), dtype=dtype)


def settle() -> None:
    """What making the model took besides is given back: it is no part of running it."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def infer(job: Inference) -> None:
    model = language_model(job.config, DTYPES[job.dtype]).eval()
    settle()
    prompt = max(job.tokens - job.new_tokens, 1)
    ids = torch.zeros(job.batch, prompt, dtype=torch.long, device="cuda")
    with torch.inference_mode():
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=job.new_tokens,
            min_new_tokens=job.new_tokens,
            do_sample=False,
            pad_token_id=0,
        )


def train(job: Training) -> None:
    model = trained_model(job)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = optimizer_for(job.optimizer, parameters)
    settle()
    vocabulary = int(model.config.get_text_config().vocab_size)
    for _ in range(job.steps):
        for _ in range(job.grad_accumulation):
            ids = torch.randint(0, vocabulary, (job.batch, job.tokens), device="cuda")
            with precision(job):
                loss = model(input_ids=ids, labels=ids, use_cache=False).loss
            (loss / job.grad_accumulation).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def precision(job: Training) -> AbstractContextManager[Any]:
    if job.precision == "amp":
        context: AbstractContextManager[Any] = torch.autocast("cuda", dtype=torch.bfloat16)
        return context
    return nullcontext()


def trained_model(job: Training) -> Any:
    """The model as it is trained: whole, or with LoRA's adapters over weights that stay."""
    dtype = torch.bfloat16 if job.precision == "bf16" or job.base_dtype else torch.float32
    model = language_model(job.config, dtype).train()
    model.config.use_cache = False
    if job.base_dtype in ("nf4", "int8"):
        quantize(model, job.base_dtype)
    if job.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if job.lora:
        model = adapted(model, job)
    return model


def adapted(model: Any, job: Training) -> Any:
    """With PEFT's adapters on every linear layer but the last."""
    peft = importlib.import_module("peft")
    if job.base_dtype in ("nf4", "int8"):
        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)
    elif job.checkpointing:
        model.enable_input_require_grads()
    settings = peft.LoraConfig(
        r=job.lora, lora_alpha=2 * (job.lora or 1), lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    return peft.get_peft_model(model, settings)


def linear_layers(model: Any) -> Iterator[tuple[Any, str, Any, Any]]:
    """Every linear layer but the output layer: who has it, under which name, the layer, and its matrix,
    which GPT-2's layers have the other way round."""
    output = model.get_output_embeddings()
    turned = importlib.import_module("transformers.pytorch_utils").Conv1D
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, turned):
                yield module, name, child, child.weight.data.T
            elif type(child) is torch.nn.Linear and child is not output:
                yield module, name, child, child.weight.data


def quantize(model: Any, kind: str) -> None:
    """The linear layers as bitsandbytes stores them: 4 bits with double quantization, or 8."""
    bitsandbytes = importlib.import_module("bitsandbytes")
    layers = bitsandbytes.nn
    for module, name, child, weight in linear_layers(model):
        # Made small, so that weights are there once.
        if kind == "nf4":
            new = layers.Linear4bit(1, 1, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4", device="cpu")
            new.weight = layers.Params4bit(
                weight, requires_grad=False, compress_statistics=True, quant_type="nf4", module=new
            ).to("cuda")
        else:
            new = layers.Linear8bitLt(1, 1, bias=False, has_fp16_weights=False, device="cpu")
            # Packed here, as loading does: `to` packs only what comes from the host.
            packed, scales, _ = bitsandbytes.functional.int8_vectorwise_quant(weight.to(torch.float16))
            new.weight = layers.Int8Params(packed, requires_grad=False, has_fp16_weights=False, CB=packed, SCB=scales)
        new.out_features, new.in_features = weight.shape
        if child.bias is not None:
            new.bias = child.bias
        setattr(module, name, new)
        child.weight = weight = packed = None
    model.is_loaded_in_4bit, model.is_loaded_in_8bit = kind == "nf4", kind == "int8"


def optimizer_for(name: str, parameters: list[Any]) -> Any:
    if name == "adamw":
        return torch.optim.AdamW(parameters, lr=1e-5)
    if name == "adamw-fused":
        return torch.optim.AdamW(parameters, lr=1e-5, fused=True)
    if name == "sgd":
        return torch.optim.SGD(parameters, lr=1e-5)
    if name == "adafactor":
        return torch.optim.Adafactor(parameters, lr=1e-5)
    if name == "adamw-8bit":
        return importlib.import_module("bitsandbytes").optim.AdamW8bit(parameters, lr=1e-5)
    raise ValueError(f"{name} is none of {', '.join(OPTIMIZERS)}")


def program(job: Inference | Training) -> Callable[[], None]:
    """What runs the job."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if isinstance(job, Inference):
        return lambda: infer(job)
    return lambda: train(job)
