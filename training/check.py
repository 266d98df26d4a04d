"""Compares what plimsoll makes of checkpoints and of Ultralytics' exports with Ultralytics' own answers.

`answers` (NAME…): frames go through `crates/infer/examples/answers` and through Ultralytics' `predict`,
and the detections are laid side by side. `outputs`: the graph alone, against torch. `exports`: the
.onnx files that Ultralytics makes, without suppression, with it and from the heads that need none.
"""

import argparse
import json
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
from checkpoints import boxed, build, save, shots
from ultralytics.nn import tasks

PIXELS, SURE, RADIANS, OVERLAP, SHARE = 0.5, 2e-3, 5e-3, 0.99, 0.995
CONF, IOU, MOST = 0.25, 0.45, 300

DETECTORS = [
    *(f"yolov5{size}" for size in "nsmlx"),
    *(f"yolov8{size}" for size in "nsmlx"),
    *(f"yolov9{size}" for size in "tsmce"),
    *(f"yolov10{size}" for size in "nsmblx"),
    *(f"yolo11{size}" for size in "nsmlx"),
    *(f"yolo12{size}" for size in "nsmlx"),
    *(f"yolo26{size}" for size in "nsmlx"),
    *("rtdetr-l", "rtdetr-x", "rtdetr-resnet50", "rtdetr-resnet101"),
]
TASKS = [f"{family}{{}}-{task}" for family in ("yolov8", "yolo11", "yolo12", "yolo26") for task in ("seg", "pose", "obb", "cls")]


def program(lines):
    """Runs jobs in our example; says what it said where it failed."""
    done = subprocess.run([os.environ["ANSWERS"]], input="\n".join(lines) + "\n", text=True, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[0] if done.stderr.strip() else "no answer")


def frames(folder):
    """Three frames of different proportions, blue first."""
    made = []
    for number, frame in enumerate(shots()):
        frame.tofile(folder / f"{number}.bgr")
        made.append((folder / f"{number}.bgr", frame))
    return made


BIAS = 0.0


def checkpoint(name, folder, side, sure=0.95):
    """A checkpoint of this shape. Ultralytics takes some names for files of its own."""
    torch.manual_seed(sum(map(ord, name)))
    path = folder / f"{name.replace('yolov5', 'v5').replace('-', '_')}_.pt"
    save(build(f"{name}.yaml", side=side, sure=sure, bias=BIAS), path)
    return path


def ours(model, engine, side, given, folder):
    out = folder / "answers.json"
    listed = " ".join(f"{path} {frame.shape[1]}x{frame.shape[0]}" for path, frame in given)
    program([f"answer {model} {engine} {side}x{side} {CONF} {IOU} {MOST} {out} {listed}"])
    return json.loads(out.read_text())


def theirs(model, side, given, **more):
    kind = ultralytics.RTDETR if "rtdetr" in Path(model).name else ultralytics.YOLO
    loaded = kind(str(model), **({"task": more.pop("task")} if "task" in more else {}))
    settings = dict(imgsz=side, rect=False, conf=CONF, iou=IOU, max_det=MOST, verbose=False, device="cpu", **more)
    return [loaded.predict(frame, **settings)[0] for _, frame in given]


def painted(mask, shape):
    """A mask of ours as an array of the model's input."""
    bits = np.repeat(np.arange(len(mask["runs"])) % 2 == 1, mask["runs"]).reshape(mask["height"], mask["width"])
    whole = np.zeros(shape, bool)
    whole[mask["top"] : mask["top"] + mask["height"], mask["left"] : mask["left"] + mask["width"]] = bits
    return whole


def same(one, result, at):
    """Whether one of ours is one of theirs, beyond its class."""
    far = lambda a, b: float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())  # noqa: E731
    if result.obb is not None:
        turned = result.obb.xywhr[at].tolist()
        return far(one["turned"][:4], turned[:4]) <= PIXELS and abs(one["turned"][4] - turned[4]) <= RADIANS
    if far(one["box"], result.boxes.xyxy[at].tolist()) > PIXELS:
        return False
    if result.masks is not None:
        wanted = result.masks.data[at].numpy().astype(bool)
        got = painted(one["mask"], wanted.shape)
        return (wanted & got).sum() >= OVERLAP * (wanted | got).sum()
    if result.keypoints is not None:
        points, wanted = np.array(one["keypoints"]), result.keypoints.data[at].numpy()
        seen = far(points[:, 2], wanted[:, 2]) <= SURE if wanted.shape[1] == 3 else True
        return far(points[:, :2], wanted[:, :2]) <= PIXELS and seen
    return True


def compare(found, results):
    """Of all detections of either, those that are equal: equal, theirs, ours."""
    equal = wanted = got = 0
    for mine, result in zip(found, results):
        got += len(mine)
        if result.probs is not None:
            wanted += 5
            for one, number in zip(mine, result.probs.top5):
                equal += one["class"] == number and abs(one["confidence"] - float(result.probs.data[number])) <= SURE
            continue
        boxes = result.obb if result.obb is not None else result.boxes
        wanted += len(boxes)
        left = list(range(len(mine)))
        for at, (number, sure) in enumerate(zip(boxes.cls.tolist(), boxes.conf.tolist())):
            for place in left:
                one = mine[place]
                if one["class"] == number and abs(one["confidence"] - sure) <= SURE and same(one, result, at):
                    equal += 1
                    left.remove(place)
                    break
    return equal, wanted, got


