#!/usr/bin/env python3
"""What the model's own program takes for each row, without a GPU: exact_rows.py ROWS.json EXACT.jsonl

Writes a line for each row: the row, the sizes of the model's tensors (runs of the same layers once), and
what `plimsoll.torch.estimate` says; with --measured RECORDS.jsonl what a GPU held instead (`device`), for
the rows that are there. crates/models/tests/both_ways.rs works out the same rows from files alone. Wants
this package, PyTorch, Transformers, PEFT and bitsandbytes. Rows that are in the file are kept; after
--seconds no row is begun.
"""
import argparse
import json
import logging
import os
import sys
import time
import warnings

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
import torch
import transformers
from plimsoll.torch.estimating import of_job
from plimsoll.torch.programs import configuration


def tensors(settings):
    """Numbers of each tensor as save_pretrained writes them, as [times, [numbers…]] for each run of layers."""
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(configuration(settings))
    groups = []
    for name, tensor in model.named_parameters():
        layer = next((part for part in name.split(".") if part.isdigit()), None)
        if not groups or groups[-1][0] != layer:
            groups.append((layer, []))
        groups[-1][1].append(tensor.numel())
    runs = []
    for _, numbers in groups:
        if runs and runs[-1][1] == numbers:
            runs[-1][0] += 1
        else:
            runs.append([1, numbers])
    return runs


def exact(row):
    job = {key: value for key, value in row.items() if key not in ("name", "kind")}
    made = of_job({**job, "train": row["kind"] == "train"})
    return {"allocated": made.peak_allocated_bytes, "reserved": made.peak_reserved_bytes, "total": made.total_bytes}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows")
    parser.add_argument("out")
    parser.add_argument("--measured")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    wanted = parser.parse_args()
    done = {json.loads(line)["name"] for line in open(wanted.out)} if os.path.exists(wanted.out) else set()
    seen = {}
    if wanted.measured:
        records = [json.loads(line) for line in open(wanted.measured)]
        seen = {record["name"]: {key: record[key] for key in ("allocated", "reserved", "device")}
                for record in records if record["kind"] != "tracker" and "error" not in record}
    start = time.monotonic()
    for row in json.load(open(wanted.rows)):
        if row["name"] in done or (wanted.measured and row["name"] not in seen):
            continue
        if time.monotonic() - start > wanted.seconds:
            print("out of time before", row["name"])
            break
        began = time.monotonic()
        try:
            found = seen.get(row["name"]) or exact(row)
        except Exception as error:  # what this PyTorch or PEFT cannot run so is no row
            print(f"{row['name']}: {type(error).__name__}: {error}"[:200], flush=True)
            continue
        with open(wanted.out, "a") as file:
            file.write(json.dumps({**row, "tensors": tensors(row["config"]), **found}, separators=(",", ":")) + "\n")
        print(f"{row['name']}: {found} in {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main()
