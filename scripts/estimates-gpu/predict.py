#!/usr/bin/env python3
"""Estimates of checkset.py's models, before anything is run: predict.py PLIMSOLL ARENA FOLDER > predictions.json

Leaves in FOLDER what a run on the GPU needs: models/NAME.onnx (weights of zeros, which pack
well and take as much) and traces/NAME.csv (the walk, for our own pool); and whole/NAME.onnx
with random weights for `scripts/record-estimates` (on the CPU equal weights are packed once).
Run by `scripts/estimates-gpu/predict`.
"""
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import onnx
import torch
from transformers import AutoModelForCausalLM

from checkset import DECODERS, config, nets

warnings.filterwarnings("ignore")
program, arena, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
NAMES = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}


def estimate(*words):
    answer = json.loads(subprocess.check_output([program, "estimate", "--json", *map(str, words)]))
    return {key: answer[f"{key}_bytes"] for key in ("weights", "kv_cache", "activation", "overhead", "total")}


def header_of(model, path):
    """The header of the model's safetensors file, with a hole for data."""
    header, at, seen = {}, 0, set()
    for name, tensor in model.named_parameters():
        if id(tensor) in seen:
            continue
        seen.add(id(tensor))
        size = tensor.numel() * tensor.element_size()
        header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)


def empty(path, to):
    """Zeros for weights, after the export: it would keep equal ones only once."""
    model = onnx.load(path)
    for weight in model.graph.initializer:
        if len(weight.raw_data) > 4096:
            weight.raw_data = bytes(len(weight.raw_data))
    onnx.save(model, to)


answers = {"pytorch": {}, "ort": {}, "pool": {}}
for name, (settings, tokens, dtype) in DECODERS.items():
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config(name), dtype=getattr(torch, dtype))
    with tempfile.TemporaryDirectory() as place:
        header_of(model, Path(place) / "model.safetensors")
        (Path(place) / "config.json").write_text(json.dumps(settings))
        answers["pytorch"][name] = estimate(place, "--engine", "pytorch", "--device", "cuda:0", "--context", tokens)
for part in ("whole", "models", "traces"):
    (folder / part).mkdir(parents=True, exist_ok=True)
for name, (make, shape) in nets().items():
    path = folder / "models" / f"{name}.onnx"
    whole = folder / "whole" / f"{name}.onnx"
    torch.onnx.export(make().eval(), (torch.zeros(shape),), str(whole), dynamo=False, opset_version=17,
                      input_names=["images"], output_names=["out"])
    empty(whole, path)
    subprocess.check_call([arena, path, "--trace", folder / "traces" / f"{name}.csv"])
    answers["ort"][name] = estimate(path, "--engine", "ort", "--device", "cuda:0")
    answers["pytorch"][name] = estimate(path, "--engine", "pytorch", "--device", "cuda:0")
    answers["pool"][name] = estimate(path, "--device", "cuda:0")
print(json.dumps(answers, indent=1))
