"""Files on every file system that pyarrow opens: found, read, and written whole or not at all."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import posixpath
import re
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import IO, Any

from pyarrow import fs

from ..clouds import ENDINGS
from ..files import write_whole

#: What unfinished files are called; they are removed when a job ends.
UNFINISHED = ".unfinished-"
#: As `write_whole` calls those of a job.
OWN_UNFINISHED = re.compile(r"\.(part-\d{6}|report|job|index|\d{6})[\w.-]*\.\w{8}$")


@dataclass(frozen=True)
class Place:
    """A path on a file system."""

    filesystem: Any
    path: str

    @classmethod
    def of(cls, name: str | os.PathLike[str]) -> Place:
        """The place that a path or a URI (s3://, gs://, hdfs://, file://) names.

        >>> from plimsoll.ray.places import Place
        >>> Place.of("/tmp/clouds").path
        '/tmp/clouds'
        """
        text = os.fspath(name)
        if "://" not in text:
            return cls(fs.LocalFileSystem(), os.path.abspath(text))
        try:
            filesystem, path = fs.FileSystem.from_uri(text)
        except (ValueError, OSError) as error:
            raise ValueError(f"{text} cannot be opened: {error}") from error
        return cls(filesystem, path)

    def __truediv__(self, name: str) -> Place:
        return Place(self.filesystem, posixpath.join(self.path, name))

    @property
    def is_local(self) -> bool:
        """Whether it is a file of this machine (or one that looks so)."""
        return isinstance(self.filesystem, fs.LocalFileSystem)

    def read(self) -> bytes:
        """All of the file."""
        with self.filesystem.open_input_stream(self.path) as file:
            return bytes(file.read())

    def write(self, content: bytes | Callable[[IO[bytes]], object]) -> None:
        """Writes the file, or leaves what was there: under another name first, then in its place.

        Stores of objects have no rename; there the last step is a copy, which is whole or not there
        as well.
        """
        if self.is_local:
            return write_whole(self.path, content)
        folder, name = posixpath.split(self.path)
        unfinished = posixpath.join(folder, f"{UNFINISHED}{name}.{uuid.uuid4().hex}")
        try:
            with self.filesystem.open_output_stream(unfinished) as file:
                if callable(content):
                    content(file)
                else:
                    file.write(content)
            self.filesystem.move(unfinished, self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.filesystem.delete_file(unfinished)
            raise

    def make_folder(self) -> None:
        """Makes the folder and those above it, where the file system has folders."""
        self.filesystem.create_dir(self.path, recursive=True)

    def files(self, *, recursive: bool = False) -> list[Any]:
        """What pyarrow knows of the files in this folder; nothing where there is no folder."""
        selector = fs.FileSelector(self.path, allow_not_found=True, recursive=recursive)
        found: list[Any] = self.filesystem.get_file_info(selector)
        return [one for one in found if one.type == fs.FileType.File]

    def remove_unfinished(self) -> None:
        """Removes what writers that were killed have left in this folder."""
        for one in self.files():
            if one.base_name.startswith(UNFINISHED) or OWN_UNFINISHED.match(one.base_name):
                with contextlib.suppress(OSError):
                    self.filesystem.delete_file(one.path)


@dataclass(frozen=True)
class InputFile:
    """A file of a job: which input it came from, its path there, and how it was found."""

    source: int
    path: str
    bytes: int
    modified_ns: int | None

    def stamp(self) -> list[Any]:
        """What a job remembers of it, to tell whether it is still the same."""
        return [self.path, self.bytes, self.modified_ns]


def find(inputs: Iterable[Place]) -> list[InputFile]:
    """The files that inputs mean, in the order of `plimsoll voxelize`: a file, those of a folder that
    can be read (2 before 10, hidden ones left out), or those that match a pattern.

    Raises `ValueError` for an input without one.
    """
    found: list[InputFile] = []
    for number, place in enumerate(inputs):
        files = list(_meant(place))
        if not files:
            raise ValueError(f"{place.path}: no file there ends in {', '.join(ENDINGS)}")
        found.extend(InputFile(number, one.path, one.size or 0, one.mtime_ns) for one in files)
    return found


def _meant(place: Place) -> Iterator[Any]:
    info = place.filesystem.get_file_info(place.path)
    if info.type == fs.FileType.File:
        if not info.base_name.lower().endswith(ENDINGS):
            raise ValueError(f"{place.path}: files that end in {', '.join(ENDINGS)} are read")
        return iter([info])
    if info.type == fs.FileType.Directory:
        found = [one for one in place.files() if _is_cloud(one.base_name)]
    elif re.search(r"[*?\[]", place.path):
        found = _matching(place)
    else:
        raise ValueError(f"{place.path}: there is no such file or folder")
    return iter(sorted(found, key=lambda one: natural(one.path)))


def _is_cloud(name: str) -> bool:
    return name.lower().endswith(ENDINGS) and not name.startswith(".")


def _matching(place: Place) -> list[Any]:
    steps = place.path.split("/")
    first = next(number for number, step in enumerate(steps) if re.search(r"[*?\[]", step))
    folder = Place(place.filesystem, "/".join(steps[:first]) or "/")
    patterns = steps[first:]
    found = []
    for one in folder.files(recursive=len(patterns) > 1):
        names = one.path.split("/")[first:]
        if len(names) == len(patterns) and all(map(fnmatch.fnmatchcase, names, patterns)):
            if _is_cloud(one.base_name) or patterns[-1].startswith("."):
                found.append(one)
    return found


def natural(name: str) -> tuple[list[tuple[str, int, str]], str]:
    """A key that puts names in the order that people count in: 2 before 10.

    >>> from plimsoll.ray.places import natural
    >>> sorted(["b10", "b9", "a", "b010", "b9c", "b1"], key=natural)
    ['a', 'b1', 'b9', 'b9c', 'b010', 'b10']
    """
    keys = []
    for number, other in re.findall(r"([0-9]+)|([^0-9])", name):
        digits = number.lstrip("0")
        keys.append(("0", len(digits), digits) if number else (other, 0, ""))
    return keys, name
