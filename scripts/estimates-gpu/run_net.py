"""Peak device bytes of a network for images in PyTorch: run_net.py NAME RECORDS"""
import json
import sys

from device import used

before = used()
import torch

from checkset import nets

name = sys.argv[1]
make, shape = nets()[name]
with torch.inference_mode():
    net = make().eval().to("cuda")
    image = torch.zeros(shape, device="cuda")
    marks = []
    for _ in range(4):
        net(image)
        torch.cuda.synchronize()
        marks.append(used() - before)
record = {"model": name, "engine": "pytorch", "allocated": torch.cuda.max_memory_allocated(),
          "reserved": torch.cuda.max_memory_reserved(), "runs": marks, "device": max(marks), "version": torch.__version__}
print(json.dumps(record), file=open(sys.argv[2], "a"))
