"""GPU memory: what fits, a hard limit, and honest measurement."""

from . import command
from ._plimsoll import version
from .adaptive import ItemDoesNotFit, adaptive_map
from .errors import CommandFailed, Error, NeverFits, OutOfMemory, Unavailable

__version__ = version()

__all__ = [
    "CommandFailed",
    "Error",
    "ItemDoesNotFit",
    "NeverFits",
    "OutOfMemory",
    "Unavailable",
    "adaptive_map",
    "command",
    "version",
]