def line(name, side, engine, counts, seconds):
    equal, wanted, got = counts
    share = equal / max(wanted, got, 1)
    good = share >= SHARE and wanted > 0
    print(f"| {name} | {side} | {engine} | {wanted} | {got} | {equal} | {100 * share:.2f} | {'yes' if good else 'NO'} | {seconds:.0f} |", flush=True)
    return good


HEADER = "| model | input | engine | Ultralytics' | ours | equal | % | within | s |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |"


def refused(name, side, engine, error):
    print(f"| {name} | {side} | {engine} | | | | | refused: {error} | |", flush=True)


def answers(names, side, given, folder, engines):
    print(HEADER, flush=True)
    good = True
    for name in names:
        size = 224 if name.endswith("-cls") else side
        begun = time.perf_counter()
        path = checkpoint(name, folder, size)
        results = theirs(path, size, given)
        for engine in engines:
            try:
                good &= line(name, size, engine, compare(ours(path, engine, size, given, folder), results), time.perf_counter() - begun)
            except RuntimeError as error:
                refused(name, size, engine, error)
                good = False
        path.unlink()
    return good


def outputs(names, folder):
    """The graph's numbers beside torch's, as shares of the spread of each output's channels."""
    print("| model | input | nodes | outputs | largest difference | of a spread of | within |\n| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    good = True
    for name in names:
        side = 160
        path = checkpoint(name, folder, side)
        image = boxed(side)[:1]
        model, _ = tasks.load_checkpoint(path, device="cpu")
        model = model.fuse(verbose=False).eval()
        with torch.inference_mode():
            wanted = model(image)[0]
        wanted = list(wanted) if isinstance(wanted, (tuple, list)) else [wanted]
        graph = folder / "graph.onnx"
        program([f"graph {path} {graph} {side}x{side} nms"])
        onnx.checker.check_model(str(graph), full_check=True)
        session = onnxruntime.InferenceSession(str(graph), providers=["CPUExecutionProvider"])
        got = session.run(None, {"images": image.numpy()})
        assert [tuple(value.shape) for value in wanted] == [value.shape for value in got], name
        far = max(float((value - torch.from_numpy(other)).abs().max()) for value, other in zip(wanted, got))
        spread = min(float(value.std()) for value in wanted)
        within = far <= 1e-2 * max(float(value.std()) for value in wanted)
        good &= within
        nodes = len(onnx.load(graph, load_external_data=False).graph.node)
        shapes = ", ".join("x".join(map(str, value.shape)) for value in got)
        print(f"| {name} | {side} | {nodes} | {shapes} | {far:.1e} | {spread:.1e} | {'yes' if within else 'NO'} |", flush=True)
        path.unlink()
    return good


def exports(names, side, given, folder, engines):
    """What Ultralytics exports, as it is: how it suppresses is part of the name."""
    print(HEADER, flush=True)
    good = True
    for name in names:
        size = 224 if name.endswith("-cls") else side
        path = checkpoint(name, folder, size)
        kind = ultralytics.RTDETR if "rtdetr" in name else ultralytics.YOLO
        hows = [("", {})]
        if not name.endswith("-cls") and "rtdetr" not in name:
            hows.append((", nms=True", dict(nms=True, conf=CONF, iou=IOU, max_det=MOST)))
        if ("26" in name or "v10" in name) and not name.endswith("-cls"):
            hows.append((", nms=False (end to end)", dict(nms=False)))
        for how, settings in hows:
            begun = time.perf_counter()
            loaded = kind(str(path))
            graph = loaded.export(format="onnx", imgsz=size, simplify=False, opset=17, verbose=False, device="cpu", **settings)
            results = theirs(graph, size, given, task=loaded.task) if "rtdetr" not in name else theirs(graph, size, given)
            for engine in engines:
                try:
                    good &= line(name + how, size, engine, compare(ours(graph, engine, size, given, folder), results), time.perf_counter() - begun)
                except RuntimeError as error:
                    refused(name + how, size, engine, error)
                    good = False
            Path(graph).unlink()
        path.unlink()
    return good


def floor(names, side, given, folder):
    """What is left of Ultralytics' detections when Ultralytics itself runs its own export on ONNX
    Runtime: no other program can be expected to keep more."""
    print(HEADER, flush=True)
    for name in names:
        begun = time.perf_counter()
        path = checkpoint(name, folder, side)
        results = theirs(path, side, given)
        kind = ultralytics.RTDETR if "rtdetr" in name else ultralytics.YOLO
        graph = kind(str(path)).export(format="onnx", imgsz=side, simplify=False, opset=17, verbose=False, device="cpu")
        found = [
            [{"class": int(number), "confidence": sure, "box": box} for number, sure, box in zip(*(part.tolist() for part in (boxes.cls, boxes.conf, boxes.xyxy)))]
            for boxes in (result.boxes for result in theirs(graph, side, given))
        ]
        line(name, side, "Ultralytics on ort", compare(found, results), time.perf_counter() - begun)
        for each in (graph, path):
            Path(each).unlink()


def times(folder, rounds=3, turns=5):
    """How long masks and keypoints take, from raw outputs to results, in turns with Ultralytics' functions."""
    from ultralytics.utils import nms, ops

    draw = np.random.default_rng(5)
    places = 8400
    print("| outputs | detections | Ultralytics', ms | ours, ms | times as fast |\n| --- | --- | --- | --- | --- |", flush=True)
    good = True
    for task, classes, extra, keypoints, mean in [("segment", 80, 32, "0x0", 90), ("segment", 80, 32, "0x0", 300), ("pose", 1, 51, "17x3", 90)]:
        raw = np.concatenate([
            draw.uniform(0, 640, (2, places)), draw.gamma(3, mean / 3, (2, places)),
            draw.random((classes, places)) * 0.2, draw.normal(0, 1, (extra, places)),
        ]).astype(np.float32)[None]
        sure = draw.choice(places, 160, replace=False)
        raw[0, 4 + draw.integers(0, classes, 160), sure] = draw.uniform(0.3, 0.9, 160)
        prototypes = draw.normal(0, 1, (1, 32, 160, 160)).astype(np.float32)
        outputs = f"{folder}/raw.f32 {'x'.join(map(str, raw.shape))}"
        raw.tofile(folder / "raw.f32")
        if task == "segment":
            prototypes.tofile(folder / "prototypes.f32")
            outputs += f" {folder}/prototypes.f32 1x32x160x160"

        def peer():
            found = nms.non_max_suppression(torch.from_numpy(raw), CONF, IOU, max_det=MOST, nc=classes)[0]
            if task == "segment":
                masks = ops.process_mask(torch.from_numpy(prototypes[0]), found[:, 6:], found[:, :4], (640, 640), upsample=True)
                found = found[masks.amax((-2, -1)) > 0]
            else:
                ops.scale_coords((640, 640), found[:, 6:].view(len(found), 17, 3), (720, 1280))
            ops.scale_boxes((640, 640), found[:, :4], (720, 1280))
            return len(found)

        both = []
        for _ in range(rounds):
            mine, count = [], 0
            done = subprocess.run([os.environ["ANSWERS"]], input=f"time {task} {classes} {keypoints} {CONF} {IOU} {MOST} {turns} {outputs}\n", text=True, capture_output=True, check=True)
            mine = json.loads(done.stdout)
            wanted = []
            for _ in range(turns):
                # Of its processor time half, as if two cores shared it evenly: on a busy machine two
                # threads wait for each other, which is not its fault.
                begun = time.process_time()
                count = peer()
                wanted.append(1e3 * (time.process_time() - begun) / 2)
            both.append((min(wanted), min(mine["times"])))
            assert count == mine["found"], (count, mine["found"])
        wanted, mine = (float(np.median([pair[side] for pair in both])) for side in (0, 1))
        good &= wanted >= 5 * mine
        print(f"| {task}, boxes of {mean} px | {count} | {wanted:.2f} | {mine:.2f} | {wanted / mine:.1f} |", flush=True)
    return good


def main():
    words = argparse.ArgumentParser()
    words.add_argument("what", choices=["answers", "outputs", "exports", "floor", "times"])
    words.add_argument("names", nargs="*")
    words.add_argument("--side", type=int, default=320)
    words.add_argument("--frames", type=int, default=3)
    words.add_argument("--engines", default="ort")
    words.add_argument("--bias", type=float, default=0.0, help="mean of the batch norms' biases; 1 for the deepest networks")
    words = words.parse_args()
    global BIAS
    BIAS = words.bias
    torch.set_num_threads(2)
    engines = words.engines.split(",")
    good = True
    with tempfile.TemporaryDirectory(prefix="check-checkpoints-") as folder:
        folder = Path(folder)
        given = frames(folder)[: words.frames]
        if words.what == "answers":
            smallest = [task.format(size) for task in TASKS for size in "ns"] + ["yolov9c-seg"]
            good = answers(words.names or DETECTORS + smallest, words.side, given, folder, engines)
        elif words.what == "floor":
            floor(words.names, words.side, given, folder)
        elif words.what == "times":
            good = times(folder)
        elif words.what == "outputs":
            good = outputs(words.names or [task.format(size) for task in TASKS for size in "mlx"] + ["yolov9e-seg"], folder)
        else:
            chosen = ["yolov5n", "yolov8n", "yolov9t", "yolov10n", "yolo11n", "yolo12n", "yolo26n", "rtdetr-l"]
            good = exports(words.names or chosen + [task.format("n") for task in TASKS], words.side, given, folder, engines)
    sys.exit(0 if good else 1)


main()
