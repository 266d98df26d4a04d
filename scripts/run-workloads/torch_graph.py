"""Generation-like work on a CUDA graph with attention and a growing cache, up to an error and on."""
import torch

from driver import MIB, full

torch.manual_seed(0)
layers = torch.nn.ModuleList([torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True) for _ in range(4)]).half().cuda().eval()
static = torch.randn(8, 256, 1024, device="cuda", dtype=torch.half)
with torch.inference_mode():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            out = static
            for layer in layers:
                out = layer(out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = static
        for layer in layers:
            out = layer(out)
    cache, steps = [], 0
    try:
        while True:
            graph.replay()
            cache.append(torch.cat([out, out], 1).repeat(4, 1, 4))
            steps += 1
    except torch.cuda.OutOfMemoryError:
        pass
    at_error = torch.cuda.memory_reserved() / MIB
    full()
    cache.clear()
    torch.cuda.empty_cache()
    for _ in range(50):
        graph.replay()
    torch.cuda.synchronize()
print(f"torch graph: {steps} steps to its error at {at_error:.0f} MiB; replays on after it: {bool(torch.isfinite(out).all())}")
