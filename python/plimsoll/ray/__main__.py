"""`python -m plimsoll.ray voxelize INPUT… --out DIR`."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import time
from typing import Any

from ..errors import Error

EXAMPLES = """examples:
  python -m plimsoll.ray voxelize scans/ --grid 64,512,512 --voxel-size 0.2 \\
    --origin -51.2,-51.2,-5 --dtype bits --out shards
  python -m plimsoll.ray voxelize 's3://bucket/scans/*.bin' --grid 128,128,128 --voxel-size 0.05 \\
    --out s3://bucket/shards --format parquet --address auto --num-gpus 0.5

Files: .npy, .npz, .ply, .pcd, KITTI's .bin, on this machine or any file system that pyarrow opens.
A job that was interrupted goes on where it stopped: give the same command again.
Exit codes: 0 done (files that could not be read are in the report), 2 bad usage or input, 3 failed,
130 interrupted."""

BAD_INPUT, FAILED, STOPPED = 2, 3, 130
#: Without a terminal, progress is a line every so many seconds.
LINE_EVERY_S = 10.0


def parser() -> argparse.ArgumentParser:
    """The flags; each also in snake_case."""
    top = argparse.ArgumentParser(prog="python -m plimsoll.ray", description="Point clouds on a cluster of Ray's.")
    verbs = top.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser(
        "voxelize",
        help="make shards of voxel grids of files",
        description="Make shards of voxel grids of files, on the workers of a cluster.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )

    def flag(name: str, **how: Any) -> None:
        names = dict.fromkeys((name, "--" + name[2:].replace("-", "_")))
        verb.add_argument(*names, **how)

    verb.add_argument("input", nargs="+", metavar="INPUT", help="a file, a folder, a pattern in quotes, or a URI")
    flag("--out", required=True, metavar="DIR", help="the folder of the shards, or its URI")
    flag("--grid", required=True, type=_three(int), metavar="D,H,W", help="voxels along depth, height and width")
    flag("--voxel-size", required=True, type=_three(float), metavar="S|X,Y,Z", help="the size of a voxel")
    flag("--origin", type=_three(float), default=(0.0, 0.0, 0.0), metavar="X,Y,Z", help="where the first begins")
    flag("--mode", default="occupancy", choices=("occupancy", "count", "mean", "max"), help="what a voxel tells")
    flag("--dtype", choices=("f32", "u32", "u8", "bits"), help="f32, u8 or bits (occupancy), u32 (count)")
    flag("--format", default="npz", choices=("npy", "npz", "parquet"), help="of the shards")
    flag("--shard-size", default="128MiB", metavar="SIZE", help="grids of a shard at most (128MiB)")
    flag("--shard-items", type=int, metavar="N", help="clouds of a shard, in place of its size")
    flag("--address", metavar="ADDRESS", help="the cluster: auto, ray://…; without it, this machine alone")
    flag("--workers", type=int, metavar="N", help="actors; as many as the cluster has room for, without it")
    flag("--num-cpus", type=float, default=1, metavar="N", help="processors of a worker, and its threads (1)")
    flag("--num-gpus", type=float, default=0, metavar="N", help="GPUs of a worker; 0.5 is half of one")
    flag("--gpu-mem-limit", dest="limit", metavar="SIZE", help="GPU memory of a worker; its share of the GPU without it")
    flag("--strict", action="store_true", help="end with the first file that cannot be read")
    flag("--retry-faults", action="store_true", help="make units with such files again")
    flag("--max-attempts", type=int, default=4, metavar="N", help="how often a unit is begun whose worker dies (4)")
    flag("--json", action="store_true", help="print the report as JSON")
    flag("--quiet", action="store_true", help="show no progress")
    return top


def _three(kind: Any) -> Any:
    def parse(text: str) -> Any:
        values = [kind(one) for one in text.split(",")]
        if len(values) not in (1, 3):
            raise ValueError
        return tuple(values * 3 if len(values) == 1 else values)

    parse.__name__ = "one number or three"
    return parse


class _ProgressLine:
    """One line that is written over on a terminal; elsewhere a line now and then."""

    def __init__(self, quiet: bool) -> None:
        self.quiet, self.last, self.begun = quiet, -LINE_EVERY_S, time.monotonic()
        self.terminal = sys.stderr.isatty()

    def __call__(self, state: Any) -> None:
        now = time.monotonic()
        if self.quiet or (not self.terminal and now - self.last < LINE_EVERY_S and state.done < state.units):
            return
        self.last = now
        own = state.done - state.found
        left = (now - self.begun) / own * (state.units - state.done) if own else None
        text = (
            f"voxelize: {state.done} of {state.units} units, {state.items} grids, {state.faults} faults, "
            f"{state.retries} retries, {state.workers} workers, {_seconds(left)} left"
        )
        sys.stderr.write(f"\r\x1b[K{text}" if self.terminal else f"{text}\n")
        sys.stderr.flush()

    def end(self) -> None:
        if self.terminal and not self.quiet:
            sys.stderr.write("\r\x1b[K")


def _seconds(left: float | None) -> str:
    if left is None:
        return "–"
    return f"{left:.0f} s" if left < 120 else f"{left / 60:.0f} min"


def run(arguments: Any) -> None:
    """Does the job and prints its report."""
    from . import Grids, JobOptions, voxelize_files

    dtypes = {"f32": "float32", "u32": "uint32", "u8": "uint8", "bits": "bits", None: None}
    grids = Grids(
        arguments.grid, arguments.voxel_size, arguments.origin, arguments.mode, dtypes[arguments.dtype]
    )
    names = (
        *("format", "shard_size", "shard_items", "workers", "num_cpus", "num_gpus", "limit"),
        *("strict", "retry_faults", "max_attempts", "address"),
    )
    options = JobOptions(**{name: getattr(arguments, name) for name in names})
    line = _ProgressLine(arguments.quiet)
    try:
        # Ray prints what happens to workers on stdout, where the report is to be alone.
        with contextlib.redirect_stdout(sys.stderr):
            report = voxelize_files(arguments.input, arguments.out, grids, options, progress=line)
    finally:
        line.end()
    sys.stdout.write(report.to_json() if arguments.json else report.to_text())


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    """The command; its exit code."""
    arguments = parser().parse_args()
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        run(arguments)
    except KeyboardInterrupt:
        print("interrupted; what is made stays, and the same command goes on from there", file=sys.stderr)
        return STOPPED
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except ImportError as error:
        print(f"error: {error}; install it with the package (pip install '.[ray]' in its checkout)", file=sys.stderr)
        return FAILED
    except (Error, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
