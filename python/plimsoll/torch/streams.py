"""Streams and events of a device without memory: what is put on them is done at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class IdleEvent:
    """An event that has always happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def record(self, *_: Any) -> None:
        pass

    def wait(self, *_: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True

    def elapsed_time(self, _: Any) -> float:
        return 0.0


class IdleStream:
    """A stream on which nothing is left to do."""

    stream_id = 0
    cuda_stream = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> IdleStream:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def record_event(self, event: IdleEvent | None = None) -> IdleEvent:
        return event or IdleEvent()

    def wait_event(self, _: Any) -> None:
        pass

    def wait_stream(self, _: Any) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def query(self) -> bool:
        return True


@contextmanager
def _entered(stream: Any) -> Iterator[Any]:
    yield stream


#: What `torch.cuda` has of them.
STREAMS: dict[str, Any] = {
    "Stream": IdleStream,
    "Event": IdleEvent,
    "current_stream": lambda *_: IdleStream(),
    "default_stream": lambda *_: IdleStream(),
    "stream": _entered,
}
