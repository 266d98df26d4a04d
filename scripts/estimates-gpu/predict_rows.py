#!/usr/bin/env python3
"""What rows would take, without a GPU: predict_rows.py ROWS.json PREDICTIONS.jsonl [NAME…]

Wants this package, PyTorch, Transformers, PEFT and bitsandbytes. Rows that are in the file are kept.
"""
import json
import logging
import os
import sys
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
from plimsoll.torch.estimating import of_job

rows, out, names = json.load(open(sys.argv[1])), sys.argv[2], sys.argv[3:]
done = {json.loads(line)["name"] for line in open(out)} if os.path.exists(out) else set()
for row in rows:
    if row["name"] in done or (names and row["name"] not in names):
        continue
    job = {key: value for key, value in row.items() if key not in ("name", "kind")}
    made = of_job({**job, "train": row["kind"] == "train"})
    record = {
        "name": row["name"], "kind": row["kind"], "allocated": made.peak_allocated_bytes, "reserved": made.peak_reserved_bytes,
        "total": made.total_bytes, "low": made.range.low_bytes, "high": made.range.high_bytes, "attention": made.attention,
    }
    with open(out, "a") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(record), flush=True)
