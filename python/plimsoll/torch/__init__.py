"""PyTorch's allocations, recorded with the lines that made them.

    with plimsoll.torch.record("trace.pickle") as recording:
        train(batch)
    print(recording)                       # the lines that held the most at the peak
    plimsoll.replay("trace.pickle")        # what Plimsoll's pool would take for the same

Importing this does not import PyTorch. Without it, or without a GPU, that is said:

>>> import plimsoll
>>> with plimsoll.torch.record("trace.pickle"):
...     pass
Traceback (most recent call last):
    ...
plimsoll.errors.Unavailable: PyTorch...
"""

from ..profiler import MemoryProfiler
from .recording import AllocatingLine, record

__all__ = ["AllocatingLine", "MemoryProfiler", "record"]
