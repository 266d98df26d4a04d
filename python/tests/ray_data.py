"""Clouds for the tests of `plimsoll.ray`, in every format, and what one machine makes of them."""

from __future__ import annotations

import ctypes
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from plimsoll.ray.grids import Array, Cloud, Grids
from plimsoll.ray.job import _units
from plimsoll.ray.places import Place, find
from plimsoll.ray.units import RECORDS, UnitMaker, UnitWork

#: The number of malloc's setting in malloc.h.
M_MMAP_THRESHOLD = -3


def write_clouds(folder: Path, count: int, points: int = 4000) -> Path:
    """Files of every format that is read, in turn; every fifth file has two clouds."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(7)
    for number in range(count):
        cloud = random.random((points + number, 4), dtype=np.float32)
        name = folder / f"scan{number}"
        match number % 5:
            case 0:
                np.save(f"{name}.npy", cloud)
            case 1:
                np.savez(f"{name}.npz", np.stack([cloud, cloud[::-1]]))
            case 2:
                cloud.tofile(f"{name}.bin")
            case 3:
                fields = "".join(f"property float {one}\n" for one in ("x", "y", "z", "intensity"))
                head = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(cloud)}\n{fields}end_header\n"
                Path(f"{name}.ply").write_bytes(head.encode() + cloud.tobytes())
            case _:
                head = (
                    "VERSION .7\nFIELDS x y z intensity\nSIZE 4 4 4 4\nTYPE F F F F\nCOUNT 1 1 1 1\n"
                    f"WIDTH {len(cloud)}\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {len(cloud)}\nDATA binary\n"
                )
                Path(f"{name}.pcd").write_bytes(head.encode() + cloud.tobytes())
    return folder


def on_one_machine(inputs: list[Any], out: Path, grids: Grids, form: str, rows: int) -> Path:
    """The shards of the same job, made by this process alone, without Ray."""
    sources = tuple(Place.of(name) for name in inputs)
    work = UnitWork(grids, form, rows, sources, Place.of(out), "cpu")
    (work.out / RECORDS).make_folder()
    maker = UnitMaker(work)
    for unit in _units(find(sources), rows):
        maker.make(unit)
    return out


def shards(folder: Path) -> dict[str, bytes]:
    """The bytes of every shard."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("part-*"))}


@dataclass(frozen=True)
class TightGrids(Grids):
    """Grids of workers that the kernel refuses more than some memory for a batch of three or more."""

    room: int = 0

    def make(self, clouds: list[Cloud], device: str) -> Array:  # type: ignore[override]
        if len(clouds) < 3:
            return super().make(clouds, device)
        # Large blocks come from the kernel, always: what was freed before would serve them.
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 << 10)
        with open("/proc/self/status", encoding="ascii") as status:
            held = next(int(line.split()[1]) for line in status if line.startswith("VmData:")) * 1024
        soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (held + self.room, hard))
        try:
            return super().make(clouds, device)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
