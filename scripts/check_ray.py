"""What scripts/check-ray runs."""
import argparse
import contextlib
import json
import multiprocessing
import os
import pathlib
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import urllib.request

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python/tests"))

import pyarrow  # noqa: E402
import ray  # noqa: E402
import ray_data  # noqa: E402
from ray import cloudpickle  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

import plimsoll  # noqa: E402
from plimsoll.ray import Grids, JobOptions, voxelize, voxelize_files  # noqa: E402
from plimsoll.ray.job import _units  # noqa: E402
from plimsoll.ray.places import Place, find  # noqa: E402
from plimsoll.ray.units import RECORDS, UnitMaker, UnitWork  # noqa: E402

cloudpickle.register_pickle_by_value(sys.modules[__name__])
FINDINGS = []
GRIDS = Grids((48, 48, 48), 1 / 48)
STORE_BYTES = 80 << 20
TURNS = 5


def note(**finding):
    FINDINGS.append(finding)
    print(json.dumps(finding), flush=True)


def check(what, is_so):
    note(check=what, holds=bool(is_so))


class Slow(Grids):
    """Takes a while, so that something can happen meanwhile."""

    def make(self, clouds, device):
        time.sleep(0.05)
        return super().make(clouds, device)


@contextlib.contextmanager
def cluster(nodes=3, cpus=4, **options):
    made = Cluster()
    for _ in range(nodes):
        made.add_node(num_cpus=cpus, object_store_memory=STORE_BYTES, **options)
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    try:
        yield made
    finally:
        ray.shutdown()
        made.shutdown()


def once(out, clouds):
    lines = [json.loads(line) for line in (out / "index.jsonl").read_text().splitlines()]
    items = {(line["file"], line["cloud"]) for line in lines}
    return len(items) == len(lines) == clouds


def tests(folder):
    """The tests of the package."""
    words = [sys.executable, "-m", "pytest", "-q", "python/tests/test_ray.py", "python/tests/ray_long.py", "python/tests/test_ray_parts.py"]
    begun = time.monotonic()
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "PLIMSOLL_REQUIRE": "ray"})
    lines = ended.stdout.strip().splitlines()
    note(tests=lines[-1], failed_tests=[line for line in lines if line.startswith(("FAILED", "ERROR"))], seconds=round(time.monotonic() - begun, 1))
    check("the tests pass", ended.returncode == 0)


def storm(folder):
    """One job: a worker killed every second, a node removed, the driver interrupted and started again."""
    clouds = ray_data.write_clouds(folder / "clouds", 400)
    expected = ray_data.shards(ray_data.on_one_machine([clouds], folder / "expected", GRIDS, "npz", 4))
    out, slow, chosen = folder / "out", Slow(GRIDS.grid, GRIDS.voxel_size), random.Random(5)
    killed, interruptions, removed, last = 0, 0, False, time.monotonic()

    with cluster() as nodes:

        def progress(state):
            nonlocal killed, interruptions, removed, last
            if interruptions < 2 and state.done > 30 * (interruptions + 1):
                interruptions += 1
                raise KeyboardInterrupt
            if not removed and state.done > 50 and state.workers > 1:
                removed = True
                nodes.remove_node(chosen.choice(list(nodes.worker_nodes)), allow_graceful=False)
            if time.monotonic() - last > 1.0 and state.workers:
                last = time.monotonic()
                records = [json.loads(path.read_text()) for path in (out / RECORDS).glob("*.json")]
                recent = [one["process"] for one in records if one["started_at"] > time.time() - 1]
                for process in recent[:1]:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                        killed += 1

        options = JobOptions(shard_items=4, workers=4, max_attempts=20)
        begun = time.monotonic()
        while True:
            try:
                report = voxelize_files([clouds], out, slow, options, progress=progress)
                break
            except KeyboardInterrupt:
                pass
    note(storm="400 files, 480 clouds", seconds=round(time.monotonic() - begun, 1), killed=killed, nodes_removed=int(removed),
         interruptions=interruptions, lost_attempts=report.lost_attempts, units_found=report.units_found, units=report.units)
    check("every cloud exactly once", once(out, 480) and not report.faults)
    check("the same bytes as on one machine", ray_data.shards(out) == expected)
    check("workers, a node and the driver were lost", killed >= 3 and removed and interruptions == 2)


