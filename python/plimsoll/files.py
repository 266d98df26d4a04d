"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO


def write_whole(path: str | os.PathLike[str], content: bytes | Callable[[IO[bytes]], object]) -> None:
    """Writes a file, or leaves what was there: under another name first, then in its place.

    >>> import pathlib, tempfile
    >>> from plimsoll.files import write_whole
    >>> place = pathlib.Path(tempfile.mkdtemp()) / "note.txt"
    >>> write_whole(place, b"whole")
    >>> place.read_bytes(), [file.name for file in place.parent.iterdir()]
    (b'whole', ['note.txt'])
    """
    place = Path(path)
    folder = place.parent
    handle, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=folder)
    try:
        with open(handle, "wb") as file:
            if callable(content):
                content(file)
            else:
                file.write(content)
            file.flush()
            os.fsync(file.fileno())
        # mkstemp makes it the owner's alone; a file of the user's has the user's usual mode.
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)
        os.replace(name, place)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise
