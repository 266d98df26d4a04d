"""Renders what scripts/replay-peers measured: table.py ROWS.jsonl VERSION PASSES."""

import datetime
import json
import os
import platform
import subprocess
import sys

path, version, passes = sys.argv[1:]


def told(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "–"


def rows():
    """One dictionary for each allocator and trace; ours come in two parts."""
    found = {}
    for line in open(path):
        if not line.strip():
            continue
        d = json.loads(line)
        ours = "packing" in d
        who = f"Plimsoll, {d['packing']}" if ours else d["who"]
        trace = os.path.basename(d["trace"]).split(".")[0]
        row = found.setdefault((trace, who), {})
        if ours and d["kernels"]:
            row["kernels_warm_ns_per_event"] = d["warm_ns_per_event"]
        else:
            row.update({k: v for k, v in d.items() if not (k.startswith("kernels") and ours)})
    return found


def number(value, digits=0):
    return "–" if value is None else f"{value:.{digits}f}"


def ratio(over, under):
    return "–" if not over or not under else f"{over / under:.3f}"


gpu = told("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()[0]
cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
torch = told(sys.executable, "-c", "import torch; print(torch.__version__)")
print(f"""# Recorded traces on a GPU, beside other allocators

- machine: {gpu.replace(', ', ' (driver ')}), {cpu}, {os.cpu_count()} cores
- date: {datetime.date.today()}
- versions: {version}, RMM 26.10 (librmm-cu13), PyTorch {torch}
- command: `scripts/replay-peers`, all rows in one run, {passes} warm passes

Nanoseconds an event, mapping included: *cold* is the first pass, *warm* the fastest of those
after it, *no mapping* our events that needed nothing from the device. *held ÷ live* is peak
reserved over peak live; RMM's arena takes all that it may hold at the start, so its figure is
that of the smallest cap. *cap ÷ live* is the smallest cap at which two passes complete (a pass
of more than 3 s has not), and *at cap* the fastest warm pass there. *kernels* is the warm pass
once more with a kernel in flight on every block, each call timed by itself, the clock included.

| trace | allocator | cold | warm | no mapping | held ÷ live | cap ÷ live | at cap | kernels |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |""")
missing = []
for (trace, who), d in rows().items():
    live = d.get("peak_live_bytes")
    print(
        f"| {trace} | {who} | {number(d.get('cold_ns_per_event'))} | {number(d.get('warm_ns_per_event'))} "
        f"| {number(d.get('warm_unmapped_ns_per_event'))} | {ratio(d.get('peak_reserved_bytes'), live)} "
        f"| {ratio(d.get('smallest_cap_bytes'), live)} | {number(d.get('smallest_cap_warm_ns_per_event'))} "
        f"| {number(d.get('kernels_warm_ns_per_event'))} |"
    )
    if d.get("why"):
        missing.append(f"- {trace}, {who}: {d['why']}")
    if d.get("why_at_cap"):
        missing.append(f"- {trace}, {who}, more passes at its smallest cap: {d['why_at_cap']}")
if missing:
    print("\nWhat is missing, and why:\n")
    print("\n".join(missing))
