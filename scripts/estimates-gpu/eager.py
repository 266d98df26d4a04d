#!/usr/bin/env python3
"""What PyTorch's allocator would reserve for a model of checkset.py, by the model's own code:

    eager.py ARENA NAME…

The model runs here, on tensors without data. Every storage that it makes and drops is written
down in order, with what CUDA's libraries take besides, and put through the rules of PyTorch's
allocator (ARENA is the example of that name in crates/infer). Compare with what run_net.py and
run_hf.py wrote on a GPU. Wants torch and Transformers, as `predict` has them.
"""
import json
import subprocess
import sys
import tempfile
import warnings

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from checkset import DECODERS, config, nets

warnings.filterwarnings("ignore")
CUBLAS = 32 << 20, 1 << 20


class Requests(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.live, self.lines, self.count, self.products = {}, [], 0, False

    def take(self, size):
        self.count += 1
        if size:
            self.lines.append(f"a,{self.count},{size},0,{len(self.lines)}")
        return self.count, size

    def free(self, block):
        if block[1]:
            self.lines.append(f"f,{block[0]},{block[1]},0,{len(self.lines)}")

    def hold(self, tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in self.live:
            self.live[storage._cdata] = StorageWeakRef(storage), self.take(storage.nbytes())

    def drop(self):
        for key in [key for key, (storage, _) in self.live.items() if storage.expired()]:
            self.free(self.live.pop(key)[1])

    def __torch_dispatch__(self, operator, types, inputs=(), options=None):
        self.drop()
        out = operator(*inputs, **(options or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.hold(tensor)
        name = operator.name()
        if not self.products and any(part in name for part in ("::addmm", "::bmm", "::mm", "::baddbmm")):
            self.products = True
            for size in CUBLAS:
                self.take(size)
        if name == "aten::convolution":
            image, weights, groups = inputs[0], inputs[1], inputs[8]
            if weights.shape[2:].numel() > 1 and not (groups > 1 and weights.shape[1] == 1):
                self.free(self.take(sum(tensor.nbytes for tensor in (image, weights, out))))
        return out


def attention(q, k, v, *_, **__):
    """As CUDA has it: no scores, heads beside each other, and a number for each row."""
    torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    return torch.empty((*q.shape[:1], q.shape[2], q.shape[1], v.shape[3]), dtype=q.dtype, device=q.device).transpose(1, 2)


def trace(name):
    requests = Requests()
    with torch.device("meta"), torch.no_grad():
        if name in DECODERS:
            from transformers import AutoModelForCausalLM

            _, tokens, dtype = DECODERS[name]
            model = AutoModelForCausalLM.from_config(config(name), dtype=getattr(torch, dtype)).eval()
            steps = [torch.zeros(1, tokens - 8, dtype=torch.long)] + [torch.zeros(1, 1, dtype=torch.long)] * 7
        else:
            make, shape = nets()[name]
            model, steps = make().eval(), [torch.zeros(shape)] * 4
        for tensor in [*model.parameters(), *model.buffers(), *steps]:
            requests.hold(tensor)
        past = {}
        with requests:
            for step in steps:
                if name in DECODERS:
                    past = {"past_key_values": model(step, use_cache=True, logits_to_keep=1, **past).past_key_values}
                else:
                    model(step)
                requests.drop()
    return "\n".join(["op,id,size,stream,t_us", *requests.lines, ""])


torch.nn.functional.scaled_dot_product_attention = attention
for name in sys.argv[2:]:
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(trace(name))
        file.flush()
        answer = json.loads(subprocess.check_output([sys.argv[1], "--segments", file.name]))
    print(name, *(f"{key} {value / (1 << 20):.1f} MiB" for key, value in answer.items()))
