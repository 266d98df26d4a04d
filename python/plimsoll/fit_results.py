"""What `fit` answers: the largest setting that fits, and how that is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .records import Record
from .results import UNKNOWN, _page, _size, _table, _text


@dataclass(frozen=True)
class FitEstimate(Record):
    """The estimate of the largest setting; `likely_largest` is what would fit if it were exact,
    `cached_largest` the largest for which PyTorch need not free its cache on the way."""

    file: str
    engine: str
    total_bytes: int
    low_bytes: int
    high_bytes: int
    checked: bool
    basis: str
    likely_largest: int | str | None
    cached_largest: int | str | None


@dataclass(frozen=True)
class FitTry(Record):
    """A run of the program. Where it `ran` although requests were `refused`, it recovered."""

    value: int
    ran: bool
    peak_bytes: int | None
    limit_bytes: int | None
    refused: int
    refused_bytes: int
    exit_code: int
    seconds: float
    kept: bool
    """Whether an earlier call made it."""


@dataclass(frozen=True)
class FitFailure(Record):
    """A run that did not show whether the value fits; `output` is the end of what it printed."""

    value: int
    why: str
    exit_code: int
    signal: int | None
    output: str


@dataclass(frozen=True)
class FitProof(Record):
    """How a program was tried: `runs` of the `tries` are of this call."""

    low: int
    high: int
    step: int
    guess: int | None
    tries: tuple[FitTry, ...]
    runs: int
    kept_in: str | None
    """The file with the results; the next call of the same command uses them."""
    failure: FitFailure | None
    interrupted: bool


@dataclass(frozen=True, repr=False)
class FitReport(Record):
    """The largest setting that fits; `largest` is None where none does, or where it cannot be known,
    and `why` says which. `command` is the line to run it with."""

    how: Literal["estimated", "tried"]
    vary: str
    largest: int | str | None
    smallest_failed: int | str | None
    largest_bytes: int | None
    """Its counted peak, or the upper end of its estimate."""
    limit_bytes: int
    reserve_bytes: int
    reserve_reason: str
    why: str | None
    command: str | None
    notes: tuple[str, ...]
    estimate: FitEstimate | None
    proof: FitProof | None

    def _rows(self) -> list[tuple[str, str]]:
        how, failed = ("at most", "next that may not") if self.proof is None else ("peak", "smallest that failed")
        rows = [
            (f"largest {self.vary}", UNKNOWN if self.largest is None else str(self.largest)),
            (how, _size(self.largest_bytes)),
            (failed, UNKNOWN if self.smallest_failed is None else str(self.smallest_failed)),
            ("limit", _size(self.limit_bytes)),
            ("kept free", f"{_size(self.reserve_bytes)}, {self.reserve_reason}"),
        ]
        if self.why is not None:
            rows.append(("why", self.why))
        rows.extend(("note", note) for note in self.notes)
        if self.command is not None:
            rows.append(("command", self.command.replace("\n", "; ")))
        return rows

    def __repr__(self) -> str:
        return f"<FitReport, {self.how}>\n" + _text(self._rows())

    def _repr_html_(self) -> str:
        return _page(f"The largest {self.vary}", self.how, _table(None, self._rows()))
