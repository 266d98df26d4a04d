"""Compares what plimsoll makes of checkpoints with what torch computes from them."""

import gc
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
import ultralytics
from checkpoints import build, compute, save
from ultralytics.nn.autobackend import AutoBackend

PIXELS, SURE = 1e-3, 1e-5
SHAPES = [f"yolo{kind}{scale}" for kind in ("11", "v8") for scale in "nsmlx"]


def export(path, to, *flags):
    begun = time.perf_counter()
    subprocess.run([os.environ["PLIMSOLL"], "export", path, "--to", to, "--quiet", *flags], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begun


def run(path, image):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"images": image})[0]


def difference(a, b):
    assert a.shape == b.shape, (a.shape, b.shape)
    return np.abs(a - b)[:, :4].max(), np.abs(a - b)[:, 4:].max()


def check(name, folder):
    torch.manual_seed(len(name) + ord(name[-1]))
    path = folder / f"{name}.pt"
    save(build(f"{name}.yaml"), path)
    gc.collect()
    image = np.random.default_rng(7).random((1, 3, 640, 640), dtype=np.float32)
    wanted = compute(path, image)
    file = folder / f"{name}.onnx"
    seconds = export(path, file)
    model = onnx.load(file)
    onnx.checker.check_model(model, full_check=True)
    nodes = len(model.graph.node)
    del model
    found = run(file, image)
    pixels, sure = difference(found, wanted)
    # Any size: another one, and two images at once.
    export(path, file, "--dynamic")
    onnx.checker.check_model(str(file), full_check=True)
    small = np.ascontiguousarray(image[:, :, :320, :416])
    pair = run(file, np.concatenate([small, small[:, :, ::-1]]))
    any_pixels, any_sure = difference(pair[:1], compute(path, small))
    good = max(pixels, any_pixels) <= PIXELS and max(sure, any_sure) <= SURE
    size = path.stat().st_size / 2**20
    spread = wanted[:, 4:].std(2).mean()
    print(
        f"| {name} | {size:.1f} | {nodes} | {pixels:.1e} | {sure:.1e} | {any_pixels:.1e} | "
        f"{any_sure:.1e} | {spread:.2f} | {seconds:.2f} | {'yes' if good else 'NO'} |",
        flush=True,
    )
    return good


def loads(name, folder):
    """Ultralytics loads our file, computes the same from it and finds the same in a picture."""
    # The same weights whatever was checked before: of some, all boxes are equally sure.
    torch.manual_seed(len(name) + ord(name[-1]))
    model = build(f"{name}.yaml")
    for branch in model.model[-1].cv3:
        # Few are sure, and no two alike: at 1.0 nothing is told apart.
        branch[-1].weight.data *= 0.3
        branch[-1].bias.data = 0.3 * torch.randn(branch[-1].bias.shape) - 4
    path, file = folder / "loaded.pt", folder / "loaded.onnx"
    save(model, path)
    export(path, file)
    frame = np.random.default_rng(3).integers(0, 255, (640, 640, 3), dtype=np.uint8)
    image = torch.from_numpy(np.ascontiguousarray(frame[None, :, :, ::-1].transpose(0, 3, 1, 2))) / 255
    outputs = []
    for source in (path, file):
        backend = AutoBackend(model=str(source), device=torch.device("cpu"), verbose=False)
        output = backend(image)
        outputs.append((output[0] if isinstance(output, (tuple, list)) else output).detach().numpy())
    pixels, sure = difference(*outputs)
    # A line that no box is near, and no box hidden by another: a network that learnt nothing
    # gives equal boxes along its borders, and which of them hides which turns on the last bit.
    surest = np.sort(outputs[0][:, 4:].max(1).ravel())[-100:-30]
    widest = int(np.argmax(np.diff(surest)))
    level = float(surest[widest : widest + 2].mean())
    settings = dict(imgsz=640, rect=False, conf=level, iou=1.0, verbose=False, device="cpu")
    a = ultralytics.YOLO(str(path)).predict(frame, **settings)[0]
    b = ultralytics.YOLO(str(file), task="detect").predict(frame, **settings)[0]
    # Boxes that are equally sure may change places: each is looked for by class and place.
    apart = torch.cdist(a.boxes.xyxy, b.boxes.xyxy, p=float("inf"))
    apart[a.boxes.cls[:, None] != b.boxes.cls[None]] = float("inf")
    far = float(apart.min(1).values.max()) if len(a) and len(b) else float("inf")
    good = pixels <= PIXELS and sure <= SURE and len(a) == len(b) and a.names == b.names and far <= 0.1
    print(
        f"\nLoaded by Ultralytics {ultralytics.__version__}, our file of {name} gives what the checkpoint gives to "
        f"{pixels:.1e} px and {sure:.1e}; in a picture {len(b)} detections for {len(a)}, the furthest {far:.1e} px away: "
        f"{'yes' if good else 'NO'}",
        flush=True,
    )
    return good


def main():
    shapes = sys.argv[1:] or SHAPES
    print(f"Ultralytics {ultralytics.__version__}, torch {torch.__version__}, ONNX {onnx.__version__}, ONNX Runtime {onnxruntime.__version__}\n")
    print("| network | .pt, MiB | nodes | boxes, px | confidences | any size: boxes, px | confidences | spread | export, s | within |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        for name in shapes:
            good &= check(name, folder)
            for file in folder.iterdir():
                file.unlink()
        for name in {name[:-1]: name for name in reversed(shapes)}.values():
            good &= loads(name, folder)
    sys.exit(0 if good else 1)


main()
