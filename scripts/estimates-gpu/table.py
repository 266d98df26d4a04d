#!/usr/bin/env python3
"""Sets estimates beside what a GPU took, as a table in Markdown:

    table.py PLIMSOLL RECORDS.jsonl… -- MODEL.onnx…
    table.py check predictions.json RECORDS.jsonl…

RECORDS are what run_ort.py and run_torch.py wrote on the GPU's machine, and what `peers` writes
here. Estimates are made here, from files alone: the graphs, and for language models a
safetensors header without data with its config.json. With `check` they are those that
`predict` wrote down before, for models that nothing was fitted on.
"""
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from shapes import SHAPES, config

MIB = 1 << 20


def tensors(shape):
    h, inner, layers, vocab, heads, kv, width, tied, bias = shape
    yield "embed", [vocab, h]
    if not tied:
        yield "head", [vocab, h]
    yield "norm", [h]
    for n in range(layers):
        for name, dims in [("q", [heads * width, h]), ("k", [kv * width, h]), ("v", [kv * width, h]), ("o", [h, heads * width]),
                           ("gate", [inner, h]), ("up", [inner, h]), ("down", [h, inner]), ("n1", [h]), ("n2", [h])]:
            yield f"{n}.{name}", dims
            if bias and name in "qkv":
                yield f"{n}.{name}.bias", dims[:1]


def folder(path, shape, dtype):
    h, inner, layers, vocab, heads, kv, width, tied, bias = shape
    header, at = {}, 0
    for name, dims in tensors(shape):
        size = 2 * dims[0] * (dims[1] if len(dims) > 1 else 1)
        header[name] = {"dtype": {"float16": "F16", "bfloat16": "BF16"}[dtype], "shape": dims, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)
    (path / "config.json").write_text(json.dumps(config(shape)))


def estimate(program, *words):
    return json.loads(subprocess.check_output([program, "estimate", "--json", *map(str, words)]))


def main():
    program, rest = sys.argv[1], sys.argv[2:]
    cut = rest.index("--")
    records = [json.loads(line) for path in rest[:cut] for line in open(path) if line.strip()]
    peers = {r["model"]: r["total"] for r in records if r["engine"] == "accelerate"}
    graphs = {Path(path).name: path for path in rest[cut + 1:]}
    rows, worst = [], {}
    def row(engine, name, measured, mine, others):
        off = 100 * (mine / measured - 1)
        worst[engine] = max(worst.get(engine, 0), abs(off))
        cells = [f"{x / MIB:,.0f} ({100 * (x / measured - 1):+.0f} %)" if x else "–" for x in others]
        rows.append(f"| {engine} | {name} | {measured / MIB:,.0f} | {mine / MIB:,.0f} | {off:+.1f} % | {' | '.join(cells)} |")
    for r in records:
        if r["engine"] == "ort" and not r.get("opts") and r["model"] in graphs:
            path, words = graphs[r["model"]], []
            if r["model"].startswith("ocr"):
                words = ["--imgsz", "640"]
            answer = estimate(program, path, "--engine", "ort", "--device", "cuda:0", *words)
            row("ONNX Runtime CUDA", r["model"].removesuffix(".onnx").removeprefix("light_"), r["runs"][-1], answer["total_bytes"], [None, None])
    for r in records:
        if r["engine"] == "pytorch" and r["model"] in SHAPES:
            h, inner, layers, _, _, kv, width, *_ = SHAPES[r["model"]]
            with tempfile.TemporaryDirectory() as place:
                folder(Path(place), SHAPES[r["model"]], r["dtype"])
                answer = estimate(program, place, "--engine", "pytorch", "--device", "cuda:0", "--context", r["tokens"])
            weights, cache = answer["weights_bytes"], answer["kv_cache_bytes"]
            documents = weights + cache + 2 * (h + inner)
            row("PyTorch", r["model"], r["device"], answer["total_bytes"], [peers.get(r["model"]), documents])
    print("\n".join([
        "| engine | model | measured, MiB | estimated | off | `accelerate estimate-memory` | weights, cache and one token's activations |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: |", *rows]))
    print("\nLargest error: " + "; ".join(f"{engine} {error:.1f} %" for engine, error in worst.items())
          + ".")


def check():
    """Predictions against records, engine by engine."""
    predictions = json.load(open(sys.argv[2]))
    records = [json.loads(line) for path in sys.argv[3:] for line in open(path) if line.strip()]
    names = {"ort": "ONNX Runtime CUDA", "pytorch": "PyTorch", "pool": "our own pool"}
    print("| engine | model | measured, MiB | predicted | off |\n| --- | --- | ---: | ---: | ---: |")
    worst = {}
    for r in records:
        engine, model = r["engine"], r["model"].removesuffix(".onnx")
        if model not in predictions.get(engine, {}):
            continue
        measured = r["answer"]["peak_reserved_bytes"] if engine == "pool" else r["runs"][-1] if engine == "ort" else r["device"]
        mine = predictions[engine][model]["total"]
        off = 100 * (mine / measured - 1)
        worst[engine] = max(worst.get(engine, 0), abs(off))
        print(f"| {names[engine]} | {model} | {measured / MIB:,.0f} | {mine / MIB:,.0f} | {off:+.1f} % |")
    print("\nLargest error: " + "; ".join(f"{names[engine]} {error:.1f} %" for engine, error in worst.items()) + ".")


check() if sys.argv[1] == "check" else main()
