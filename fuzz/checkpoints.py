"""Small detectors as seeds for the target `checkpoint`: the pickles of networks with every module
that is known, a few channels wide, whose weights are views of the target's own storages.

    python3 fuzz/checkpoints.py FOLDER

Nothing of torch or Ultralytics is needed: a pickle has the names of classes, and those are made
here. Byte 0 of a seed says how it is taken (see targets/checkpoint.rs).
"""

import io
import pickle
import sys
import types
from pathlib import Path

BLOCK, CONV, HEAD = (f"ultralytics.nn.modules.{name}" for name in ("block", "conv", "head"))


def named(place, name, made):
    """Gives a class or function the name that a checkpoint calls it by."""
    made.__module__, made.__qualname__, made.__name__ = place, name, name
    # The folders above it too, or Python would look for them.
    parts = place.split(".")
    for count in range(1, len(parts) + 1):
        parent = ".".join(parts[:count])
        sys.modules.setdefault(parent, types.ModuleType(parent))
    setattr(sys.modules[place], name, made)
    return made


STORAGE = named("torch", "FloatStorage", type("FloatStorage", (), {}))
REBUILD = named("torch._utils", "_rebuild_tensor_v2", lambda *_: None)
CLASSES = {}


class Stored(str):
    """A storage, by its key."""


class Tensor:
    def __init__(self, key, *shape):
        self.parts = (Stored(key), 0, shape, tuple(int(key == "1") for _ in shape), False, None)

    def __reduce__(self):
        return REBUILD, self.parts


class Pickler(pickle.Pickler):
    def persistent_id(self, value):
        return ("storage", STORAGE, str(value), "cpu", 128) if isinstance(value, Stored) else None


def module(place, name, children=(), **fields):
    if (place, name) not in CLASSES:
        CLASSES[place, name] = named(place, name, type(name, (), {}))
    made = CLASSES[place, name]()
    made.__dict__.update(_modules=dict(children), **fields)
    return made


def torch(place, name, children=(), **fields):
    return module(f"torch.nn.modules.{place}", name, children, **fields)


def chain(*children, kind="Sequential", **fields):
    return torch("container", kind, {str(n): child for n, child in enumerate(children)}, **fields)


def conv2d(inputs, outputs, kernel=1, stride=1, groups=1):
    weight = Tensor("0", outputs, inputs // groups, kernel, kernel)
    parameters = {"weight": weight, "bias": Tensor("0", outputs)}
    pair = lambda n: (n, n)
    return torch("conv", "Conv2d", _parameters=parameters, kernel_size=pair(kernel), stride=pair(stride),
                 padding=pair(kernel // 2), dilation=pair(1), groups=groups, padding_mode="zeros")


def conv(inputs, outputs, kernel=1, stride=1, groups=1, **fields):
    parameters = {name: Tensor("2", outputs) for name in ("weight", "bias")}
    buffers = {name: Tensor("2", outputs) for name in ("running_mean", "running_var")}
    norm = torch("batchnorm", "BatchNorm2d", _parameters=parameters, _buffers=buffers, eps=0.001)
    children = {"conv": conv2d(inputs, outputs, kernel, stride, groups), "bn": norm, "act": torch("activation", "SiLU")}
    return module(CONV, "Conv", children, **fields)


def pool(kernel=5, stride=1, **fields):
    return torch("pooling", "MaxPool2d", kernel_size=kernel, stride=stride, padding=kernel // 2, dilation=1,
                 ceil_mode=False, **fields)


def bottleneck(width):
    return module(BLOCK, "Bottleneck", {"cv1": conv(width, width, 3), "cv2": conv(width, width, 3)}, add=True)


def c2f(width, **fields):
    inner = chain(bottleneck(width // 2), kind="ModuleList")
    return module(BLOCK, "C2f", {"cv1": conv(width, width), "cv2": conv(width * 3 // 2, width), "m": inner}, **fields)


def c3(width, **fields):
    half = {name: conv(width, width // 2) for name in ("cv1", "cv2")}
    return module(BLOCK, "C3", {**half, "cv3": conv(width, width), "m": chain(bottleneck(width // 2))}, **fields)


def sppf(width, **fields):
    return module(BLOCK, "SPPF", {"cv1": conv(width, width), "cv2": conv(4 * width, width), "m": pool()}, **fields)


def c2psa(width, **fields):
    half = width // 2
    parts = {"qkv": conv(half, 2 * half), "proj": conv(half, half), "pe": conv(half, half, 3, 1, half)}
    attention = module(BLOCK, "Attention", parts, num_heads=1, key_dim=half // 2, head_dim=half, scale=0.5)
    block = module(BLOCK, "PSABlock", {"attn": attention, "ffn": chain(conv(half, half))}, add=True)
    return module(BLOCK, "C2PSA", {"cv1": conv(width, width), "cv2": conv(width, width), "m": chain(block)}, **fields)


def head(widths, bins, layers):
    branch = lambda outputs: chain(*(chain(conv(w, 2), conv2d(2, outputs)) for w in widths), kind="ModuleList")
    dfl = torch("conv", "Conv2d", _parameters={"weight": Tensor("0", 1, bins, 1, 1)})
    children = {"cv2": branch(4 * bins), "cv3": branch(2), "dfl": module(BLOCK, "DFL", {"conv": dfl})}
    return module(HEAD, "Detect", children, nc=2, reg_max=bins, stride=Tensor("1", len(widths)), f=layers)


def detector(*layers):
    names = {0: "ship", 1: "buoy"}
    tree = module("ultralytics.nn.tasks", "DetectionModel", {"model": chain(*layers)}, names=names,
                  yaml={"channels": 3, "yaml_file": "seed.yaml"}, task="detect")
    out = io.BytesIO()
    Pickler(out, 2).dump({"version": "8.4.0", "model": tree, "ema": None})
    return out.getvalue()


def main(folder):
    one = (pool(8, 8, f=-1), head([3], 1, [0]))
    one[0].padding = 0
    all_of_them = (
        conv(3, 4, 3, 2, f=-1), conv(4, 4, 3, 2, f=-1), conv(4, 4, 3, 2, f=-1), c2f(4, f=-1),
        conv(4, 4, 3, 2, f=-1), c3(4, f=-1), sppf(4, f=-1), c2psa(4, f=-1),
        torch("upsampling", "Upsample", mode="nearest", scale_factor=2.0, f=-1),
        module(CONV, "Concat", d=1, f=[-1, 3]), head([8, 4], 2, [9, 7]),
    )
    for name, layers in (("one", one), ("all", all_of_them)):
        for how in range(4):
            (folder / f"seed-{name}-{how}").write_bytes(bytes([how]) + detector(*layers))


main(Path(sys.argv[1]))