def s3(folder):
    """Inputs and shards on a store of objects, through pyarrow's S3."""
    try:
        import moto  # noqa: F401
    except ImportError:
        note(skipped="s3", why="moto is not installed")
        return
    clouds = ray_data.write_clouds(folder / "clouds", 40)
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-p", "5559"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_EC2_METADATA_DISABLED="true")
    try:
        for _ in range(100):
            with contextlib.suppress(OSError):
                urllib.request.urlopen("http://127.0.0.1:5559/moto-api/", timeout=1)
                break
            time.sleep(0.2)
        at = "?endpoint_override=127.0.0.1:5559&scheme=http&region=us-east-1&allow_bucket_creation=true"
        bucket = Place.of(f"s3://clouds{at}")
        bucket.make_folder()
        for path in clouds.iterdir():
            (bucket / "in" / path.name).write(path.read_bytes())
        with cluster(2):
            acted = []

            def progress(state):
                if state.done >= 3 and not acted:
                    records = Place.of(f"s3://clouds/out/{RECORDS}{at}").files()
                    acted.append(json.loads(Place(bucket.filesystem, records[-1].path).read())["process"])
                    os.kill(acted[0], signal.SIGKILL)

            options = JobOptions(shard_items=4, workers=2, format="parquet")
            slow = Slow(GRIDS.grid, GRIDS.voxel_size)
            report = voxelize_files([f"s3://clouds/in/scan*{at}"], f"s3://clouds/out{at}", slow, options, progress=progress)
        names = sorted(one.base_name for one in Place.of(f"s3://clouds/out{at}").files())
        ray_data.on_one_machine([clouds], folder / "own", GRIDS, "parquet", 4)
        from pyarrow import parquet

        same = True
        for path in sorted((folder / "own").glob("part-*")):
            made = parquet.read_table(pyarrow.BufferReader((Place.of(f"s3://clouds/out{at}") / path.name).read()))
            same &= made["grids"].equals(parquet.read_table(path)["grids"])
        note(s3="moto", items=report.items, lost_attempts=report.lost_attempts, faults=len(report.faults), files=len(names), seconds=round(report.seconds, 1))
        check("48 clouds on a store of objects, a worker killed, nothing unfinished left", report.items == 48 and report.lost_attempts >= 1 and not any("unfinished" in name for name in names))
        check("the grids of one machine", same and not report.faults)
    finally:
        server.terminate()


def store(folder):
    """A data set of many times the object store, through Ray Data."""
    rows, points = 400, 400_000

    def make(batch):
        return {"id": batch["id"], "points": np.stack([cloud(int(one), points) for one in batch["id"]])}

    with cluster(2):
        begun, total, seen = time.monotonic(), 0, []
        grids = voxelize(ray.data.range(rows, override_num_blocks=rows).map_batches(make), 32, 1 / 32, mode="count", workers=2)
        for row in grids.iter_rows():
            seen.append(int(row["id"]))
            total += int(row["grid"].sum())
        bytes_in = rows * points * 12
    note(store="Ray Data", clouds=rows, points_bytes=bytes_in, stores_bytes=2 * STORE_BYTES, seconds=round(time.monotonic() - begun, 1))
    check("a data set of 11 times the object stores passes, every row once", sorted(seen) == list(range(rows)) and total == rows * points)


def cloud(number, points):
    return np.random.default_rng(number).random((points, 3), dtype=np.float32)


class FirstGrids(Grids):
    """Grids of workers that are served before other programs of this machine, where that was asked for."""

    def make(self, clouds, device):
        be_first()
        return super().make(clouds, device)


