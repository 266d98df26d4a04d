"""Peak device bytes of a decoder in plain PyTorch: run_torch.py MODEL TOKENS DTYPE RECORDS

Layers as Llama and Qwen2 have them (RMS norms in 32 bits, rotary positions, grouped heads,
attention without stored scores, a gated MLP), random weights, a prompt of TOKENS at once and
eight tokens after it, with a cache that grows by copies.
"""
import json
import sys

from device import used

before = used()
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.zeros(1, device="cuda")
torch.cuda.synchronize()
context = used() - before
name, tokens, dtype = sys.argv[1], int(sys.argv[2]), getattr(torch, sys.argv[3])
from shapes import SHAPES

h, inner, layers, vocab, heads, kv, width, tied, bias = SHAPES[name]


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(h))

    def forward(self, x):
        y = x.to(torch.float32)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * y.to(x.dtype)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(h, heads * width, bias=bias)
        self.k = nn.Linear(h, kv * width, bias=bias)
        self.v = nn.Linear(h, kv * width, bias=bias)
        self.o = nn.Linear(heads * width, h, bias=False)
        self.n1, self.n2 = Norm(), Norm()
        self.gate = nn.Linear(h, inner, bias=False)
        self.up = nn.Linear(h, inner, bias=False)
        self.down = nn.Linear(inner, h, bias=False)

    def forward(self, x, cos, sin, cache):
        r, x = x, self.n1(x)
        batch, length, _ = x.shape
        split = lambda y, n: y.view(batch, length, n, width).transpose(1, 2)
        q, k, v = split(self.q(x), heads), split(self.k(x), kv), split(self.v(x), kv)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if cache[0] is not None:
            k, v = torch.cat((cache[0], k), 2), torch.cat((cache[1], v), 2)
        cache[0], cache[1] = k, v
        a = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1, enable_gqa=kv != heads)
        x = r + self.o(a.transpose(1, 2).reshape(batch, length, -1))
        r, x = x, self.n2(x)
        return r + self.down(F.silu(self.gate(x)) * self.up(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(vocab, h)
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.norm, self.head = Norm(), nn.Linear(h, vocab, bias=False)

    def forward(self, ids, caches, at):
        x = self.emb(ids)
        f = torch.arange(0, width, 2, device=x.device).float() / width
        p = torch.arange(at, at + ids.shape[1], device=x.device).float()
        f = torch.outer(p, 10000.0**-f)
        f = torch.cat((f, f), -1)
        cos, sin = f.cos().to(x.dtype), f.sin().to(x.dtype)
        for layer, cache in zip(self.layers, caches):
            x = layer(x, cos, sin, cache)
        return self.head(self.norm(x[:, -1:]))


torch.set_default_dtype(dtype)
with torch.device("meta"):
    model = Model()
model = model.to_empty(device="cuda").eval()
if tied:
    model.head.weight = model.emb.weight
for parameter in model.parameters():
    parameter.data.normal_(0, 0.02)
torch.cuda.synchronize()
weights = torch.cuda.memory_allocated()
with torch.inference_mode():
    caches = [[None, None] for _ in range(layers)]
    model(torch.zeros(1, tokens, dtype=torch.long, device="cuda"), caches, 0)
    for n in range(8):
        model(torch.zeros(1, 1, dtype=torch.long, device="cuda"), caches, tokens + n)
torch.cuda.synchronize()
record = {
    "model": name, "engine": "pytorch", "tokens": tokens, "dtype": sys.argv[3], "context": context, "weights": weights,
    "allocated": torch.cuda.max_memory_allocated(), "reserved": torch.cuda.max_memory_reserved(),
    "device": used() - before, "version": torch.__version__,
}
print(json.dumps(record), file=open(sys.argv[4], "a"))
