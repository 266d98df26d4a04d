"""YOLO11n by ONNX Runtime's CUDA provider, memory filled beside it up to an error, and on."""
import sys
import time

import numpy
import onnxruntime

from driver import MIB, alloc, free, full, info, raw_16_gib

onnxruntime.set_default_logger_severity(3)
session = onnxruntime.InferenceSession(sys.argv[1], providers=[("CUDAExecutionProvider", {"arena_extend_strategy": "kSameAsRequested"}), "CPUExecutionProvider"])
name = session.get_inputs()[0].name
picture = numpy.random.rand(1, 3, 640, 640).astype(numpy.float32)
first = session.run(None, {name: picture})[0]
start = time.perf_counter()
for _ in range(100):
    session.run(None, {name: picture})
ms = (time.perf_counter() - start) * 10
held = []
while True:
    code, pointer = alloc(64 * MIB)
    if code:
        break
    held.append(pointer)
shown = info()
full()
raw = raw_16_gib()
error = "none"
try:
    for batch in range(2, 64, 8):
        second = onnxruntime.InferenceSession(sys.argv[1], providers=["CUDAExecutionProvider"])
        second.run(None, {name: picture})
except Exception as problem:
    error = str(problem).split("\n")[0][:70]
for pointer in held:
    free(pointer)
again = session.run(None, {name: picture})[0]
print(f"ort {session.get_providers()[0]}: {ms:.2f} ms a frame; filled to code {code} with {shown[0] // MIB} MiB free; raw 16 GiB {raw}; its error: {error}; same answer after: {bool(numpy.allclose(first, again, atol=1e-3))}")
