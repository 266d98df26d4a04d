"""From the command's JSON to typed objects, and the parts of a benchmark's report.

The names are those of the report's schema (docs/schema/report.schema.json); what is not known is
`None`, and `unknown` says why.
"""

from __future__ import annotations

import copy
import json
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from typing import Any, Literal, TypeVar

from .errors import Error

T = TypeVar("T", bound="Record")


@dataclass(frozen=True)
class Record:
    """Something that the command said."""

    @classmethod
    def from_dict(cls: type[T], said: Mapping[str, Any]) -> T:
        """Reads the command's JSON. What this version does not know is kept for `to_dict`."""
        hints = _hints(cls)
        keys = {field.name: _key(field.name) for field in fields(cls)}
        missing = [key for key in keys.values() if key not in said]
        if missing:
            raise Error(
                f"the command's answer has no {', '.join(missing)}: the command and this package "
                "are of different versions; install the package again"
            )
        record = cls(**{name: _read(hints[name], said[key]) for name, key in keys.items()})
        object.__setattr__(record, "_said", said)
        return record

    def to_dict(self) -> dict[str, Any]:
        """All that the command said, as its JSON has it."""
        said: Mapping[str, Any] | None = getattr(self, "_said", None)
        if said is None:
            named = asdict(self, dict_factory=lambda pairs: {_key(name): value for name, value in pairs})
            return dict(json.loads(json.dumps(named)))
        return copy.deepcopy(dict(said))


def _key(name: str) -> str:
    """The key of a field: `pass_` and `from_` are `pass` and `from`, which Python's grammar keeps."""
    return name.rstrip("_")


_HINTS: dict[type, dict[str, Any]] = {}


def _hints(cls: type) -> dict[str, Any]:
    if cls not in _HINTS:
        _HINTS[cls] = typing.get_type_hints(cls)
    return _HINTS[cls]


def _read(hint: Any, value: Any) -> Any:
    """A value of JSON as the type that it is declared as."""
    if value is None:
        return None
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _read(next(one for one in arguments if one is not type(None)), value)
    if origin is tuple:
        return tuple(_read(arguments[0], one) for one in value)
    if origin is dict:
        return {key: _read(arguments[1], one) for key, one in value.items()}
    if is_dataclass(hint) and isinstance(hint, type) and issubclass(hint, Record):
        return hint.from_dict(value)
    return float(value) if hint is float else value


LimitType = Literal["hard", "soft", "unavailable"]
Status = Literal["completed", "skipped", "failed", "interrupted"]
HowObtained = Literal["counted", "sampled", "estimated", "recorded", "simulated"]
MeasuredWhat = Literal["gpu_allocations", "process_memory", "slot_memory"]


@dataclass(frozen=True)
class Interval(Record):
    low: float
    high: float


@dataclass(frozen=True)
class Spread(Record):
    mean: float
    min: float
    max: float


@dataclass(frozen=True)
class TimePoint(Record):
    """Samples of a moment; `t` is in seconds since the run began."""

    t: float
    min: float
    mean: float
    max: float


@dataclass(frozen=True)
class Bin(Record):
    from_ms: float
    to_ms: float
    frames: int


@dataclass(frozen=True)
class LatencySummary(Record):
    n: int
    mean_ms: float
    p50_ms: float
    p90_ms: float
    p95_ms: float
    p99_ms: float
    min_ms: float
    max_ms: float
    std_ms: float


@dataclass(frozen=True)
class PhasePart(Record):
    frames: int
    whole: LatencySummary


@dataclass(frozen=True)
class PhaseParts(Record):
    cold: PhasePart | None
    steady: PhasePart | None
    throttled: PhasePart | None


@dataclass(frozen=True)
class Performance(Record):
    frames: int
    warmup_frames: int
    wall_s: float
    fps: float | None
    prepare: LatencySummary
    inference: LatencySummary
    decode: LatencySummary
    whole: LatencySummary
    decode_ahead: LatencySummary | None
    offered_fps: float | None
    late: int | None
    dropped: int | None
    parts: PhaseParts
    repeats_p50_ms: tuple[float, ...]
    repeats_interval_ms: Interval | None


@dataclass(frozen=True)
class GpuMemory(Record):
    """What a model took. `obtained` and `source` say how the figures came about."""

    what: MeasuredWhat
    limit_gb: float | None
    peak_gb: float | None
    mean_gb: float | None
    min_gb: float | None
    within_limit: bool | None
    limit_type: LimitType
    source: str | None
    obtained: HowObtained | None
    samples: int
    system_peak_gb: float | None
    unknown: dict[str, str]


@dataclass(frozen=True)
class ModelDescription(Record):
    weights: str
    bytes: int
    input_size: tuple[int, ...] | None
    classes: int | None
    engine: str
    engine_version: str | None
    device: str
    chosen: str
    nodes_by_provider: dict[str, int]
    fallbacks: tuple[str, ...]
    limit_applied: bool
    workspace_bytes: int | None


@dataclass(frozen=True)
class MemoryEstimate(Record):
    weights_bytes: int
    activation_bytes: int
    overhead_bytes: int
    total_bytes: int


@dataclass(frozen=True)
class DetectionSummary(Record):
    total: int
    per_class: dict[str, int]
    per_frame_mean: float | None


@dataclass(frozen=True)
class ClassAccuracy(Record):
    class_: int
    name: str
    truths: int
    map: float | None
    map50: float | None
    precision: float | None
    recall: float | None


@dataclass(frozen=True)
class PrecisionRecall(Record):
    """A curve; of all classes together where `class_` is `None`."""

    class_: int | None
    recall: tuple[float, ...]
    precision: tuple[float, ...]


