"""Shards: the grids of some clouds in one file. The same grids give the same bytes, everywhere."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt

FORMATS = ("npy", "npz", "parquet")


def write_shard(
    stream: IO[bytes],
    form: str,
    column: str,
    values: npt.NDArray[Any],
    files: Sequence[str],
    clouds: Sequence[int],
) -> int:
    """Writes a shard on a stream, which need not be able to seek, and says how many bytes it has.

    `npy` has the grids alone; `npz` has them beside `files` and `clouds`, the file of each and its
    number in it; `parquet` has the columns `file`, `cloud` and the grid as a tensor of fixed shape.
    """
    forward = _Forward(stream)
    match form:
        case "npy":
            _npy(forward, values)
        case "npz":
            arrays = {column: values, "files": np.array(files, dtype=np.str_)}
            arrays["clouds"] = np.array(clouds, dtype=np.int32)
            _npz(forward, arrays)
        case "parquet":
            _parquet(forward, column, values, files, clouds)
        case _:
            raise ValueError(f"the format is {form!r}; it must be one of {', '.join(FORMATS)}")
    return forward.at


class _Forward:
    """A stream that can only be written on: files and stores of objects then get the same bytes."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream, self.at = stream, 0

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self.stream.write(view)
        self.at += len(view)
        return len(view)

    def flush(self) -> None:
        pass

    def tell(self) -> int:
        return self.at


def _npy(stream: Any, values: npt.NDArray[Any]) -> None:
    np.lib.format.write_array(stream, np.ascontiguousarray(values), allow_pickle=False)


def _npz(stream: Any, arrays: dict[str, npt.NDArray[Any]]) -> None:
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, values in arrays.items():
            # Without the time of day, which would be another one in each attempt.
            entry = zipfile.ZipInfo(f"{name}.npy", (1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as file:
                _npy(file, values)


def _parquet(
    stream: Any, column: str, values: npt.NDArray[Any], files: Sequence[str], clouds: Sequence[int]
) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    tensors = pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))
    table = pa.table({"file": pa.array(files, pa.string()), "cloud": pa.array(clouds, pa.int32()), column: tensors})
    sink = pa.BufferOutputStream()
    parquet.write_table(table, sink, compression="zstd", compression_level=1)
    stream.write(sink.getvalue())
