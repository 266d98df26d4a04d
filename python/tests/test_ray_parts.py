"""The parts of `plimsoll.ray` that need no cluster: sizes, files, shards, plans."""

from __future__ import annotations

import io
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies

import plimsoll
from plimsoll import command

try:
    import pyarrow as pa
    from pyarrow import fs, parquet
except ImportError:
    if "ray" in os.environ.get("PLIMSOLL_REQUIRE", "").split(","):
        raise
    pytest.skip("skipped: pyarrow is not installed", allow_module_level=True)

import ray_data
from plimsoll.ray import Grids, JobOptions, voxelize_files
from plimsoll.ray.job import _begin, _units
from plimsoll.ray.places import Place, find, natural
from plimsoll.ray.shards import write_shard
from plimsoll.ray.sizes import CALM, MemoryReading, MemorySizes
from plimsoll.ray.units import UnitWork

GRIDS = Grids((16, 16, 16), 1 / 16)


@given(
    base=strategies.integers(0, 1000),
    each=strategies.integers(1, 50),
    room=strategies.integers(60, 5000),
    most=strategies.integers(1, 300),
)
def test_sizes_grow_into_the_room_and_never_past_it(base: int, each: int, room: int, most: int) -> None:
    peak, failures, last = base, 0, 0

    def read() -> MemoryReading:
        return MemoryReading(peak, room - (peak - base))

    sizes = MemorySizes(most, read)
    for _ in range(200):
        last = sizes.size
        assert 1 <= last <= most
        if last * each > room:
            failures += 1
            sizes.failed(last, 0.0)
        else:
            peak = max(peak, base + last * each)
            sizes.succeeded(last, 0.0)
    fitting = min(most, room // each)
    # Two items are tried without knowing what one needs; and again, now and then.
    assert failures == 0 or (room // each < 2 and failures <= 200 // CALM + 1)
    assert last >= fitting * 0.6 or last >= fitting - 2, "and it comes near what fits"


def test_a_failure_halves_and_is_not_repeated_soon() -> None:
    sizes = MemorySizes(64, lambda: MemoryReading(0, 1 << 40), bytes_per_item=1)
    assert sizes.size == 64
    sizes.failed(64, 0.0)
    tried = []
    for _ in range(40):
        tried.append(sizes.size)
        sizes.succeeded(sizes.size, 0.0)
    assert tried[0] == 32 and tried[1:31] == [63] * 30 and sizes.size == 64 and sizes.retries == 1


def test_files_are_found_in_the_order_of_the_command(tmp_path: Path) -> None:
    for name in ("b10.bin", "b9.bin", "B1.NPY", "notes.txt", "._b9.bin", "sub/c.ply"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")

    def names(*inputs: str) -> list[str]:
        found = find([Place.of(f"{tmp_path}/{one}") for one in inputs])
        return [os.path.relpath(file.path, tmp_path) for file in found]

    assert names("") == ["B1.NPY", "b9.bin", "b10.bin"]
    assert names("*.bin") == ["b9.bin", "b10.bin"] and names("*/*.ply") == ["sub/c.ply"]
    assert names("b10.bin", "sub") == ["b10.bin", "sub/c.ply"] and names(".*.bin") == ["._b9.bin"]
    assert [file.path for file in find([Place.of(f"file://{tmp_path}/b9.bin")])] == [f"{tmp_path}/b9.bin"]
    for bad, why in (("notes.txt", "end in .npy"), ("none.bin", "no such file"), ("*.las", "no file there")):
        with pytest.raises(ValueError, match=why):
            names(bad)


@given(strategies.lists(strategies.text("ab019./é", max_size=6)))
def test_natural_order_is_an_order(names: list[str]) -> None:
    keyed = sorted(names, key=natural)
    assert keyed == sorted(reversed(names), key=natural)


def test_a_shard_has_the_bits_of_the_command(tmp_path: Path) -> None:
    clouds = ray_data.write_clouds(tmp_path / "clouds", 10)
    options = ["--grid", "16,16,16", "--voxel-size", str(1 / 16), "--origin", "0,0,0", "--backend", "host"]
    for mode in ("occupancy", "count", "mean"):
        line = [command.executable(), "voxelize", clouds, *options, "--mode", mode, "--out", tmp_path / f"{mode}.npy"]
        subprocess.run(line, check=True, capture_output=True)
        grids = Grids(GRIDS.grid, GRIDS.voxel_size, mode=mode, features=1)
        out = ray_data.on_one_machine([clouds], tmp_path / mode, grids, "npy", 16)
        whole = np.load(tmp_path / f"{mode}.npy")
        made = np.load(out / "part-000000-000.npy")
        assert made.shape == (12, *grids.shape) and made.dtype == whole.dtype
        assert made.tobytes() == whole.tobytes()


def test_formats_hold_the_same_and_repeat_their_bytes(tmp_path: Path) -> None:
    values = np.arange(2 * 3 * 4, dtype=np.float32).reshape(2, 3, 4)
    written: dict[str, bytes] = {}
    for form in ("npy", "npz", "parquet"):
        for _ in range(2):
            stream = io.BytesIO()
            size = write_shard(stream, form, "grids", values, ["a.bin", "b.bin"], [0, 3])
            assert size == len(stream.getvalue()) and written.setdefault(form, stream.getvalue()) == stream.getvalue()
    assert np.array_equal(np.load(io.BytesIO(written["npy"])), values)
    with np.load(io.BytesIO(written["npz"])) as archive:
        assert np.array_equal(archive["grids"], values) and archive["clouds"].tolist() == [0, 3]
        assert archive["files"].tolist() == ["a.bin", "b.bin"]
    table = parquet.read_table(pa.BufferReader(written["parquet"]))
    assert np.array_equal(table["grids"].combine_chunks().to_numpy_ndarray(), values)
    assert table["file"].to_pylist() == ["a.bin", "b.bin"] and table["cloud"].to_pylist() == [0, 3]


@pytest.mark.parametrize("local", [True, False])
def test_a_file_is_whole_or_not_there(tmp_path: Path, local: bool) -> None:
    system: Any = fs.LocalFileSystem() if local else fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    place = Place(system, f"{tmp_path}/shard" if local else "shard")

    def breaks(stream: Any) -> None:
        stream.write(b"half")
        raise OSError("the disk is full")

    for before in (None, b"whole"):
        if before is not None:
            place.write(before)
        with pytest.raises(OSError, match="disk is full"):
            place.write(breaks)
        found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        assert found == ({} if before is None else {"shard": before})


def work(folder: Path, out: Path, grids: Grids = GRIDS, rows: int = 2) -> tuple[UnitWork, Any, Any]:
    sources = (Place.of(folder),)
    files = find(sources)
    return UnitWork(grids, "npz", rows, sources, Place.of(out), "cpu"), files, _units(files, rows)


def test_a_folder_with_another_jobs_shards_is_refused(tmp_path: Path) -> None:
    clouds, out = ray_data.write_clouds(tmp_path / "clouds", 4), tmp_path / "out"
    assert _begin(*work(clouds, out), False) == {}
    ray_data.on_one_machine([clouds], out, GRIDS, "npz", 2)
    assert sorted(_begin(*work(clouds, out), False)) == [0, 1]
    with pytest.raises(ValueError, match="what is made was"):
        _begin(*work(clouds, out, Grids((8, 8, 8), 1 / 8)), False)
    with pytest.raises(ValueError, match="size of shards"):
        _begin(*work(clouds, out, rows=3), False)
    # A shard that is not there, or not whole, is made again.
    (out / "part-000001-000.npz").write_bytes(b"half")
    assert sorted(_begin(*work(clouds, out), False)) == [0]
    os.utime(clouds / "scan0.npy", ns=(1, 1))
    with pytest.raises(ValueError, match="scan0.npy has changed"):
        _begin(*work(clouds, out), False)
    (clouds / "scan9.bin").write_bytes(b"")
    with pytest.raises(ValueError, match="other files"):
        _begin(*work(clouds, out), False)


def test_a_finished_job_needs_no_cluster(tmp_path: Path) -> None:
    clouds, out = ray_data.write_clouds(tmp_path / "clouds", 4), tmp_path / "out"
    _begin(*work(clouds, out), False)
    ray_data.on_one_machine([clouds], out, GRIDS, "npz", 2)
    report = voxelize_files([clouds], out, GRIDS, JobOptions(shard_items=2))
    assert (report.items, report.units_found, report.units, report.workers) == (5, 2, 2, 0)
    assert json.loads((out / "report.json").read_text())["items"] == 5


def test_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    for options in (JobOptions(format="zip"), JobOptions(workers=0), JobOptions(num_gpus=-1)):
        with pytest.raises(ValueError):
            voxelize_files([tmp_path], tmp_path / "out", GRIDS, options)
    with pytest.raises(ValueError, match="dtype"):
        Grids((8, 8, 8), 1.0, dtype="float16")
    with pytest.raises(ValueError):
        Grids((8, 8, 8), -1.0)
    assert not (tmp_path / "out").exists()


def test_points_are_read_from_bytes_as_from_files(tmp_path: Path) -> None:
    clouds = ray_data.write_clouds(tmp_path, 5, points=100)
    for path in sorted(clouds.iterdir()):
        own = plimsoll.read_points(path)
        assert [one.shape for one in own] == [(100 + int(path.stem[4:]), 4)] * (2 if path.suffix == ".npz" else 1)
        assert all(map(np.array_equal, own, plimsoll.read_points(path.name, path.read_bytes())))
    assert plimsoll.read_points(clouds / "scan3.ply", features=False)[0].shape == (103, 3)
    with pytest.raises(ValueError, match="scan3.ply, line"):
        plimsoll.read_points("scan3.ply", (clouds / "scan3.ply").read_bytes()[:20])
    with pytest.raises(plimsoll.Unavailable, match="files that end in .npy"):
        plimsoll.read_points("cloud.las", b"")
