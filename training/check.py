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
    return good, path


def loads(path, folder):
    """Ultralytics loads the file and finds the same as from the checkpoint."""
    file = folder / "loaded.onnx"
    export(path, file)
    frame = np.random.default_rng(3).integers(0, 255, (720, 1280, 3), dtype=np.uint8)
    settings = dict(imgsz=640, rect=False, conf=0.5, verbose=False, device="cpu", max_det=1000)
    a = ultralytics.YOLO(str(path)).predict(frame, **settings)[0]
    b = ultralytics.YOLO(str(file), task="detect").predict(frame, **settings)[0]
    # Boxes that are equally sure may change places: each is looked for by class and place.
    apart = torch.cdist(a.boxes.xyxy, b.boxes.xyxy, p=float("inf"))
    apart[a.boxes.cls[:, None] != b.boxes.cls[None]] = float("inf")
    nearest = apart.min(1).values
    matched = nearest < 0.1
    share, far = float(matched.float().mean()), float(nearest[matched].max())
    print(
        f"\nUltralytics {ultralytics.__version__} on our file of {path.stem}: {len(b)} detections, "
        f"{len(a)} from the checkpoint, {share:.1%} of them within 0.1 px, those to {far:.1e} px"
    )
    return len(a) == len(b) and a.names == b.names and share > 0.99


def main():
    shapes = sys.argv[1:] or SHAPES
    print(f"Ultralytics {ultralytics.__version__}, torch {torch.__version__}, ONNX {onnx.__version__}, ONNX Runtime {onnxruntime.__version__}\n")
    print("| network | .pt, MiB | nodes | boxes, px | confidences | any size: boxes, px | confidences | spread | export, s | within |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    good = True
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        first = None
        for name in shapes:
            fine, path = check(name, folder)
            good &= fine
            first = first or path
            for file in folder.glob(f"{name}.*"):
                if file != first:
                    file.unlink()
        good &= loads(first, folder)
    sys.exit(0 if good else 1)


main()
