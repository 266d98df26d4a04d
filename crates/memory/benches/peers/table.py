"""Renders what scripts/replay-peers measured: table.py ROWS.jsonl VERSION PASSES ROUNDS."""

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys

path, version, passes, rounds = sys.argv[1:]


def told(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "–"


def rows():
    """One dictionary for each allocator and trace: the median of what its processes measured."""
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
            d = {"kernels_warm_ns_per_event": d["warm_ns_per_event"]}
        for key, value in d.items():
            if value is not None and not (ours and key == "kernels"):
                row.setdefault(key, []).append(value)
    return {key: {name: middle(values) for name, values in row.items()} for key, row in found.items()}


def middle(values):
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
        return statistics.median(values)
    return next((value for value in values if value), values[0])


def number(value, digits=0):
    return "–" if value is None else f"{value:.{digits}f}"


def ratio(above, below):
    return "–" if not above or not below else f"{above / below:.3f}"


FIGURES = {
    "cold": lambda d: d.get("cold_ns_per_event"),
    "warm": lambda d: d.get("warm_ns_per_event"),
    "kernels": lambda d: d.get("kernels_warm_ns_per_event"),
    "held ÷ live": lambda d: over(d.get("peak_reserved_bytes"), d.get("peak_live_bytes")),
    "cap ÷ live": lambda d: over(d.get("smallest_cap_bytes"), d.get("peak_live_bytes")),
}


def over(above, below):
    return above / below if above and below else None


def verdicts(found):
    """One line for each figure in which ours is not the best, or not what was promised."""
    for trace in dict.fromkeys(trace for trace, _ in found):
        rows = {who: d for (t, who), d in found.items() if t == trace}
        ours = rows.get("Plimsoll, quick", {})
        for name, figure in FIGURES.items():
            peers = [(figure(d), who) for who, d in rows.items() if not who.startswith("Plimsoll")]
            best = min(((value, who) for value, who in peers if value is not None), default=None)
            mine = figure(ours)
            if mine is None and name == "cap ÷ live" and {who for value, who in peers if value} <= {"RMM arena"}:
                continue  # looked for only with CAPS=1; the arena has one without
            if best and (mine is None or best[0] < mine):
                yield f"- {trace}, {name}: {best[1]} {best[0]:.4g}, ours {number(mine, 3)}"
        live = ours.get("peak_live_bytes") or 1
        if (ours.get("peak_reserved_bytes") or 1e99) > 1.05 * live + (8 << 20):
            yield f"- {trace}: more than 1.05 of what is live and 8 MiB is reserved"
        warm = ours.get("warm_ns_per_event")
        if warm is None or warm > 100:
            yield f"- {trace}: a warm event takes {number(warm)} ns, not 100 or less"
        tight = rows.get("Plimsoll, tight", {}).get("peak_reserved_bytes")
        if tight is None:
            yield f"- {trace}: tight packing was not measured"
        elif tight > max(1.02 * live, live + (6 << 20)):
            yield f"- {trace}: tight packing reserves {ratio(tight, live)} of what is live"


gpu = told("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").splitlines()[0]
cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
torch = told(sys.executable, "-c", "import torch; print(torch.__version__)")
print(f"""# Recorded traces on a GPU, beside other allocators

- machine: {gpu.replace(', ', ' (driver ')}), {cpu}, {os.cpu_count()} cores
- date: {datetime.date.today()}
- versions: {version}, RMM 26.10 (librmm-cu13), PyTorch {torch}
- command: `scripts/replay-peers`, all rows in one run, medians of {rounds} processes taken in turn,
  {passes} warm passes each (tight packing: one process, 2 passes)

Nanoseconds an event, mapping included: *cold* is the first pass, *warm* the fastest of those
after it, *no mapping* our events that needed nothing from the device. *held ÷ live* is peak
reserved over peak live; RMM's arena takes all that it may hold at the start, so its figure is
what the device has less of when it may hold the least with which two passes complete. *cap ÷ live*
is the smallest cap at which two passes complete (a pass of more than 3 s has not), and *at cap* the
fastest warm pass there. *kernels* is the warm pass once more with a kernel in flight on every block,
each call timed by itself, the clock included.

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
print("\nWhat beats quick packing, and what was promised and not held:\n")
print("\n".join(verdicts(rows())) or "- nothing")
if missing:
    print("\nWhat is missing, and why:\n")
    print("\n".join(missing))
