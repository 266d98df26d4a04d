"""What running a model takes, before it is run."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._plimsoll import available_bytes, estimate_file, estimate_shape, format_bytes, parse_bytes
from .errors import Unavailable

TERMS = {
    "weights": "weights_bytes",
    "KV cache": "kv_cache_bytes",
    "activations": "activation_bytes",
    "overhead": "overhead_bytes",
}


@dataclass(frozen=True)
class Estimate:
    """What a model takes, term by term, in bytes; estimated."""

    total_bytes: int
    weights_bytes: int
    kv_cache_bytes: int
    activation_bytes: int
    overhead_bytes: int | None
    """What the engine and the driver take for themselves; None where nothing is on record, as where none is named."""
    limit_bytes: int | None
    """What it was compared with."""
    fits: bool | None
    """Whether the upper end of its range fits into that, with 700 MiB kept free on a GPU for an engine of which
    nothing is on record; None without a limit, and where only the weights are known and they fit."""
    details: dict[str, Any] = field(repr=False)
    """Everything that the library says of it."""

    def to_dict(self) -> dict[str, Any]:
        """Everything that the library says of it, with the limit and whether it fits."""
        return {**self.details, "limit_bytes": self.limit_bytes, "fits": self.fits}

    def rows(self) -> list[tuple[str, int | None]]:
        """The terms with their names, as a table has them; None for what is not known."""
        return [(name, self.details[key]) for name, key in TERMS.items()]

    def __repr__(self) -> str:
        terms = ", ".join(f"{name} {_shown(size)}" for name, size in self.rows())
        text = f"Estimate({format_bytes(self.total_bytes)}: {terms}"
        if self.limit_bytes is None:
            return text + ")"
        return f"{text}; {self._verdict()})"

    def _verdict(self) -> str:
        if self.limit_bytes is None:
            return ""
        words = {True: "fits into", False: "does not fit into", None: "only weights are known, which fit into"}
        return f"{words[self.fits]} {format_bytes(self.limit_bytes)}"

    def _repr_html_(self) -> str:
        row = '<tr><td style="text-align:left">{}</td><td style="text-align:right">{}</td></tr>'
        rows = [row.format(html.escape(name), _shown(size)) for name, size in self.rows()]
        total = f"<b>{format_bytes(self.total_bytes)}</b>"
        rows.append(row.format("<b>total</b>, estimated", total))
        verdict = ""
        if self.limit_bytes is not None:
            colour = "#1a7f37" if self.fits else "#cf222e"
            verdict = f'<div style="color:{colour};font-weight:600">{self._verdict()}</div>'
        name = self.details.get("model")
        head = f"<div>{html.escape(str(name))}</div>" if name else ""
        return f"<div>{head}<table>{''.join(rows)}</table>{verdict}</div>"


def _shown(size: int | None) -> str:
    return "–" if size is None else format_bytes(size)


def _fits(details: Mapping[str, Any], most: int | None) -> bool | None:
    if most is None:
        return None
    if details.get("only_weights") and details["total_bytes"] <= most:
        return None
    return bool(details["range"]["high_bytes"] + details["overhead_kept_free_bytes"] <= most)


def estimate(
    model: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    *,
    limit: int | str | None = None,
    device: object = None,
    **options: Any,
) -> Estimate:
    """What running a model takes: of a file or folder (ONNX, .pt, GGUF, safetensors), or of the
    shape of a language model, as a dict or as keyword arguments.

    Other options are named as the flags of `plimsoll estimate`: of a file `image` (rows and columns),
    `batch`, `context`, `dtype`, `kv_dtype`, `ubatch`, `flash_attn`, `gpu_layers`, `engine` and `inputs`
    (pairs of "name:axis" and a number). The command has more, such as `--train`. With a `limit`, or
    a `device` whose free memory then counts, it says whether it fits; with both the lower counts, and
    where the device is not on this machine the limit.

    >>> import plimsoll
    >>> mistral = dict(hidden=4096, intermediate=14336, layers=32, vocab=32000, heads=32, kv_heads=8)
    >>> plimsoll.estimate(mistral, context=4096, limit="6.9GiB").fits
    False
    >>> plimsoll.estimate(mistral, context=4096)
    Estimate(14.28 GiB: weights 13.49 GiB, KV cache 512.00 MiB, activations 296.00 MiB, overhead –)
    """
    try:
        if isinstance(model, (str, os.PathLike)):
            details = estimate_file(os.fspath(model), device=device, **options)
        else:
            details = estimate_shape(**(model or {}), **options)
    except OverflowError as error:  # a number below 0, or one that is too large
        raise ValueError(f"a model cannot have such a number: {error}") from None
    most = None if limit is None else parse_bytes(limit)
    if device is not None:
        try:
            free = available_bytes(device)
            most = free if most is None else min(most, free)
        except Unavailable:
            # A file can be judged by a limit on a machine without the device.
            if most is None:
                raise
    total = int(details["total_bytes"])
    return Estimate(
        total_bytes=total,
        weights_bytes=details["weights_bytes"],
        kv_cache_bytes=details["kv_cache_bytes"],
        activation_bytes=details["activation_bytes"],
        overhead_bytes=details["overhead_bytes"],
        limit_bytes=most,
        fits=_fits(details, most),
        details=details,
    )
