"""Peak device bytes of ONNX Runtime CUDA: run_ort.py MODEL.onnx RECORDS [AXIS=EXTENT …]"""
import sys, json, os
from device import used
before = used()
import numpy as np, onnxruntime as ort
path, out = sys.argv[1], sys.argv[2]
extents = dict(a.split("=") for a in sys.argv[3:])
ort.set_default_logger_severity(1); so = ort.SessionOptions(); so.log_severity_level = 1
opts = {}
if os.environ.get("SAME"): opts["arena_extend_strategy"] = "kSameAsRequested"
if os.environ.get("HEUR"): opts["cudnn_conv_algo_search"] = "HEURISTIC"
s = ort.InferenceSession(path, so, providers=[("CUDAExecutionProvider", opts), "CPUExecutionProvider"])
assert s.get_providers()[0] == "CUDAExecutionProvider", s.get_providers()
loaded = used()
feeds = {}
for i in s.get_inputs():
    shape = [d if isinstance(d, int) and d > 0 else int(extents.get(str(a), 1)) for a, d in enumerate(i.shape)]
    feeds[i.name] = np.zeros(shape, {"tensor(float)": np.float32, "tensor(int64)": np.int64}[i.type])
marks = []
for _ in range(4):
    s.run(None, feeds); marks.append(used() - before)
print(json.dumps({"model": os.path.basename(path), "engine": "ort", "loaded": loaded - before, "runs": marks, "version": ort.__version__, "opts": opts}), file=open(out, "a"))
