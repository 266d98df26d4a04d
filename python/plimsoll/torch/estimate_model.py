"""What a language model takes in PyTorch, by its own program: what `plimsoll estimate --exact` starts.

    python3 -m plimsoll.torch.estimate_model FOLDER [--train …]

FOLDER has a config.json of Transformers; no weights are read. The answer is JSON: that of
`plimsoll.torch.ProgramEstimate`, or `{"unavailable": …}` (exit code 3) or `{"error": …}` (2).
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from ..errors import Unavailable
from .estimating import of_job

DTYPES = {
    "f32": "float32",
    "float32": "float32",
    "f16": "float16",
    "float16": "float16",
    "bf16": "bfloat16",
    "bfloat16": "bfloat16",
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python3 -m plimsoll.torch.estimate_model", description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--dtype", choices=sorted(DTYPES))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--context", type=int)
    parser.add_argument("--new-tokens", type=int, default=8)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--optimizer", default="adamw", choices=["adamw", "adamw-fused", "adamw-8bit", "sgd", "adafactor"])
    parser.add_argument("--precision", default="bf16", choices=["fp32", "bf16", "amp"])
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--lora", type=int)
    parser.add_argument("--base-dtype", choices=["nf4", "int8", "bf16"])
    parser.add_argument("--grad-accumulation", type=int, default=1)
    parser.add_argument("--allocator", default="caching", choices=["caching", "expandable", "plimsoll"])
    parser.add_argument("--limit", type=int)
    return parser


def settings(model: Path) -> dict[str, Any]:
    """What config.json says."""
    path = model / "config.json" if model.is_dir() else model.parent / "config.json"
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}: --exact needs the model's folder with its config.json")
    said: dict[str, Any] = json.loads(path.read_text())
    if "model_type" not in said:
        raise ValueError(f"{path} names no model_type")
    return said


def job(args: argparse.Namespace) -> dict[str, Any]:
    config = settings(args.model)
    most = config.get("max_position_embeddings") or config.get("n_positions") or 4096
    tokens = args.context or min(1024 if args.train else 4096, most)
    if args.train:
        return {
            "train": True,
            "config": config,
            "precision": args.precision,
            "optimizer": args.optimizer,
            "batch": args.batch,
            "tokens": tokens,
            "checkpointing": args.checkpointing,
            "lora": args.lora,
            "base_dtype": args.base_dtype,
            "grad_accumulation": args.grad_accumulation,
        }
    said = config.get("dtype") or config.get("torch_dtype")
    dtype = DTYPES.get(args.dtype or str(said), "bfloat16" if said is None else "float32")
    return {"config": config, "dtype": dtype, "batch": args.batch, "tokens": tokens, "new_tokens": args.new_tokens}


def require(wanted: dict[str, Any]) -> None:
    """Raises where a package that the program needs is not installed."""
    packages = {"torch": "PyTorch", "transformers": "Transformers"}
    if wanted.get("lora"):
        packages["peft"] = "PEFT, which makes LoRA's adapters,"
    if wanted.get("base_dtype") in ("nf4", "int8") or wanted.get("optimizer") == "adamw-8bit":
        packages["bitsandbytes"] = "bitsandbytes, which stores weights or optimizer states in 8 bits or fewer,"
    for package, name in packages.items():
        if importlib.util.find_spec(package) is None:
            raise Unavailable(f"{name} is not installed for {sys.executable}: pip install {package}")


def _first_line(error: Exception) -> str:
    """What went wrong; PyTorch's advice for debugging on a GPU, which stands behind it, helps nobody here."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def main(words: list[str] | None = None) -> int:
    args = _parser().parse_args(words)
    warnings.filterwarnings("ignore")
    try:
        wanted = job(args)
        require(wanted)
        importlib.import_module("transformers").logging.set_verbosity_error()
        answer = of_job(wanted, allocator=args.allocator, limit=args.limit)
    except Unavailable as error:
        print(json.dumps({"unavailable": str(error)}))
        return 3
    except Exception as error:  # whatever the model's program raises is the answer
        print(json.dumps({"error": _first_line(error)}))
        return 2
    said = {key: value for key, value in wanted.items() if key != "config"}
    print(json.dumps({**answer.to_dict(), "program": said}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
