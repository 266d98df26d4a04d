"""`plimsoll.ray` on real clusters of Ray's: several nodes on this machine.

What takes longer is in ray_long.py, which scripts/check-ray runs.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plimsoll
import plimsoll.ray

try:
    import ray
    from ray import cloudpickle
    from ray.cluster_utils import Cluster
except ImportError:
    if "ray" in os.environ.get("PLIMSOLL_REQUIRE", "").split(","):
        raise
    pytest.skip("skipped: Ray is not installed", allow_module_level=True)

import ray_data
from conftest import GPU_BYTES, STORE_BYTES
from plimsoll.ray import Grids, JobFailed, JobOptions, JobReport, Stage, voxelize_files
from plimsoll.ray.options import JobProgress

# Ray's own warnings are not ours to mend.
pytestmark = pytest.mark.filterwarnings("ignore")
# Workers do not have the tests' folder on their path.
cloudpickle.register_pickle_by_value(ray_data)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

GRIDS = Grids((48, 48, 48), 1 / 48)
ROWS = 4
OPTIONS = JobOptions(shard_items=ROWS, workers=2)


@pytest.fixture(scope="module")
def expected(clouds: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("expected")
    return ray_data.shards(ray_data.on_one_machine([clouds], out, GRIDS, "npz", ROWS))


def once(folder: Path) -> list[tuple[str, int]]:
    """The clouds that the shards have, from the shards themselves and from the index."""
    found: list[tuple[str, int]] = []
    for path in sorted(folder.glob("part-*.npz")):
        with np.load(path) as shard:
            found += [(str(file), int(cloud)) for file, cloud in zip(shard["files"], shard["clouds"], strict=True)]
    lines = [json.loads(line) for line in (folder / "index.jsonl").read_text().splitlines()]
    assert [(line["file"], line["cloud"]) for line in lines] == found
    assert len(set(found)) == len(found)
    return found


@dataclass(frozen=True)
class SlowGrids(Grids):
    """Takes a while for each batch, so that something can happen meanwhile."""

    seconds: float = 0.2

    def make(self, clouds: Any, device: str) -> Any:
        time.sleep(self.seconds)
        return super().make(clouds, device)


SLOW = SlowGrids(GRIDS.grid, GRIDS.voxel_size)


@dataclass(frozen=True)
class MeetingGrids(SlowGrids):
    """Begins when workers of two nodes are there: on a busy machine one may be done before the other starts."""

    meeting: str = ""

    def make(self, clouds: Any, device: str) -> Any:
        (Path(self.meeting) / ray.get_runtime_context().get_node_id()).touch()
        deadline = time.monotonic() + 120
        while len(list(Path(self.meeting).iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        return super().make(clouds, device)


def during(act: Callable[[Path], bool], out: Path) -> Callable[[JobProgress], None]:
    """Something that happens once, when some units are done and others are at work."""
    acted: list[bool] = []

    def progress(state: JobProgress) -> None:
        if 3 <= state.done <= state.units - 3 and not any(acted):
            acted.append(act(out))

    return progress


def processes(out: Path) -> list[int]:
    records = [json.loads(path.read_text()) for path in (out / "_units").glob("*.json")]
    return [record["process"] for record in sorted(records, key=lambda one: one["started_at"])]


def kill_worker(out: Path) -> bool:
    os.kill(processes(out)[-1], signal.SIGKILL)
    return True


def test_a_killed_worker_loses_nothing(
    cluster: Cluster, clouds: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    report = voxelize_files([clouds], tmp_path, SLOW, OPTIONS, progress=during(kill_worker, tmp_path))
    assert report.lost_attempts == 1 and report.faults == [] and report.items == 48
    assert ray_data.shards(tmp_path) == expected and len(once(tmp_path)) == 48


def remove_node_of(cluster: Cluster, out: Path) -> bool:
    """Kills a node whose worker has just made a unit, and so has the next one, with all its processes.
    False where only the first node has made any: without it there is no cluster."""
    nodes = {node.node_id: node for node in cluster.worker_nodes}
    records = [json.loads(path.read_text()) for path in (out / "_units").glob("*.json")]
    theirs = [record for record in records if record["node"] in nodes]
    if theirs:
        latest = max(theirs, key=lambda one: float(one["started_at"]))
        cluster.remove_node(nodes[latest["node"]], allow_graceful=False)
    return bool(theirs)


def test_a_removed_node_loses_nothing(
    cluster: Cluster,
    clouds: Path,
    expected: dict[str, bytes],
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
) -> None:
    on_all = JobOptions(shard_items=ROWS, workers=6)
    remove = during(lambda out: remove_node_of(cluster, out), tmp_path)
    # A worker may finish what it has before it sees that its node is gone.
    slow = MeetingGrids(GRIDS.grid, GRIDS.voxel_size, seconds=3.0, meeting=str(tmp_path_factory.mktemp("meeting")))
    report = voxelize_files([clouds], tmp_path, slow, on_all, progress=remove)
    cluster.add_node(num_cpus=4, object_store_memory=STORE_BYTES)
    assert report.lost_attempts >= 1 and report.faults == [] and len(report.nodes) > 1
    assert ray_data.shards(tmp_path) == expected and len(once(tmp_path)) == 48


def test_a_worker_out_of_memory_makes_smaller_batches(
    cluster: Cluster, clouds: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    # A grid takes 432 KiB; the kernel refuses a batch of three.
    tight = ray_data.TightGrids(GRIDS.grid, GRIDS.voxel_size, room=1 << 20)
    report = voxelize_files([clouds], tmp_path, tight, OPTIONS)
    assert report.out_of_memory > 0 and report.lost_attempts == 0 and report.faults == []
    assert ray_data.shards(tmp_path) == expected


def test_a_corrupt_file_is_reported_or_ends_the_job(cluster: Cluster, tmp_path: Path) -> None:
    folder = ray_data.write_clouds(tmp_path / "clouds", 6)
    whole = (folder / "scan3.ply").read_bytes()
    (folder / "scan3.ply").write_bytes(whole[:100])
    report = voxelize_files([folder], tmp_path / "out", GRIDS, OPTIONS)
    assert [Path(fault["file"]).name for fault in report.faults] == ["scan3.ply"]
    assert report.items == 6 and len(once(tmp_path / "out")) == 6
    strict = JobOptions(shard_items=ROWS, workers=1, strict=True)
    for out in ("out", "strict"):  # found by an earlier run, or by this one
        with pytest.raises(JobFailed, match="scan3.ply"):
            voxelize_files([folder], tmp_path / out, GRIDS, strict)
    # Mended, it is made when that is asked for.
    (folder / "scan3.ply").write_bytes(whole)
    with pytest.raises(ValueError, match="scan3.ply has changed"):
        voxelize_files([folder], tmp_path / "out", GRIDS, OPTIONS)
    again = JobOptions(shard_items=ROWS, workers=1, retry_faults=True)
    report = voxelize_files([folder], tmp_path / "out", GRIDS, again)
    assert report.faults == [] and report.items == 7 and report.units_found == 1


def command(cluster: Cluster, clouds: Path, out: Path, *more: str) -> list[str]:
    grid = ["--grid", "160,160,160", "--voxel-size", str(1 / 160), "--origin", "0,0,0", "--dtype", "u8"]
    words = [sys.executable, "-m", "plimsoll.ray", "voxelize", str(clouds), *grid, "--out", str(out)]
    return [*words, "--shard-items", "1", "--workers", "1", "--address", cluster.address, *more]


def test_an_interrupted_driver_goes_on_where_it_stopped(
    cluster: Cluster, clouds: Path, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    # Grids that take a while, so that it is interrupted before it is done.
    large = Grids((160, 160, 160), 1 / 160, dtype="uint8")
    expected = ray_data.shards(ray_data.on_one_machine([clouds], tmp_path_factory.mktemp("own"), large, "npz", 1))
    kept: set[Path] = set()
    for how, code in ((signal.SIGINT, 130), (signal.SIGKILL, -9)):
        child = subprocess.Popen(command(cluster, clouds, tmp_path), stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 240
        while len(found := set(tmp_path.glob("_units/*.json"))) < len(kept) + 2 and time.monotonic() < deadline:
            assert child.poll() is None, child.communicate()
            time.sleep(0.002)
        child.send_signal(how)
        _, said = child.communicate(timeout=240)
        assert child.returncode == code, said
        assert ("the same command goes on" in said) == (how == signal.SIGINT)
        kept = found
    before = {path.name: path.stat().st_mtime_ns for path in kept}
    ended = subprocess.run(command(cluster, clouds, tmp_path, "--json"), capture_output=True, text=True)
    report = json.loads(ended.stdout)
    assert (ended.returncode, report["items"], report["faults"]) == (0, 48, []), ended.stderr
    assert 4 <= report["units_found"] < 40 and "voxelize: 40 of 40 units" in ended.stderr
    assert ray_data.shards(tmp_path) == expected and len(once(tmp_path)) == 48
    for name, stamp in before.items():
        assert (tmp_path / "_units" / name).stat().st_mtime_ns == stamp, f"{name} was made again"
    names = {path.name for path in tmp_path.iterdir() if not path.name.startswith("part-")}
    assert names == {"_units", "index.jsonl", "job.json", "report.html", "report.json"}
    assert json.loads((tmp_path / "report.json").read_text()) == report
    page = (tmp_path / "report.html").read_text()
    assert "48 grids" in page and report["nodes"][0]["node"][:12] in page


class OnGpu:
    """Each row takes 256 MiB of the simulated GPU while it is worked on. Begins when two of them are there."""

    def __init__(self, meeting: Path) -> None:
        import ctypes

        (meeting / str(os.getpid())).touch()
        deadline = time.monotonic() + 120
        while len(list(meeting.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)

        self.cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        assert self.cuda.cuInit(0) == 0
        assert self.cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
        assert self.cuda.cuCtxSetCurrent(context) == 0

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        import ctypes

        rows, pointer, held = len(batch["id"]), ctypes.c_uint64(), []
        try:
            for _ in range(rows):
                if self.cuda.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(256 << 20)) != 0:
                    raise plimsoll.OutOfMemory(f"{rows} rows do not fit")
                held.append(pointer.value)
        finally:
            for one in held:
                self.cuda.cuMemFree_v2(ctypes.c_uint64(one))
        time.sleep(0.02)
        counted = plimsoll.stats()
        told = {"limit": counted["limit_bytes"], "peak": counted["charged_bytes.peak"]}
        told |= {"refused": counted["num_refused"], "rows": rows, "process": os.getpid()}
        return {"id": batch["id"]} | {name: np.full(rows, value) for name, value in told.items()}


def test_actors_with_half_a_gpu_have_half_its_memory(cluster: Cluster, tmp_path: Path) -> None:
    stage = Stage(OnGpu, num_gpus=0.5, workers=2, batch_size=64, args=(tmp_path,))
    rows = ray.data.range(512, override_num_blocks=8).map_batches(**stage).take_all()
    assert sorted(row["id"] for row in rows) == list(range(512)), "every row once"
    assert {row["limit"] for row in rows} == {GPU_BYTES // 2}
    assert len({row["process"] for row in rows}) == 2
    assert all(row["peak"] <= GPU_BYTES // 2 for row in rows)
    assert max(row["rows"] for row in rows) == 15, "4 GiB less the reserve hold 15"
    assert any(row["refused"] for row in rows), "one ran out, and went on in halves"


def test_an_actor_that_cannot_be_limited_says_so(cluster: Cluster) -> None:
    options: dict[str, Any] = {"workers": 1, "num_cpus": 1, "runtime_env": {"env_vars": {"LD_LIBRARY_PATH": "/nowhere"}}}
    stage = Stage(dict, limit=None, num_gpus=0.25, **options)  # a share of a GPU that has no driver
    with pytest.raises(Exception, match="memory limit for this actor is not available"):
        ray.data.range(4).map_batches(**stage).take_all()
    with pytest.raises(ValueError, match="py_executable"):
        Stage(dict, limit="1GiB", runtime_env={"py_executable": "python"})
    with pytest.raises(TypeError, match="function of a batch"):
        Stage("no function")  # type: ignore[arg-type]


def test_files_on_other_file_systems_are_written_whole(
    cluster: Cluster, clouds: Path, expected: dict[str, bytes], tmp_path: Path
) -> None:
    from pyarrow import fs

    # Not pyarrow's local one, for which files are renamed: through its general interface.
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "in").symlink_to(clouds)
    apart = fs.SubTreeFileSystem(str(tmp_path), fs.LocalFileSystem())
    (out / ".unfinished-part-000000-000.npz.dead").write_bytes(b"half")
    report: JobReport = voxelize_files(["in"], "out", GRIDS, OPTIONS, filesystem=apart)
    assert report.items == 48 and not list(out.glob(".unfinished-*"))
    # The names of files are in the shards; the grids are the same.
    for name, content in expected.items():
        (tmp_path / name).write_bytes(content)
        with np.load(out / name) as made, np.load(tmp_path / name) as own:
            assert np.array_equal(made["grids"], own["grids"])


def test_bad_usage_is_one_message_and_nothing_is_written(clouds: Path, tmp_path: Path) -> None:
    def said(*words: str) -> tuple[int, str]:
        line = [sys.executable, "-m", "plimsoll.ray", "voxelize", *words]
        ended = subprocess.run(line, capture_output=True, text=True)
        return ended.returncode, ended.stderr.splitlines()[-1]

    out = ["--out", str(tmp_path / "out"), "--voxel-size", "1"]
    assert said(str(tmp_path), *out, "--grid", "8,8,8") == (
        2,
        f"error: {tmp_path}: no file there ends in .npy, .npz, .ply, .pcd, .bin",
    )
    code, text = said(str(clouds), *out, "--grid", "8,8")
    assert code == 2 and "one number or three" in text
    code, text = said(str(clouds), *out, "--grid", "8", "--mode", "count", "--dtype", "u8")
    assert code == 2 and text.startswith("error: ")
    code, text = said("surely://not", *out, "--grid", "8")
    assert code == 2 and "surely://not" in text
    assert not (tmp_path / "out").exists()


def test_the_examples_of_the_package_run(cluster: Cluster) -> None:
    import doctest

    from plimsoll.ray import grids, hard, job, options, places, sizes, stage, worker

    for module in (grids, hard, job, options, places, sizes, stage, worker):
        found = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
        assert found.attempted and not found.failed, module.__name__
    names = plimsoll.ray.__all__
    assert all(getattr(plimsoll.ray, name).__doc__ for name in names)


def test_the_guide_runs(cluster: Cluster) -> None:
    import doctest

    root = Path(__file__).resolve().parents[2]
    text = (root / "docs/guide/ray.md").read_text(encoding="utf-8")
    code = "\n".join(block.split("```")[0] for block in text.split("```python\n")[1:])
    test = doctest.DocTestParser().get_doctest(code, {}, "docs/guide/ray.md", None, None)
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    runner.run(test, out=said.append)
    assert test.examples and runner.failures == 0, "".join(said)


def test_a_cluster_without_room_says_so(cluster: Cluster, clouds: Path, tmp_path: Path) -> None:
    with pytest.raises(plimsoll.Unavailable, match="has 12 and 1; ask for less"):
        voxelize_files([clouds], tmp_path, GRIDS, JobOptions(num_gpus=2))
