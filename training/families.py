"""Small networks that have, between them, every module and head that plimsoll reads.

    python3 training/families.py FOLDER

Each is NAME.pt and NAME.f32, which is what torch computes from it on one image: all outputs one
after the other, and of those with a second head that needs no suppression, NAME.free.f32.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from checkpoints import build, save
from ultralytics.nn import tasks

SIDE = 64
NAMES = {0: "ship", 1: "it's", 2: "buoy"}


def network(backbone, head, extra=None):
    """Two scales, of strides 8 and 16, into a head; `backbone` gives layers 1 and 2 of them."""
    rows = [[-1, 1, "Conv", [8, 3, 2]], [-1, 1, "Conv", [8, 3, 2]], *backbone]
    return {"nc": len(NAMES), "backbone": rows, "head": [[[len(rows) - 2, len(rows) - 1], 1, *head]], **(extra or {})}


def plain(head, extra=None):
    """As small as may be: few bins of distances."""
    extra = {"reg_max": 4} | (extra or {})
    rows = [[-1, 1, "Conv", [16, 3, 2]], [-1, 1, "C2f", [16, True]], [-1, 1, "Conv", [16, 3, 2]]]
    return network(rows, head, extra)


V9 = [
    [-1, 1, "ELAN1", [16, 16, 8]],
    [-1, 1, "CBLinear", [[8, 16]]],  # 3
    [2, 1, "AConv", [16]],  # 4, of stride 8
    [-1, 1, "RepNCSPELAN4", [16, 16, 8, 1]],
    [[3, -1], 1, "CBFuse", [[1]]],
    [-1, 1, "ADown", [16]],  # 7, of stride 16
    [-1, 1, "SPPELAN", [16, 8]],
]
V10 = [
    [-1, 1, "SCDown", [16, 3, 2]],
    [-1, 1, "C2fCIB", [16, True, True]],
    [-1, 1, "Conv", [64, 3, 2]],
    [-1, 1, "A2C2f", [64, True, 4, True]],
    [-1, 1, "PSA", [64]],
    [-1, 1, "Conv", [16, 1, 1]],
    [-1, 1, "C2f", [16]],
]
RT = {
    "nc": len(NAMES),
    "backbone": [
        [-1, 1, "HGStem", [8, 16]],  # of stride 4
        [-1, 2, "HGBlock", [8, 16, 3]],
        [-1, 1, "DWConv", [16, 3, 2, 1, False]],
        [-1, 2, "HGBlock", [8, 16, 5, True, True]],  # 3, of stride 8
        [-1, 1, "ResNetLayer", [16, 8, 2, False, 1]],  # 4, of stride 16
    ],
    "head": [
        [-1, 1, "Conv", [16, 1, 1, None, 1, 1, False]],
        [-1, 1, "AIFI", [32, 4]],
        [-1, 1, "nn.Upsample", [None, 2, "nearest"]],
        [[-1, 3], 1, "Concat", [1]],
        [-1, 1, "RepC3", [16]],  # 9
        [[9, 6], 1, "RTDETRDecoder", ["nc", 32, 20, 2, 4, 2, 32]],
    ],
}
TWENTYSIX = {"end2end": True, "reg_max": 1}
FAMILIES = {
    "small9": network(V9, ["Detect", ["nc"]], {"reg_max": 4}),
    "small10": network(V10, ["v10Detect", ["nc"]]),
    "smallseg": plain(["Segment", ["nc", 8, 8]]),
    "smallpose": plain(["Pose", ["nc", [3, 3]]], {"kpt_shape": [3, 3]}),
    "smallobb": plain(["OBB", ["nc", 1]]),
    "smallcls": plain(["Classify", ["nc"]]),
    "small26seg": plain(["Segment26", ["nc", 8, 8]], TWENTYSIX),
    "small26pose": plain(["Pose26", ["nc", [3, 3]]], TWENTYSIX | {"kpt_shape": [3, 3]}),
    "small26obb": plain(["OBB26", ["nc", 1]], TWENTYSIX),
    "smallrt": RT,
}


def computed(path, image, free):
    model, _ = tasks.load_checkpoint(path, device="cpu")
    if hasattr(model, "end2end"):
        model.end2end = free
    model = model.fuse(verbose=False).eval()
    with torch.inference_mode():
        output = model(torch.from_numpy(image))[0]
    return list(output) if isinstance(output, (tuple, list)) else [output]


def main():
    folder = Path(sys.argv[1])
    image = np.float32((np.arange(3 * SIDE * SIDE) * 7919) % 1000 / 1000).reshape(1, 3, SIDE, SIDE)
    for name, shape in FAMILIES.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        torch.manual_seed(11)
        shape = shape | {"yaml_file": f"{name}.yaml"}
        if name == "smallcls":
            shape["head"][0][0] = -1
        path = folder / f"{name}.pt"
        save(build(shape, NAMES, side=SIDE, images=torch.from_numpy(image)), path)
        for ending, free in [(".f32", False), (".free.f32", True)]:
            if free and "10" not in name and "26" not in name:
                continue
            outputs = computed(path, image, free)
            np.concatenate([output.numpy().ravel() for output in outputs]).astype("<f4").tofile(folder / f"{name}{ending}")
        print(f"{path}: {path.stat().st_size} bytes, outputs {[tuple(output.shape) for output in outputs]}")


main()
