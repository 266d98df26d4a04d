#!/usr/bin/env python3
"""What `accelerate estimate-memory` says of the models of shapes.py: accelerate_sizes.py >> RECORDS.jsonl

Accelerate's own code from its command on, for 16-bit weights; only its question to the hub
(which library a model is for) is answered here, and the configuration comes from a folder.
Run by `scripts/estimates-gpu/peers`, which installs what it needs.
"""
import argparse
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import accelerate
from accelerate.commands import estimate

from shapes import SHAPES, config


def total(folder, settings):
    (folder / "config.json").write_text(json.dumps(settings))
    estimate.verify_on_hub = lambda *_: SimpleNamespace(config=settings, library_name="transformers")
    args = argparse.Namespace(model_name=str(folder), library_name="transformers", trust_remote_code=False, dtypes=["float16"])
    with contextlib.redirect_stdout(sys.stderr):
        return int(estimate.gather_data(args)[0][2])


for name, shape in SHAPES.items():
    with tempfile.TemporaryDirectory() as folder:
        size = total(Path(folder), config(shape))
    print(json.dumps({"model": name, "engine": "accelerate", "total": size, "version": accelerate.__version__}), flush=True)