@dataclass(frozen=True)
class Confusion(Record):
    """Rows are what was there, columns what was found; the last of each is background."""

    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]
    iou: float
    score: float


@dataclass(frozen=True)
class TaskAccuracy(Record):
    """Detections judged by COCO's rules; `map` is mAP50-95, and `how` says what was done."""

    labels: str
    task: Literal["boxes", "masks", "keypoints"]
    images: int
    truths: int
    map: float | None
    map50: float | None
    map75: float | None
    map_small: float | None
    map_medium: float | None
    map_large: float | None
    mar: float | None
    mar1: float | None
    mar10: float | None
    mar50: float | None
    mar75: float | None
    mar_small: float | None
    mar_medium: float | None
    mar_large: float | None
    precision: float | None
    recall: float | None
    iou: float
    conf: float
    matched: int
    found: int
    present: int
    classes: tuple[ClassAccuracy, ...]
    precision_recall: tuple[PrecisionRecall, ...]
    confusion: Confusion
    how: str


@dataclass(frozen=True)
class CameraAccuracy(Record):
    map: float | None
    map50: float | None
    precision: float | None
    recall: float | None


@dataclass(frozen=True)
class Fusion(Record):
    """What two cameras find alone and together, judged by the same truths; `rule` says how."""

    rule: str
    images: int
    truths: int
    cameras: tuple[CameraAccuracy, ...]
    fused: CameraAccuracy


@dataclass(frozen=True)
class SlotTimeline(Record):
    whole_ms: tuple[TimePoint, ...]
    memory_gb: tuple[TimePoint, ...]
    distribution: tuple[Bin, ...]


@dataclass(frozen=True)
class ModelRecord(Record):
    """One slot or row of a run and the model that was measured in it."""

    slot: int
    slot_name: str | None
    row: str | None
    name: str | None
    status: Status
    reason: str | None
    model_info: ModelDescription | None
    performance: Performance | None
    estimate: MemoryEstimate | None
    gpu_memory: GpuMemory
    detection_summary: DetectionSummary | None
    weights_type: str | None
    accuracy: TaskAccuracy | None
    box_accuracy: TaskAccuracy | None
    energy_per_frame_j: float | None
    energy_of: Literal["machine", "gpus"] | None
    timeline: SlotTimeline
    unknown: dict[str, str]

    @property
    def label(self) -> str:
        """What tells it from the others of the run."""
        return self.slot_name or self.row or self.name or str(self.slot)


@dataclass(frozen=True)
class MemoryUsage(Record):
    what: MeasuredWhat
    limit_gb: float | None
    min_gb: float | None
    mean_gb: float | None
    peak_gb: float | None
    source: str | None
    obtained: HowObtained | None
    samples: int
    violations: int
    percent_of_system_used: float | None
    unknown: dict[str, str]


@dataclass(frozen=True)
class SystemTimeline(Record):
    ram_used_gb: tuple[TimePoint, ...]
    temperatures_c: dict[str, tuple[TimePoint, ...]]
    power_w: dict[str, tuple[TimePoint, ...]]


@dataclass(frozen=True)
class SystemMetrics(Record):
    architecture: Literal["unified", "discrete", "no_gpu"]
    gpu_memory: MemoryUsage
    samples: int
    cpu_percent: Spread | None
    cpu_clock_mhz: Spread | None
    ram_total_gb: float | None
    ram_used_gb: Spread | None
    ram_gpu_share_gb: Spread | None
    vram_used_gb: Spread | None
    swap_used_gb: Spread | None
    gpu_load_percent: Spread | None
    gpu_clock_mhz: Spread | None
    clocks_locked: bool | None
    power_mode: str | None
    temperatures_c: dict[str, Spread]
    power_w: dict[str, Spread]
    energy_per_frame_j: float | None
    timeline: SystemTimeline
    unknown: dict[str, str]


@dataclass(frozen=True)
class Violation(Record):
    time: str
    slot: int | None
    bytes: int


@dataclass(frozen=True)
class Closest(Record):
    slot: int
    name: str | None
    peak_gb: float
    percent_of_limit: float


@dataclass(frozen=True)
class MemorySafety(Record):
    all_within_limit: bool | None
    reason: str | None
    limit_gb: float
    effective_limit_gb: float
    profile: str | None
    limit_type: LimitType
    verified: bool
    methods_applied: tuple[str, ...]
    total_violations: int
    violation_details: tuple[Violation, ...]
    closest_to_limit: tuple[Closest, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class Metadata(Record):
    tool: str
    tool_version: str
    run_name: str
    started: str
    finished: str | None
    host: str | None
    os: str
    arch: str
    device_name: str | None
    command_line: tuple[str, ...]


@dataclass(frozen=True)
class InputStream(Record):
    name: str
    kind: str
    slots: tuple[int, ...]
    frames: int | None
    rate_fps: float | None
    read: int
    corrupt: int


@dataclass(frozen=True)
class InputSource(Record):
    streams: tuple[InputStream, ...]
    unpaired: int | None


@dataclass(frozen=True)
class SharedMemory(Record):
    what: str
    peak_gb: float | None
    source: str | None
    obtained: HowObtained | None
    unknown: dict[str, str]


@dataclass(frozen=True)
class DoubtRecord(Record):
    """A reason to trust a figure less; the whole run's where `slot` is none."""

    slot: int | None
    text: str


@dataclass(frozen=True)
class RecordSummary(Record):
    completed: int
    skipped: int
    failed: int
    interrupted: int
    frames: int
    doubts: int
    text: str
