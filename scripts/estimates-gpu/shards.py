#!/usr/bin/env python3
"""What one of several GPUs holds while a model is trained: shards.py > shard-rows.jsonl

PyTorch's fake process group answers every collective at once, so one process holds what one rank of N
would, except for buffers of NCCL. Without arguments it runs on the processor: every storage that lives is
counted at every operator, which needs no GPU; the models are small. With `cuda` the same rows, and larger
ones, run on a GPU, and PyTorch's allocator counts.

Each row: what was held at most, by one alone (`alone`) and by one of N (`held`).
"""
import concurrent.futures
import gc
import json
import os
import subprocess
import sys
import warnings

LLAMA = dict(model_type="llama", hidden_size=512, intermediate_size=1536, num_hidden_layers=8, num_attention_heads=8,
             num_key_value_heads=8, vocab_size=8000, max_position_embeddings=2048, tie_word_embeddings=False)
# Layers weigh more than the ends, and what they save more than the logits.
DEEP = {**LLAMA, "hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6, "num_key_value_heads": 6,
        "num_hidden_layers": 16, "vocab_size": 1000}
# The ends weigh more than the layers.
ENDS = dict(model_type="qwen2", hidden_size=384, intermediate_size=1024, num_hidden_layers=6, num_attention_heads=6,
            num_key_value_heads=2, vocab_size=32000, max_position_embeddings=2048, tie_word_embeddings=True)
GPT2 = dict(model_type="gpt2", n_embd=384, n_layer=8, n_head=6, n_positions=1024, vocab_size=16000)
SMOLLM = dict(model_type="llama", hidden_size=960, intermediate_size=2560, num_hidden_layers=32, num_attention_heads=15,
              num_key_value_heads=5, vocab_size=49152, max_position_embeddings=8192, tie_word_embeddings=True)
QWEN = dict(model_type="qwen2", hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
            num_key_value_heads=2, vocab_size=151936, max_position_embeddings=32768, tie_word_embeddings=True)


def rows(device):
    models = [("llama", LLAMA, 2, 256), ("deep", DEEP, 2, 256), ("deep-short", DEEP, 1, 32), ("ends", ENDS, 1, 128),
              ("ends-long", ENDS, 2, 512), ("gpt2", GPT2, 2, 256)]
    if device == "cuda":
        models = [("smollm-360m", SMOLLM, 4, 1024), ("qwen2.5-0.5b", QWEN, 2, 1024), *models]
    for name, config, batch, tokens in models:
        for shard, gpus in [("ddp", 4), ("zero1", 4), ("zero1", 8), ("fsdp2", 2), ("fsdp2", 8)]:
            yield dict(name=f"{name} {shard} {gpus}", config=config, batch=batch, tokens=tokens, shard=shard, gpus=gpus)
    more = dict(config=LLAMA, batch=2, tokens=256, gpus=4)
    yield dict(name="llama fsdp2 4 sgd", shard="fsdp2", optimizer="sgd", **more)
    yield dict(name="llama fsdp2 4 fp32", shard="fsdp2", precision="fp32", **more)
    yield dict(name="llama fsdp2 4 checkpointing", shard="fsdp2", checkpointing=True, **more)
    yield dict(name="llama ddp 4 checkpointing", shard="ddp", checkpointing=True, **more)
    yield dict(name="llama zero1 4 fused", shard="zero1", optimizer="adamw-fused", **more)


class Counted:
    """The bytes of all storages that live, and the most of them."""

    def __init__(self):
        import torch
        from torch.multiprocessing.reductions import StorageWeakRef
        from torch.utils._python_dispatch import TorchDispatchMode
        from torch.utils._pytree import tree_leaves

        self.torch, self.reference, self.storages, self.most = torch, StorageWeakRef, {}, 0
        counted = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None):
                result = function(*args, **(kwargs or {}))
                for value in tree_leaves((args, kwargs or {}, result)):
                    counted.note(value)
                counted.most = max(counted.most, counted.held())
                return result

        self.mode = Mode()

    def note(self, value):
        # A DTensor stands for all its parts and holds one.
        value = getattr(value, "_local_tensor", value)
        if isinstance(value, self.torch.Tensor):
            storage = value.untyped_storage()
            self.storages.setdefault(storage._cdata, self.reference(storage))

    def held(self):
        held = 0
        for key, reference in list(self.storages.items()):
            storage = None if reference.expired() else self.torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
            if storage is None:
                del self.storages[key]
            else:
                held += storage.nbytes()  # FSDP2 lets go of memory by resizing its storage to nothing
        return held


