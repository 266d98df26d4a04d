"""The extension: what the package does in its own process."""

import os
from typing import Any, final

import numpy as np
import numpy.typing as npt

__all__ = [
    "BatchSize",
    "ChunkingConfig",
    "Device",
    "GPUMemoryManager",
    "GuardedEnvironment",
    "HardCall",
    "HardVoxelizer",
    "MemoryInfo",
    "VoxelSpec",
    "VoxelizationEstimate",
    "auto_chunk",
    "available_bytes",
    "caching_allocator",
    "caching_within",
    "calculate_chunking",
    "current_device",
    "devices",
    "estimate_file",
    "estimate_shape",
    "estimate_voxelization_memory",
    "expandable_segments",
    "format_bytes",
    "generate_memory_report",
    "get_gpu_peaks",
    "is_guarded",
    "is_jetson",
    "is_unified",
    "limit",
    "memory_info",
    "parse_bytes",
    "read_clouds",
    "should_reduce_batch",
    "stats",
    "suggest_voxelization_chunking",
    "version",
    "voxelization_will_oom",
    "voxelize_arrays",
    "voxelize_resident",
    "will_oom",
]

@final
class BatchSize:
    @property
    def size(self) -> int: ...
    @staticmethod
    def given(items: int) -> BatchSize: ...
    @staticmethod
    def searched(most: int) -> BatchSize: ...
    def set_room(self, items: int) -> None: ...
    def succeeded(self, count: int, seconds: float) -> None: ...
    def failed(self, count: int, seconds: float) -> None: ...

@final
class MemoryInfo:
    @property
    def is_unified(self) -> bool | None: ...
    @property
    def gpu_alloc(self) -> int | None: ...
    @property
    def gpu_reserved(self) -> int | None: ...
    @property
    def gpu_codecs_cameras(self) -> int | None: ...
    @property
    def system_total(self) -> int | None: ...
    @property
    def system_used(self) -> int | None: ...
    @property
    def system_available(self) -> int | None: ...
    @property
    def largest_single(self) -> int | None: ...
    @property
    def note(self) -> str: ...
    def to_dict(self) -> dict[str, Any]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class Device:
    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def free_bytes(self) -> int | None: ...
    @property
    def is_unified(self) -> bool | None: ...
    @property
    def compute_capability(self) -> tuple[int, int] | None: ...
    def to_dict(self) -> dict[str, Any]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class ChunkingConfig:
    @property
    def num_chunks(self) -> int: ...
    @property
    def chunk_size(self) -> int: ...
    @property
    def last_chunk_size(self) -> int: ...
    @property
    def memory_per_chunk(self) -> int: ...
    @property
    def total_items(self) -> int: ...
    def ranges(self) -> list[range]: ...
    def to_string(self) -> str: ...
    def to_dict(self) -> dict[str, int]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class VoxelizationEstimate:
    @property
    def points_bytes(self) -> int: ...
    @property
    def output_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    def to_dict(self) -> dict[str, int]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def __ne__(self, other: object, /) -> bool: ...

@final
class GPUMemoryManager:
    def __new__(cls, limit: int | str = ...) -> GPUMemoryManager: ...
    def apply_limits(self) -> dict[str, Any]: ...
    def get_tensorrt_workspace_size(self) -> int: ...
    def get_current_gpu_memory_usage(self) -> int | None: ...
    def validate_memory_within_limit(self) -> bool | None: ...

@final
class GuardedEnvironment:
    def __new__(cls, limit: int | str, reserve: int | str = ...) -> GuardedEnvironment: ...
    def variables(self) -> list[tuple[str, str | None]]: ...
    def charges(self) -> list[tuple[int, int, int, int]]: ...
    def close(self) -> list[os.PathLike[str]]: ...

@final
class VoxelSpec:
    def __new__(
        cls,
        grid_size: tuple[int, int, int],
        voxel_size: tuple[float, float, float],
        origin: tuple[float, float, float],
        mode: str,
        cells: str | None,
        features: int,
    ) -> VoxelSpec: ...
    @property
    def planes(self) -> int: ...
    @property
    def cloud_bytes(self) -> int: ...
    @property
    def cells(self) -> str: ...

@final
class HardCall:
    def finish(self, voxels: int, coordinates: int, num_points: int) -> int: ...

