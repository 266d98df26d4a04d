"""Training steps, then tensors up to PyTorch's own out-of-memory error, then training on."""
import sys
import time

import torch

from driver import MIB, full, raw_16_gib

torch.manual_seed(0)
if sys.argv[1] == "fraction":
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((8 << 30) / total)
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU(),
    torch.nn.Conv2d(64, 128, 3, stride=2, padding=1), torch.nn.ReLU(),
    torch.nn.Flatten(), torch.nn.Linear(128 * 32 * 32, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10),
).cuda()
optimizer = torch.optim.AdamW(model.parameters())


def train(steps):
    start = time.perf_counter()
    for _ in range(steps):
        images = torch.randn(64, 3, 64, 64, device="cuda")
        loss = torch.nn.functional.cross_entropy(model(images), torch.randint(0, 10, (64,), device="cuda"))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / steps * 1000


train(10)
if sys.argv[1] == "train":
    print(f"train: {sorted(train(100) for _ in range(10))[5]:.4f} ms a step")
    sys.exit()
before = train(30)
held = []
try:
    while True:
        held.append(torch.empty(64 * MIB, dtype=torch.uint8, device="cuda").fill_(1))
except torch.cuda.OutOfMemoryError as error:
    text = str(error).split(".")[0]
filled = torch.cuda.memory_reserved() / MIB
raw = raw_16_gib()
torch.cuda.synchronize()
full()
free, total = torch.cuda.mem_get_info()
print(f"torch {sys.argv[1]}: reserved {filled:.0f} MiB at its error ({text}); raw 16 GiB {raw}; shows total {total / MIB:.0f} free {free / MIB:.0f} MiB")
held.clear()
torch.cuda.empty_cache()
after = train(30)
again = torch.empty(1 << 30, dtype=torch.uint8, device="cuda").fill_(2)
print(f"torch {sys.argv[1]}: {before:.3f} ms a step before, {after:.3f} after; goes on: {int(again[-1]) == 2}")
