#!/usr/bin/env python3
"""Predictions beside what a GPU held, as Markdown: rows_table.py ROWS.json PREDICTIONS.jsonl RECORDS.jsonl"""
import json
import statistics
import sys

MIB = 1 << 20
rows = {row["name"]: row for row in json.load(open(sys.argv[1]))}
read = lambda path: [json.loads(line) for line in open(path)]
predicted = {record["name"]: record for record in read(sys.argv[2])}
records = read(sys.argv[3])
measured = {record["name"]: record for record in records if record["kind"] != "tracker" and "error" not in record}
tracker = {record["name"]: record for record in records if record["kind"] == "tracker" and "error" not in record}


def off(guess, truth):
    return f"{(guess / truth - 1) * 100:+.1f} %"


def weights(row):
    """Parameters, by Transformers on tensors without data."""
    import torch
    import transformers

    settings = dict(row["config"])
    config = transformers.AutoConfig.for_model(settings.pop("model_type"), **settings)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    layers = max(sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules())
    return sum(p.numel() for p in model.parameters()), layers


def what(row):
    if row["kind"] == "infer":
        return f"{row['dtype']}, {row['batch']} × {row['tokens']:,}"
    parts = [row["precision"], row["optimizer"], f"{row['batch']} × {row['tokens']:,}"]
    parts += [f"LoRA {row['lora']}"] if row.get("lora") else []
    parts += [row["base_dtype"]] if row.get("base_dtype") else []
    parts += ["checkpointing"] if row.get("checkpointing") else []
    parts += [f"{row['grad_accumulation']} batches a step"] if row.get("grad_accumulation") else []
    return ", ".join(parts)


def table(kind):
    head = ["model", "run", "device, MiB", "predicted", "off", "allocated", "predicted", "off", "reserved", "predicted", "off"]
    head += ["MemTracker", "`accelerate` (4 × weights)", "DeepSpeed (ZeRO-2, 1 GPU)"] if kind == "train" else []
    print("| " + " | ".join(head) + " |\n| --- | --- |" + " ---: |" * (len(head) - 2))
    errors = {"device": [], "allocated": [], "reserved": []}
    above = refused = 0
    for name, row in rows.items():
        if row["kind"] != kind or name not in measured or name not in predicted:
            continue
        real, guess = measured[name], predicted[name]
        cells = [name, what(row)]
        for key, other in (("device", "total"), ("allocated", "allocated"), ("reserved", "reserved")):
            cells.append(f"{real[key] / MIB:,.0f}")
            if "total" in guess:
                cells += [f"{guess[other] / MIB:,.0f}", off(guess[other], real[key])]
                errors[key].append(abs(guess[other] / real[key] - 1) * 100)
            else:
                cells += ["refused", "–"]
        refused += "total" not in guess
        above += "total" in guess and real["device"] > guess["high"]
        if kind == "train":
            seen = tracker.get(name)
            cells.append(f"{seen['allocated'] / MIB:,.0f} ({off(seen['allocated'], real['allocated'])})" if seen else "–")
            count, _ = weights(row)
            bytes_each = 2 if row["precision"] == "bf16" else 4
            cells += [f"{4 * bytes_each * count / MIB:,.0f}", f"{20 * count / MIB:,.0f}"]
        print("| " + " | ".join(cells) + " |")
    print()
    for key, values in errors.items():
        if values:
            within = sum(value <= 5 for value in values)
            print(f"- {key}: median {statistics.median(values):.2f} %, largest {max(values):.1f} %, "
                  f"{within} of {len(values)} within 5 %")
    print(f"- above the upper end: {above} of {len(errors['device'])}" + (f"; refused: {refused}" if refused else "") + "\n")


for kind, title in (("infer", "## Inference"), ("train", "## Training")):
    print(title + "\n")
    table(kind)
missing = [name for name in rows if name not in measured]
if missing:
    print("Not measured: " + ", ".join(missing))
