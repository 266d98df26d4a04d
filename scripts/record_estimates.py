"""Writes the records of scripts/record-estimates, which see."""

import csv
import datetime
import json
import platform
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs/results"
MIB = 1 << 20
TODAY = datetime.date.today().isoformat()


def machine():
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "?")
    flags = next((line for line in open("/proc/cpuinfo") if line.startswith("flags")), "")
    wide = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX"
    return f"{cpu} ({wide}), Linux {platform.release().split('-')[0]}"


def graphs(graphs_dir, folders):
    """Name, file, and the extents that the graph leaves open."""
    site = next(graphs_dir.glob("lib/python3*/site-packages"))
    found = [(path.stem, path, []) for folder in folders for path in sorted(Path(folder).glob("*.onnx"))]
    for path in sorted((site / "onnx/backend/test/data/light").glob("*.onnx")):
        found.append((path.stem.removeprefix("light_"), path, []))
    models = graphs_dir / "files/rapidocr_onnxruntime/models"
    for name, stem, rows, columns in [
        ("PP-OCRv4 det", "ch_PP-OCRv4_det_infer", 640, 640),
        ("PP-OCRv4 rec", "ch_PP-OCRv4_rec_infer", 48, 320),
        ("PP-OCR cls", "ch_ppocr_mobile_v2.0_cls_infer", 48, 192),
    ]:
        found.append((name, models / f"{stem}.onnx", ["*:1=3", f"*:2={rows}", f"*:3={columns}"]))
    return found


def ort_cpu(graphs_dir, programs, folders):
    lines = [
        "# Estimates against ONNX Runtime's arena, on the CPU",
        "",
        "The arena's own statistics (`AllocatorGetStats`) after three runs on zeros, and what",
        "`plimsoll estimate --engine ort --device cpu` works out from the file alone. *Peak* is the",
        "most in use, *reserved* what the arena holds with its regions that double, *packed* what is",
        "set aside at load for weights in another layout. Counted by the runtime; MiB.",
        "",
    ]
    rows, version = [], "?"
    for name, path, extents in graphs(graphs_dir, folders):
        answer = subprocess.run([programs / "examples/arena", path, *extents], capture_output=True, text=True, timeout=300)
        if answer.returncode != 0:
            print(f"{name}: {answer.stderr.strip()[-200:]}", file=sys.stderr)
            continue
        answer = json.loads(answer.stdout)
        version = answer["version"]
        measured, estimated = answer["runs"][-1], answer["estimated"]
        off = lambda key: 100 * (estimated[key] / measured[key] - 1)
        rows.append((abs(off("peak_bytes")),
            f"| {name} | {measured['peak_bytes'] / MIB:.2f} | {estimated['peak_bytes'] / MIB:.2f} | {off('peak_bytes'):+.2f} % "
            f"| {measured['reserved_bytes'] / MIB:.2f} | {estimated['reserved_bytes'] / MIB:.2f} | {off('reserved_bytes'):+.2f} % "
            f"| {answer['loaded']['in_use_bytes'] / MIB:.2f} | {estimated['loaded_bytes'] / MIB:.2f} | {estimated['plain_peak_bytes'] / MIB:.2f} |"))
    lines += [
        f"- machine: {machine()}",
        f"- date: {TODAY}; ONNX Runtime {version}, all optimisations, its own arena",
        "- command: `scripts/record-estimates FOLDER` (FOLDER holds yolo11n.onnx and yolo11s.onnx, exported",
        "  by Ultralytics at 640; the others are in the PyPI packages onnx and rapidocr-onnxruntime)",
        f"- largest error of the peak: {max(row[0] for row in rows):.2f} % over {len(rows)} graphs",
        "",
        "| graph | peak | estimated | off | reserved | estimated | off | packed | estimated | live, plain walk |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *[row[1] for row in rows],
        "",
        "The last column is what any engine needs in the order of the file; the difference to the peak",
        "is the runtime's own: copies into its layout for convolutions, operators that do not write in",
        "place, a buffer planned after the first run beside what that run left, and chunks that are cut",
        "only where half would be left over. The block of that layout depends on the CPU's vectors.",
        "",
    ]
    (RESULTS / f"{TODAY}-estimates-ort-cpu.md").write_text("\n".join(lines))


FAMILIES = [
    ("pythia", ["--mlp", "plain", "--biases", "--fused-qkv", "--parallel-residual"]),
    ("qwen2", ["--biases=attention"]),
    ("gemma", ["--tied-embeddings"]),
]


def llamacpp(programs):
    logs = ROOT.parent / "shared/llm-memory/llamacpp_buffers.tsv"
    if not logs.exists():
        print("skipped: no logs of llama.cpp beside the project", file=sys.stderr)
        return
    rows, worst, whole = [], 0.0, 0
    for row in csv.DictReader(open(logs), delimiter="\t"):
        typed = "?" not in row["ftype"]
        flags = ["--hidden", row["n_embd"], "--intermediate", row["n_ff"], "--layers", row["n_layer"], "--vocab", row["n_vocab"],
                 "--heads", row["n_head"], "--kv-heads", row["n_head_kv"], "--head-dim", row["head_dim"], "--context", row["n_ctx"],
                 "--ubatch", row["n_ubatch"], "--kv-dtype", row["type_k"], "--dtype", row["ftype"] if typed else "f16"]
        flags += ["--flash-attn"] if row["flash_attn"] == "1" else []
        flags += next((more for family, more in FAMILIES if row["model"].startswith(family)), [])
        answer = json.loads(subprocess.check_output([programs / "plimsoll", "estimate", "llm", "--json", *flags]))
        terms = [("log_weights_MiB", "weights_bytes", typed), ("log_kv_MiB", "kv_cache_bytes", True), ("log_compute_MiB", "activation_bytes", True)]
        cells, logged, found, complete = [], 0.0, 0.0, True
        for column, key, counts in terms:
            mine = answer[key] / MIB
            cells.append(f"{row[column] or '–'} | {mine:.2f}" if counts else f"{row[column] or '–'} | –")
            if counts and row[column]:
                logged, found = logged + float(row[column]), found + mine
            else:
                complete = False
        apart = row["backend"].startswith("CANN") or "0 layers offloaded" in row["backend"]
        regular = complete and not apart and row["identity"].startswith("stated")
        off = 100 * (found / logged - 1)
        if regular:
            worst, whole = max(worst, abs(off)), whole + 1
        why = "yes" if regular else "another buffer" if apart else "not all terms known"
        rows.append(f"| {row['model']} | {row['ftype']} | {row['n_ctx']} | {' | '.join(cells)} | {off:+.2f} % | {why} |")
    lines = [
        "# Estimates against llama.cpp's logs",
        "",
        "Public logs, one run a row: what the engine printed and what `plimsoll estimate` says, in MiB.",
        "A row is *regular* where the log names the type and every term, and one side runs all layers;",
        "for the others *off* is over the terms that are known. Copies that a backend keeps (CANN) and a",
        "buffer that is split with the host are outside of what is estimated.",
        "",
        f"- date: {TODAY}",
        "- command: `scripts/record-estimates`",
        f"- largest error of the total: {worst:.2f} % over {whole} regular rows",
        "",
        "| model | type | context | weights | estimated | cache | estimated | compute | estimated | off | regular |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
        *rows,
        "",
    ]
    (RESULTS / f"{TODAY}-estimates-llamacpp.md").write_text("\n".join(lines))


if __name__ == "__main__":
    ort_cpu(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
    llamacpp(Path(sys.argv[2]))
