"""Tests of `plimsoll.ray` that take longer: scripts/check-ray runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray import cloudpickle

import plimsoll
import ray_data
from conftest import ROOT
from plimsoll.ray import Grids, JobOptions, hard_voxelize, voxelize, voxelize_files

# Ray's own warnings are not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")
# Workers do not have the tests' folder on their path.
cloudpickle.register_pickle_by_value(ray_data)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

GRIDS = Grids((48, 48, 48), 1 / 48)


class Doomed(Grids):
    """Kills its worker when it meets the longest cloud, as the kernel does when memory is short."""

    def make(self, clouds: Any, device: str) -> Any:
        if any(len(cloud) == 4039 for cloud in clouds):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().make(clouds, device)


def test_a_file_that_kills_its_worker_is_reported_in_the_end(
    cluster: Any, clouds: Path, tmp_path: Path
) -> None:
    options = JobOptions(shard_items=1, workers=2, max_attempts=2)
    report = voxelize_files([clouds], tmp_path, Doomed(GRIDS.grid, GRIDS.voxel_size), options)
    assert [Path(fault["file"]).name for fault in report.faults] == ["scan39.pcd"]
    assert "died 2 times" in report.faults[0]["why"] and report.items == 47


def test_a_data_set_larger_than_the_object_store_passes(cluster: Any) -> None:
    rows, points = 64, 400_000  # 4.8 MB each, 307 MB, where stores have 80 MiB

    def cloud(number: int) -> Any:
        return np.random.default_rng(number).random((points, 3), dtype=np.float32)

    def make(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "points": np.stack([cloud(int(number)) for number in batch["id"]])}

    numbers = ray.data.range(rows, override_num_blocks=rows)
    grids = voxelize(numbers.map_batches(make), 32, 1 / 32, mode="count", workers=2)
    found = {int(row["id"]): row["grid"] for row in grids.iter_rows()}
    assert sorted(found) == list(range(rows))
    for number in (0, rows - 1):
        assert np.array_equal(found[number], plimsoll.voxelize(cloud(number), 32, 1 / 32, mode="count"))


def test_files_of_a_data_set_become_grids(cluster: Any, clouds: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.ply").write_bytes(b"no cloud")
    paths = [str(clouds / "scan0.npy"), str(clouds / "scan1.npz"), str(tmp_path / "bad.ply")]
    files = ray.data.read_binary_files(paths, include_paths=True)
    rows = voxelize(files, GRIDS.grid, GRIDS.voxel_size, dtype="uint8").take_all()
    assert sorted(Path(row["path"]).name for row in rows) == ["scan0.npy", "scan1.npz", "scan1.npz"]
    own = plimsoll.voxelize(np.load(clouds / "scan0.npy"), GRIDS.grid, GRIDS.voxel_size, dtype="uint8")
    assert any(np.array_equal(row["grid"], own) for row in rows)
    with pytest.raises(Exception, match="bad.ply"):
        voxelize(files, GRIDS.grid, GRIDS.voxel_size, on_error="raise").take_all()


def test_files_of_a_data_set_become_hard_voxels(cluster: Any, clouds: Path) -> None:
    paths = [str(path) for path in sorted(clouds.glob("scan[0-4].*"))]
    files = ray.data.read_binary_files(paths, include_paths=True)
    what: tuple[Any, ...] = ([0.1] * 3, [0, 0, 0, 1, 1, 1], 5, 700)
    found: dict[str, list[Any]] = {}
    for row in hard_voxelize(files, *what, workers=2).take_all():
        found.setdefault(row["path"], []).append((row["voxels"], row["coors"], row["num_points"]))
    layer = plimsoll.Voxelization(*what)
    for path in paths:
        own = [layer(cloud) for cloud in plimsoll.read_points(path)]
        assert len(own) == len(found[path])
        for made, expected in zip(found[path], own, strict=True):
            assert all(map(np.array_equal, made, expected))


def test_the_example_runs(cluster: Any, clouds: Path, tmp_path: Path) -> None:
    line = [sys.executable, ROOT / "docs/examples/ray_grids.py", clouds, tmp_path, "--address", cluster.address]
    ended = subprocess.run(line, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr[-2000:]
    from pyarrow import parquet

    assert parquet.read_table(tmp_path).num_rows == 48
