"""The workers of a job. One that dies is replaced, and its unit is begun again.

Ray's own retries are not used: they would not be counted, and a unit that kills each worker that
takes it would go on to do so.
"""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import Unavailable
from .options import JobFailed, JobOptions
from .sizes import share_of_node
from .stage import limit_text, limited_runtime_env, use_threads
from .units import RECORDS, Unit, UnitMaker, UnitRecord, UnitWork
from .worker import require_limit

#: How long to wait for a worker before progress is shown again.
POLL_S = 0.5
#: So many workers may die as they start, one after the other.
MOST_FAILED_STARTS = 5


class UnitActor:
    """A worker: an actor of Ray's."""

    def __init__(self, work: UnitWork, limited: bool, threads: int) -> None:
        self.work, self.limited, self.threads = work, limited, threads
        self.maker: UnitMaker | None = None

    def ready(self) -> int:
        """Prepares for work. Not in `__init__`, whose errors look to Ray like a death."""
        import ray

        if self.limited:
            require_limit()
        use_threads(self.threads)
        node = ray.get_runtime_context().get_node_id()
        self.maker = UnitMaker(self.work, share=share_of_node(), node=node)
        return os.getpid()

    def make(self, unit: Unit, attempt: int) -> UnitRecord:
        """Makes a unit."""
        if self.maker is None:
            raise Unavailable("this worker was not made ready")
        return self.maker.make(unit, attempt)


class WorkerPool:
    """Hands units to workers until all are made."""

    def __init__(self, work: UnitWork, options: JobOptions) -> None:
        self.work, self.options = work, options
        self.waiting: deque[tuple[Unit, int]] = deque()
        self.tasks: dict[Any, tuple[Any, Unit | None, int]] = {}
        self.idle: list[Any] = []
        self.failed_starts = 0
        self.started_s: float | None = None
        self.ready = 0

    def run(
        self,
        units: Sequence[Unit],
        finished: Callable[[UnitRecord], None],
        tick: Callable[[int], None],
    ) -> tuple[float, int]:
        """Makes all units; says how long the first worker took to start, and how many there were."""
        import ray

        self.waiting.extend((unit, 1) for unit in units)
        begun, own = time.perf_counter(), not ray.is_initialized()
        if own:
            _connect(self.options.address)
        try:
            count = min(self.options.workers or self._room(), len(units))
            for _ in range(count):
                self._start()
            while self.waiting or any(unit for _, unit, _ in self.tasks.values()):
                done, _ = ray.wait(list(self.tasks), num_returns=1, timeout=POLL_S)
                for ref in done:
                    if (record := self._ended(ref)) is not None:
                        finished(record)
                    if self.started_s is None and self.ready:
                        self.started_s = time.perf_counter() - begun
                tick(self.ready)
            return self.started_s or 0.0, count
        finally:
            for actor in {actor for actor, _, _ in self.tasks.values()} | set(self.idle):
                ray.kill(actor)
            if own:
                ray.shutdown()

    def _room(self) -> int:
        """How many workers the cluster has room for."""
        import ray

        total = ray.cluster_resources()
        room = [int(total.get("CPU", 0) / self.options.num_cpus)] if self.options.num_cpus else []
        if self.options.num_gpus:
            per_gpu = int(1 / self.options.num_gpus) if self.options.num_gpus < 1 else 1 / self.options.num_gpus
            room.append(int(total.get("GPU", 0) * per_gpu))
        if (least := min(room, default=1)) < 1:
            raise Unavailable(
                f"a worker of {self.options.num_cpus:g} CPUs and {self.options.num_gpus:g} GPUs is not available: the "
                f"cluster has {total.get('CPU', 0):g} and {total.get('GPU', 0):g}; ask for less, or name a number of "
                "workers to wait for nodes that are yet to come"
            )
        return least

    def _start(self) -> None:
        import ray

        limited = limit_text(self.options.limit, self.options.num_gpus)
        remote = ray.remote(UnitActor).options(
            num_cpus=self.options.num_cpus,
            num_gpus=self.options.num_gpus,
            max_restarts=0,
            scheduling_strategy="SPREAD",
            runtime_env=limited_runtime_env(limited, None),
        )
        actor = remote.remote(self.work, limited is not None, max(1, int(self.options.num_cpus)))
        self.tasks[actor.ready.remote()] = (actor, None, 0)

    def _assign(self, actor: Any) -> None:
        if not self.waiting:
            self.idle.append(actor)
            return
        unit, attempt = self.waiting.popleft()
        self.tasks[actor.make.remote(unit, attempt)] = (actor, unit, attempt)

    def _ended(self, ref: Any) -> UnitRecord | None:
        """What a task ended with: the record of a unit, or nothing yet."""
        import ray
        from ray.exceptions import RayError, RayTaskError

        actor, unit, attempt = self.tasks.pop(ref)
        try:
            result = ray.get(ref)
        except RayTaskError as error:
            self._raised(error, actor, unit, attempt)
            return None
        except RayError as error:
            return self._died(error, actor, unit, attempt)
        if unit is None:
            self.ready += 1
            self.failed_starts = 0
        self._assign(actor)
        return None if unit is None else result

    def _raised(self, error: Exception, actor: Any, unit: Unit | None, attempt: int) -> None:
        """A worker lives and could not do it: for a unit it may be of the moment, as a full disk is."""
        why = str(getattr(error, "cause", None) or error).strip()
        if unit is None:
            raise Unavailable(why) from error
        if attempt >= self.options.max_attempts:
            raise JobFailed(f"unit {unit.number} failed {attempt} times: {why}") from error
        self.waiting.append((unit, attempt + 1))
        self._assign(actor)

    def _died(self, error: Exception, actor: Any, unit: Unit | None, attempt: int) -> UnitRecord | None:
        import ray

        ray.kill(actor)  # where Ray only cannot reach it, it must not go on beside its replacement
        if unit is None:
            self.failed_starts += 1
            if self.failed_starts >= MOST_FAILED_STARTS:
                raise JobFailed(f"{self.failed_starts} workers have died as they started: {error}") from error
        else:
            self.ready -= 1
        self._start()
        if unit is None:
            return None
        if attempt < self.options.max_attempts:
            self.waiting.appendleft((unit, attempt + 1))
            if self.idle:
                self._assign(self.idle.pop())
            return None
        why = f"the worker that had its unit died {attempt} times; fewer clouds to a shard tell which file it is"
        record = UnitRecord(unit.number, attempts=attempt, files=len(unit.files))
        record.faults = [{"file": file.path, "why": why} for file in unit.files]
        (self.work.out / RECORDS / f"{unit.number:06}.json").write(record.to_json())
        return record


def _connect(address: str | None) -> None:
    import ray

    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise Unavailable(
            f"the cluster at {address} is not available: {error}; start one (ray start --head), or leave "
            "the address out to work on this machine alone"
        ) from error