def be_first():
    """Puts this process, and its session, before others (--first): as on a machine of one's own."""
    if os.environ.get("CHECK_RAY_FIRST"):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, -20)
            pathlib.Path("/proc/self/autogroup").write_text("-20")


SPEED = FirstGrids((64, 128, 128), (1 / 128, 1 / 128, 1 / 64), mode="count")
#: Items of two kinds: text, which takes the processor, and floats, which take the memory's bandwidth.
KINDS = {"text": 500_000, "floats": 2_500_000}


def speed_data(folder, kind, files=16):
    made = folder / kind
    made.mkdir()
    for number in range(files):
        scan = np.random.default_rng(number).random((KINDS[kind], 4), dtype=np.float32)
        if kind == "floats":
            scan.tofile(made / f"{number}.bin")
            continue
        rows = "\n".join(" ".join(map(repr, row)) for row in scan.astype(float).round(6).tolist())
        fields = "".join(f"property float {name}\n" for name in "xyzi")
        head = f"ply\nformat ascii 1.0\nelement vertex {len(scan)}\n{fields}end_header\n"
        (made / f"{number}.ply").write_text(f"{head}{rows}\n")
    return made


def window(records):
    """Items a second while all workers are at work: from the start of the last to start until the first
    has no more. And what an item takes, and the time between two units of a worker."""
    workers = {}
    for one in records:
        workers.setdefault(one["process"], []).append(one)
    for own in workers.values():
        own.sort(key=lambda one: one["started_at"])
    begin = max(own[0]["started_at"] for own in workers.values())
    end = min(own[-1]["started_at"] + own[-1]["total_s"] for own in workers.values())
    done = 0.0
    for one in records:
        first, last = one["started_at"], one["started_at"] + one["total_s"]
        done += one["items"] * max(0.0, min(last, end) - max(first, begin)) / (last - first)
    gaps = [after["started_at"] - before["started_at"] - before["total_s"] for own in workers.values() for before, after in zip(own, own[1:])]
    items = sum(one["items"] for one in records)
    parts = {name: sum(one[name] for one in records) / items for name in ("read_s", "voxelize_s", "write_s", "total_s")}
    return {"workers": len(workers), "per_s": done / (end - begin), "gap_s": statistics.median(gaps) if gaps else 0.0, **parts}


def read_records(out):
    return [json.loads(path.read_text()) for path in (out / RECORDS).glob("*.json")]


def plain(scans, out, units):
    """The same work in a process without Ray."""
    os.setsid()  # as Ray's workers are: the kernel shares processors by sessions first
    be_first()
    os.environ["RAYON_NUM_THREADS"] = "1"
    work = UnitWork(SPEED, "npy", 1, (Place.of(scans),), Place.of(out), "cpu")
    maker = UnitMaker(work)
    for unit in units:
        maker.make(unit)


