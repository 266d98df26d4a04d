"""What rows of a table take on a GPU: run_rows.py PROGRAMS ROWS.json RECORDS.jsonl [TRACES.jsonl.gz]

PROGRAMS is python/plimsoll/torch/programs.py: what `plimsoll estimate --exact` runs without a GPU
runs here with one. Each row has a process of its own, forked after the imports and before CUDA
starts. With TRACES every allocation and free is written too, to see where an estimate is off.
"""
import gc
import gzip
import importlib.util
import json
import os
import sys
import time
import traceback
import warnings

import torch
import transformers

warnings.filterwarnings("ignore")
transformers.logging.set_verbosity_error()
spec = importlib.util.spec_from_file_location("programs", sys.argv[1])
programs = importlib.util.module_from_spec(spec)
sys.modules["programs"] = programs
spec.loader.exec_module(programs)


def job_of(row):
    settings = {key: value for key, value in row.items() if key not in ("name", "kind", "seconds")}
    return (programs.Inference if row["kind"] == "infer" else programs.Training)(**settings)


def events(snapshot):
    for event in snapshot["device_traces"][0]:
        if event["action"] in ("alloc", "free_completed", "segment_alloc", "segment_free"):
            frames = event.get("frames") or []
            own = [frame for frame in frames if "/torch/" not in frame["filename"]] or frames
            place = own[0] if own else {"filename": "-", "line": 0, "name": ""}
            yield [event["action"][:9], event["size"], f"{os.path.basename(place['filename'])}:{place['line']}:{place['name']}"]


def measure(row, traces):
    from device import used

    before = used()
    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    context = used() - before
    memory = torch.cuda.memory
    if traces:
        memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=4_000_000)
    start = time.monotonic()
    programs.program(job_of(row))()
    torch.cuda.synchronize()
    record = {
        "name": row["name"], "kind": row["kind"], "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(), "device": used() - before, "context": context,
        "seconds": round(time.monotonic() - start, 1), "torch": torch.__version__, "transformers": transformers.__version__,
    }
    if traces:
        with gzip.open(traces, "at") as file:
            file.write(json.dumps({"name": row["name"], "events": list(events(memory._snapshot()))}) + "\n")
    return record


def tracked(row):
    """What PyTorch's MemTracker says of a row, on fake tensors of this GPU."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.mem_tracker import MemTracker

    tracker, draw = MemTracker(), torch.randint

    def drawn(*args, **kwargs):
        tracker.reset_mod_stats()  # it follows one iteration at a time
        return draw(*args, **kwargs)

    torch.randint = drawn
    with FakeTensorMode(), tracker:
        programs.program(job_of(row))()
    peak = {str(device): parts for device, parts in tracker.get_tracker_snapshot("peak").items()}
    return {"name": row["name"], "kind": "tracker", "allocated": max(parts.get("Total", 0) for parts in peak.values())}


def in_child(row, records, traces):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    try:
        record = tracked(row) if row["kind"] == "tracker" else measure(row, traces)
    except BaseException as error:
        traceback.print_exc(limit=-6)
        record = {"name": row["name"], "kind": row["kind"], "error": f"{type(error).__name__}: {error}"[:500]}
    with open(records, "a") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(record), flush=True)
    os._exit(0)


rows = json.load(open(sys.argv[2]))
with torch.device("meta"):
    for settings in {row["config"]["model_type"]: row["config"] for row in rows}.values():
        # Imports the model's code, once for all its rows.
        transformers.AutoModelForCausalLM.from_config(programs.configuration(settings))
if os.environ.get("TRACKER"):
    plain = [row for row in rows if row["kind"] == "train" and not row.get("lora")]
    rows += [{**row, "kind": "tracker"} for row in plain[: int(os.environ["TRACKER"])]]
gc.freeze()
start = time.monotonic()
most = float(os.environ.get("MOST_SECONDS", "550"))
for row in rows:
    if time.monotonic() - start > most:
        print("out of time before", row["name"])
        break
    in_child(row, sys.argv[3], sys.argv[4] if len(sys.argv) > 4 else None)
