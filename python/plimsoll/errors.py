"""The errors of the package. Bad arguments are `ValueError` and `TypeError`, as everywhere."""


class Error(Exception):
    """What every error of this package is."""


class OutOfMemory(Error, MemoryError):
    """Full now: the same request can succeed after something is freed, or in smaller chunks."""


class NeverFits(Error, MemoryError):
    """Larger than the memory would be if it were empty: trying again is pointless."""


class Unavailable(Error, RuntimeError):
    """Something that this machine, process or build does not have, with the remedy."""


class CommandFailed(Error, RuntimeError):
    """The command that the package ships failed; the message is its own.

    `code` is its exit code: 2 for bad usage or input, 3 where something failed.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message, code)
        self.code = code

    def __str__(self) -> str:
        return str(self.args[0])