def without_ray(scans, out, processes):
    (Place.of(out) / RECORDS).make_folder()
    units = _units(find([Place.of(scans)]), 1)
    spawn = multiprocessing.get_context("spawn")
    started = [spawn.Process(target=plain, args=(scans, out, units[number::processes])) for number in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    return window(read_records(out))


def speed(folder):
    """Two workers of one thread each beside one, in turns, with Ray and without. In memory, where it
    can be had: the disk is none of what is compared."""
    be_first()
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else folder
    with tempfile.TemporaryDirectory(prefix="check-ray-", dir=where) as memory, cluster(1, cpus=6):
        for kind in KINDS:
            compare_workers(pathlib.Path(memory), kind)


def compare_workers(folder, kind):
    scans, found = speed_data(folder, kind), {}
    for turn in range(TURNS):
        for workers in (1, 2):
            out = folder / "out"
            voxelize_files([scans], out, SPEED, JobOptions(format="npy", shard_items=1, workers=workers))
            found.setdefault(("Ray", workers), []).append(window(read_records(out)))
            shutil.rmtree(out)
            found.setdefault(("plain", workers), []).append(without_ray(scans, out, workers))
            shutil.rmtree(out)
    for (how, workers), runs in found.items():
        middle = {name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]}
        note(speed=how, kind=kind, of=workers, runs=[round(run["per_s"], 2) for run in runs], **middle)
    ratios, machine = (
        [two["per_s"] / one["per_s"] for one, two in zip(found[how, 1], found[how, 2])] for how in ("Ray", "plain")
    )
    note(kind=kind, ratios_ray=[round(one, 2) for one in ratios], ratios_plain=[round(one, 2) for one in machine],
         load=round(os.getloadavg()[0], 1), first=bool(os.environ.get("CHECK_RAY_FIRST")))
    check(f"{kind}: items take at least 50 ms", statistics.median(run["total_s"] for run in found["Ray", 1]) >= 0.05)
    check(f"{kind}: two workers do at least 1.5 times what one does, in the median", statistics.median(ratios) >= 1.5)


def parts(folder):
    """What a byte of transfer between nodes takes, and the start of a worker."""

    class Holder:
        def make(self, size):
            return [ray.put(np.ones(size, np.uint8))]

        def take(self, refs):
            begun = time.perf_counter()
            assert int(ray.get(refs[0])[-1]) == 1
            return time.perf_counter() - begun

    made = Cluster()
    for name in ("a", "b"):
        made.add_node(num_cpus=4, object_store_memory=1 << 30, resources={name: 1})
    ray.init(address=made.address, log_to_driver=False, logging_level="error")
    try:
        begun = time.perf_counter()
        one, two = (ray.remote(Holder).options(num_cpus=1, resources={name: 0.1}).remote() for name in ("a", "b"))
        ray.get([one.take.remote([ray.put(np.ones(1, np.uint8))]), two.take.remote([ray.put(np.ones(1, np.uint8))])])
        start = time.perf_counter() - begun
        size, seconds = 64 << 20, []
        for _ in range(7):
            refs = ray.get(one.make.remote(size))
            seconds.append(ray.get(two.take.remote(refs)))
            del refs
        note(transfer_bytes=size, seconds=[round(value, 4) for value in seconds], bytes_per_s=round(size / statistics.median(seconds)), start_of_two_workers_s=round(start, 2))
    finally:
        ray.shutdown()
        made.shutdown()


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def record(out):
    versions = f"Python {platform.python_version()}, Ray {ray.__version__}, pyarrow {pyarrow.__version__}, numpy {np.__version__}, plimsoll {plimsoll.__version__}"
    lines = [f"{os.cpu_count()} processors ({processor()}), Linux {platform.release()}; {versions}", ""]
    lines += [f"- {json.dumps(finding)}" for finding in FINDINGS]
    (out / "ray.md").write_text("\n".join(lines) + "\n")


def main():
    all_parts = {part.__name__: part for part in (tests, storm, s3, store, speed, parts)}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--first", action="store_true", help="let what is timed go before other programs (root)")
    parser.add_argument("part", nargs="*", help=", ".join(all_parts))
    given = parser.parse_args()
    if unknown := set(given.part) - set(all_parts):
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(all_parts)}")
    given.out.mkdir(parents=True, exist_ok=True)
    if given.first:
        os.environ.update(CHECK_RAY_FIRST="1", RAY_worker_niceness="0")
    for name in given.part or all_parts:
        with tempfile.TemporaryDirectory(prefix="check-ray-") as folder:
            try:
                all_parts[name](pathlib.Path(folder))
            except Exception as error:
                note(part=name, failed=repr(error)[:500], trace=traceback.format_exc()[-1500:])
        record(given.out)
    sys.exit(0 if all(one.get("holds", True) and "failed" not in one for one in FINDINGS) else 1)


if __name__ == "__main__":
    main()