def shared(model, row, mesh):
    """The model as `row` shares it."""
    import torch

    if row["shard"] == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        layers = next(module for module in model.modules() if isinstance(module, torch.nn.ModuleList))
        for layer in layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    model = torch.nn.parallel.DistributedDataParallel(model)

    def summed(_, bucket):
        # The fake group's sum has no result to hand on; the bucket itself is what NCCL's has.
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    model.register_comm_hook(None, summed)
    return model


def optimizer_for(row, parameters):
    import torch
    from torch.distributed.optim import ZeroRedundancyOptimizer

    name = row.get("optimizer", "adamw")
    kind = torch.optim.SGD if name == "sgd" else torch.optim.AdamW
    settings = {"lr": 1e-5, **({"fused": True} if name == "adamw-fused" else {"foreach": True})}
    if row["shard"] == "zero1" and row["gpus"] > 1:
        return ZeroRedundancyOptimizer(parameters, optimizer_class=kind, **settings)
    return kind(parameters, **settings)


def measure(row, device):
    import torch
    import torch.distributed
    import transformers
    from torch.distributed.device_mesh import init_device_mesh
    from torch.testing._internal.distributed.fake_pg import FakeStore

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=row["gpus"])
    settings = {key: value for key, value in row["config"].items() if key != "model_type"}
    config = transformers.AutoConfig.for_model(row["config"]["model_type"], **settings)
    dtype = torch.float32 if row.get("precision") == "fp32" else torch.bfloat16
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype).train()
    tensors = [parameter.numel() for parameter in model.parameters()]
    if row.get("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    whole = shared(model, row, init_device_mesh(device, (row["gpus"],))) if row["gpus"] > 1 else model
    optimizer = optimizer_for(row, list(model.parameters()))
    gc.collect()

    def steps():
        for _ in range(3):
            ids = torch.randint(0, config.vocab_size, (row["batch"], row["tokens"]), device=device)
            loss = whole(input_ids=ids, labels=ids, use_cache=False).loss
            loss.backward()
            del loss
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    if device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        steps()
        torch.cuda.synchronize()
        held = {"held": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved()}
    else:
        counted = Counted()
        for parameter in model.parameters():
            counted.note(parameter)
        with counted.mode:
            steps()
        held = {"held": counted.most}
    return {**held, "tensors": tensors, "torch": torch.__version__, "transformers": transformers.__version__}


def in_process(row, device):
    """Measured in a process of its own, as a process group is there once."""
    done = subprocess.run([sys.executable, __file__, device, json.dumps(row)], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def main():
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    if len(sys.argv) > 2:
        print(json.dumps(measure(json.loads(sys.argv[2]), device)))
        return
    # Processes do not count each other's memory: on a GPU several run at once.
    with concurrent.futures.ThreadPoolExecutor(8 if device == "cuda" else 1) as pool:
        alone, several = {}, []
        for row in rows(device):
            single = {**row, "shard": "ddp", "gpus": 1}
            key = json.dumps({**single, "name": ""})
            if key not in alone:
                alone[key] = pool.submit(in_process, single, device)
            several.append((row, alone[key], pool.submit(in_process, row, device)))
        for row, single, measured in several:
            measured = measured.result()
            tensors = measured.pop("tensors")
            # Runs of equal weights, as `exact-rows.jsonl` has them.
            print(json.dumps({"kind": "train", "optimizer": "adamw", "precision": "bf16", **row, "device": device,
                              "tensors": [[1, tensors]], "alone": single.result()["held"], **measured}), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