@final
class HardVoxelizer:
    def __new__(
        cls,
        voxel_size: tuple[float, float, float],
        point_cloud_range: tuple[float, float, float, float, float, float],
        max_points: int,
        max_voxels: int,
        order: str = "zyx",
    ) -> HardVoxelizer: ...
    @property
    def grid_size(self) -> list[int]: ...
    def hard(
        self, points: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32], npt.NDArray[np.int32]]: ...
    def hard_into(
        self,
        points: npt.NDArray[np.float32],
        voxels: npt.NDArray[np.float32],
        coordinates: npt.NDArray[np.int32],
        num_points: npt.NDArray[np.int32],
    ) -> int: ...
    def dynamic(self, points: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]: ...
    def pillars(
        self,
        voxels: npt.NDArray[np.float32],
        coordinates: npt.NDArray[np.int32],
        num_points: npt.NDArray[np.int32],
    ) -> npt.NDArray[np.float32]: ...
    def birds_eye(
        self, values: npt.NDArray[np.float32], coordinates: npt.NDArray[np.int32]
    ) -> npt.NDArray[np.float32]: ...
    def pillars_resident(
        self,
        device: int,
        stream: int,
        count: int,
        columns: int,
        voxels: int,
        coordinates: int,
        num_points: int,
        features: int,
    ) -> None: ...
    def birds_eye_resident(
        self, device: int, stream: int, count: int, features: int, values: int, coordinates: int, image: int
    ) -> None: ...
    def hard_resident(
        self,
        device: int,
        stream: int,
        points: int,
        count: int,
        columns: int,
    ) -> HardCall: ...
    def dynamic_resident(
        self, device: int, stream: int, points: int, count: int, columns: int, coordinates: int
    ) -> None: ...

def version() -> str: ...
def memory_info() -> MemoryInfo: ...
def is_jetson() -> bool: ...
def is_unified() -> bool | None: ...
def get_gpu_peaks() -> tuple[int, int]: ...
def devices() -> list[Device]: ...
def current_device() -> str: ...
def available_bytes(device: object = None) -> int: ...
def should_reduce_batch(below: float = 0.2) -> bool: ...
def will_oom(required_bytes: int | str, device: object = None) -> bool: ...
def generate_memory_report(device: object = None) -> str: ...
def format_bytes(n: int) -> str: ...
def parse_bytes(amount: int | str) -> int: ...
def auto_chunk(
    total_batch_size: int, bytes_per_item: int | str, device: object = None
) -> ChunkingConfig: ...
def calculate_chunking(
    total_items: int,
    bytes_per_item: int | str,
    available_memory: int | str,
    safety_margin: float = ...,
) -> ChunkingConfig: ...
def estimate_voxelization_memory(
    batch_size: int, num_points: int, depth: int, height: int, width: int, feature_dim: int = 0
) -> VoxelizationEstimate: ...
def voxelization_will_oom(
    batch_size: int, num_points: int, depth: int, height: int, width: int, device: object = None
) -> bool: ...
def suggest_voxelization_chunking(
    batch_size: int, num_points: int, depth: int, height: int, width: int, device: object = None
) -> ChunkingConfig: ...
def limit(device: int = 0) -> int | None: ...
def is_guarded() -> bool: ...
def stats(device: int = 0) -> dict[str, int | None]: ...
def estimate_file(
    path: str | os.PathLike[str],
    *,
    image: tuple[int, int] | None = None,
    batch: int = 1,
    context: int | None = None,
    dtype: str | None = None,
    kv_dtype: str | None = None,
    ubatch: int = 512,
    flash_attn: bool = False,
    gpu_layers: int | None = None,
    engine: str | None = None,
    device: object = None,
    inputs: list[tuple[str, int]] = ...,
) -> dict[str, Any]: ...
def estimate_shape(
    *,
    hidden: int,
    intermediate: int,
    layers: int,
    vocab: int,
    heads: int,
    kv_heads: int,
    context: int,
    head_dim: int | None = None,
    dtype: str = "f16",
    kv_dtype: str | None = None,
    mlp: str = "gated",
    biases: str = "none",
    ubatch: int = 512,
    flash_attn: bool = False,
    tied_embeddings: bool = False,
    parallel_residual: bool = False,
    fused_qkv: bool = False,
    experts: tuple[int, int] = ...,
) -> dict[str, Any]: ...
def voxelize_arrays(
    clouds: list[npt.NDArray[np.float32]],
    spec: VoxelSpec,
    out: npt.NDArray[np.uint8],
    device: str = "cpu",
    chunk: int | None = None,
    limit: int | str | None = None,
) -> dict[str, Any]: ...
def read_clouds(
    name: str | os.PathLike[str], data: bytes, features: bool = True
) -> list[npt.NDArray[np.float32]]: ...
def voxelize_resident(
    spec: VoxelSpec,
    device: int,
    stream: int,
    points: int,
    out: int,
    clouds: int,
    count: int,
    columns: int,
    chunk: int | None = None,
) -> None: ...

def caching_allocator(requests: list[int | None], sizes: list[int]) -> tuple[list[int], list[int]]: ...
def caching_within(requests: list[int | None], sizes: list[int], room: int) -> bool: ...
def expandable_segments(requests: list[int | None], sizes: list[int]) -> int: ...
