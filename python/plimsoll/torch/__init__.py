"""PyTorch's allocations: recorded with the lines that made them, or worked out without a GPU.

    print(plimsoll.torch.estimate(step, batch))    # what it takes, and which lines held the most

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
from .estimating import AllocationPoint, AllocationRange, PeakMoment, ProgramEstimate, estimate
from .recording import AllocatingLine, record

__all__ = [
    "AllocatingLine",
    "AllocationPoint",
    "AllocationRange",
    "MemoryProfiler",
    "PeakMoment",
    "ProgramEstimate",
    "estimate",
    "record",
]
