"""Made-up labels and detections, judged by pycocotools and by us. See scripts/check-accuracy."""

import contextlib
import io
import json
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from pycocotools import mask as coco_mask
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

KINDS = {"boxes": "bbox", "masks": "segm", "keypoints": "keypoints"}
BOXES = ["map", "map50", "map75", "map_small", "map_medium", "map_large",
         "mar1", "mar10", "mar", "mar_small", "mar_medium", "mar_large"]
KEYPOINTS = ["map", "map50", "map75", "map_medium", "map_large",
             "mar", "mar50", "mar75", "mar_medium", "mar_large"]


def star(pick, box, corners):
    """A polygon with corners around the middle of a box."""
    left, top, width, height = box
    turns = sorted(pick.random() * 2 * math.pi for _ in range(corners))
    points = []
    for turn in turns:
        far = pick.uniform(0.4, 1.0)
        points += [round(left + width / 2 * (1 + far * math.cos(turn)), 2),
                   round(top + height / 2 * (1 + far * math.sin(turn)), 2)]
    return points


def counts_of(mask):
    """Counts as numbers, column by column."""
    flat = mask.flatten(order="F")
    edges = np.flatnonzero(np.diff(flat)) + 1
    runs = np.diff(np.concatenate([[0], edges, [flat.size]])).tolist()
    return ([0] if flat[0] else []) + runs


def a_box(pick, width, height, grid):
    if grid:  # Overlaps such as 0.5 and 0.75 exactly.
        sides = [pick.choice([8, 16, 20, 32, 40, 64]) for _ in range(2)]
        return [float(pick.randrange(0, 8) * 4), float(pick.randrange(0, 8) * 4), *map(float, sides)]
    side = min(width, height)
    wide, tall = (max(2.0, side * pick.random() ** 2) for _ in range(2))
    return [round(pick.uniform(-2, width - wide), 2), round(pick.uniform(-2, height - tall), 2),
            round(wide, 2), round(tall, 2)]


def keypoints(pick, box, shown):
    points = []
    for _ in range(17):
        seen = pick.choice([0, 1, 2]) if shown else 0
        x, y = (box[axis] + box[axis + 2] * pick.random() for axis in (0, 1))
        points += [round(x, 2), round(y, 2), seen] if seen else [0, 0, 0]
    return points


def annotation(pick, task, number, image, category, grid):
    width, height = image["width"], image["height"]
    box = a_box(pick, width, height, grid)
    crowd = int(pick.random() < 0.08)
    one = {"id": number, "image_id": image["id"], "category_id": category, "bbox": box,
           "area": round(box[2] * box[3] * pick.choice([1.0, 0.6]), 3), "iscrowd": crowd}
    if task == "masks":
        parts = [star(pick, box, pick.randrange(3, 12)) for _ in range(pick.choice([1, 1, 2]))]
        one["segmentation"] = parts
        if crowd or pick.random() < 0.1:
            coded = coco_mask.merge(coco_mask.frPyObjects(parts, height, width))
            counts = counts_of(coco_mask.decode(coded))
            if pick.random() < 0.5:
                counts = coded["counts"].decode()
            one["segmentation"] = {"size": [height, width], "counts": counts}
    if task == "keypoints":
        one["keypoints"] = keypoints(pick, box, pick.random() < 0.85)
        one["num_keypoints"] = sum(v > 0 for v in one["keypoints"][2::3])
    return one


def detection(pick, task, image, category, near, scores):
    width, height = image["width"], image["height"]
    if near is not None and pick.random() < 0.8:
        off = pick.choice([0.0, 0.03, 0.1, 0.3])
        box = [round(value + pick.uniform(-off, off) * near["bbox"][2 + at % 2], 2)
               for at, value in enumerate(near["bbox"])]
        box[2:] = [max(side, 1.0) for side in box[2:]]
    else:
        box = a_box(pick, width, height, False)
    one = {"image_id": image["id"], "category_id": category, "score": scores()}
    if task == "masks":
        parts = [star(pick, box, 8)]
        if near is not None and isinstance(near["segmentation"], list) and pick.random() < 0.7:
            move = pick.choice([0, 0, 1, 3])
            parts = [[value + move for value in part] for part in near["segmentation"]]
        coded = coco_mask.merge(coco_mask.frPyObjects(parts, height, width))
        one["segmentation"] = {"size": [height, width], "counts": coded["counts"].decode()}
    elif task == "keypoints":
        base = near["keypoints"] if near is not None else keypoints(pick, box, True)
        spread = pick.choice([0.5, 2, 8])
        one["keypoints"] = [value if at % 3 == 2 else round(value + pick.gauss(0, spread), 2)
                            for at, value in enumerate(base)]
    else:
        one["bbox"] = box
    return one


def case(task, seed, images=None, truths=None, found=None):
    """Labels and detections. `truths` and `found` are means an image."""
    pick = random.Random(seed)
    grid = task == "boxes" and pick.random() < 0.3
    count = images or pick.randrange(1, 12)
    ids = pick.sample(range(1, 10 * count + 1), count)
    images = [{"id": number, "file_name": f"{number:06}.jpg", "width": pick.randrange(40, 400),
               "height": pick.randrange(40, 400)} for number in ids]
    categories = [{"id": number, "name": f"class {number}"}
                  for number in pick.sample(range(1, 91), 1 if task == "keypoints" else pick.randrange(1, 5))]
    truths = truths if truths is not None else pick.choice([0, 1, 4, 8])
    found = found if found is not None else pick.choice([0, 2, 10, 150])
    coarse = pick.random() < 0.4
    scores = lambda: pick.choice([0.1, 0.5, 0.9]) if coarse else round(pick.random(), 5)
    first = pick.choice([0, 1, 1, 1])  # An id of 0 is special in pycocotools.
    annotations, results = [], []
    for image in images:
        here = []
        for _ in range(pick.randrange(0, 2 * truths + 1)):
            category = pick.choice(categories)["id"]
            here.append(annotation(pick, task, first + len(annotations) + len(here), image, category, grid))
        annotations += here
        for _ in range(pick.randrange(0, 2 * found + 1)):
            near = pick.choice(here) if here and pick.random() < 0.7 else None
            category = near["category_id"] if near and pick.random() < 0.9 else pick.choice(categories)["id"]
            results.append(detection(pick, task, image, category, near, scores))
    pick.shuffle(results)
    return {"images": images, "annotations": annotations, "categories": categories}, results


@contextlib.contextmanager
def silence():
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def theirs(task, labels, results):
    """pycocotools' figures, and how long evaluate and accumulate took."""
    with silence():
        truth = COCO()
        truth.dataset = json.loads(json.dumps(labels))
        truth.createIndex()
        results = json.loads(json.dumps(results))
        if results:
            found = truth.loadRes(results)
        else:  # loadRes wants at least one.
            found = COCO()
            found.dataset = {**truth.dataset, "annotations": []}
            found.createIndex()
        judge = COCOeval(truth, found, KINDS[task])
        began = time.perf_counter()
        judge.evaluate()
        judge.accumulate()
        took = time.perf_counter() - began
        judge.summarize()
    names = KEYPOINTS if task == "keypoints" else BOXES
    known = lambda value: None if value == -1 else float(value)
    figures = {name: known(value) for name, value in zip(names, judge.stats)}
    precision = judge.eval["precision"][:, :, :, 0, -1]
    classes, curves = {}, {}
    for at, category in enumerate(judge.params.catIds):
        part = precision[:, :, at]
        if part.size and part.max() > -1:
            classes[int(category)] = [float(part.mean()), float(part[0].mean())]
            curves[int(category)] = [float(value) for value in part[0]]
    return {"figures": figures, "classes": classes, "curves": curves}, took


def ours(program, task, labels, results, times=1):
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("labels.json", "found.json")]
        for path, content in zip(paths, (labels, results)):
            path.write_text(json.dumps(content))
        answer = subprocess.run([program, *paths, task, str(times)], check=True, capture_output=True)
    return json.loads(answer.stdout)


def difference(expected, accuracy):
    """The largest difference of any figure."""
    worst = 0.0

    def compare(name, one, other):
        nonlocal worst
        if (one is None) != (other is None):
            raise SystemExit(f"{name}: pycocotools has {one}, we have {other}")
        if one is not None:
            worst = max(worst, abs(one - other))

    for name, value in expected["figures"].items():
        compare(name, value, accuracy[name])
    known = {one["class"]: one for one in accuracy["classes"] if one["map"] is not None}
    curves = {one["class"]: one["precision"] for one in accuracy["precision_recall"]}
    assert set(known) == set(expected["classes"]), (set(known), set(expected["classes"]))
    for category, (every, half) in expected["classes"].items():
        compare(f"map of class {category}", every, known[category]["map"])
        compare(f"map50 of class {category}", half, known[category]["map50"])
        for one, other in zip(expected["curves"][category], curves[category], strict=True):
            compare(f"curve of class {category}", one, other)
    return worst


def compare_all(program, cases, seed):
    worst, truths, found = 0.0, 0, 0
    for number in range(cases):
        task = ["boxes", "masks", "keypoints"][number % 3]
        labels, results = case(task, seed + number)
        expected, _ = theirs(task, labels, results)
        accuracy = ours(program, task, labels, results)["accuracy"]
        apart = difference(expected, accuracy)
        if apart > 1e-4:
            raise SystemExit(f"{task}, seed {seed + number}: {apart}\n{expected['figures']}\n{accuracy}")
        worst, truths, found = max(worst, apart), truths + len(labels["annotations"]), found + len(results)
    print(f"{cases} cases with {truths} truths and {found} detections: "
          f"the largest difference of a figure is {worst:.1e}")


def like_coco(task, images, per_image, found, seed=7):
    """As many objects as COCO's validation set has, in 80 classes; people for keypoints."""
    pick, labels, results = random.Random(seed), [], []
    pictures = [{"id": 3 * at + 1, "file_name": f"{at}.jpg", "width": 640, "height": 480} for at in range(images)]
    categories = [{"id": at + 1, "name": f"class {at}"} for at in range(1 if task == "keypoints" else 80)]
    for image in pictures:
        here = [annotation(pick, task, 0, image, pick.choice(categories)["id"], False)
                for _ in range(round(pick.gauss(per_image, 2)) if per_image > 3 else 3)]
        for one in here:
            one["id"] = len(labels) + 1
            labels.append(one)
        for _ in range(found):
            near = pick.choice(here) if here and pick.random() < 0.5 else None
            category = near["category_id"] if near else pick.choice(categories)["id"]
            results.append(detection(pick, task, image, category, near, lambda: round(pick.random() ** 3, 5)))
    return {"images": pictures, "annotations": labels, "categories": categories}, results


def speed(program, turns):
    import os
    print(f"processors: {os.cpu_count()}; numpy {np.__version__}; turns: {turns}")
    plan = [("boxes", 5000, 7.2, 100), ("masks", 1000, 7.2, 100), ("keypoints", 2000, 2, 20)]
    for task, images, per_image, found in plan:
        labels, results = like_coco(task, images, per_image, found)
        slow, quick = [], []
        for _ in range(turns):
            expected, took = theirs(task, labels, results)
            slow.append(took)
            answer = ours(program, task, labels, results, times=3)
            quick.append(answer["evaluate_s"])
        apart = difference(expected, answer["accuracy"])
        ratio = statistics.median(one / other for one, other in zip(slow, quick))
        print(f"{task}: {images} images, {len(labels['annotations'])} truths, {len(results)} detections: "
              f"pycocotools {min(slow):.2f} s, plimsoll {min(quick):.3f} s, "
              f"median ratio {ratio:.0f}, largest difference {apart:.1e}, "
              f"map {answer['accuracy']['map']:.4f}", flush=True)


def fixture(path):
    """Small cases of every kind, with pycocotools' figures."""
    plans = [("boxes", 2, dict(images=5, truths=4, found=10)), ("boxes", 11, dict(images=4, truths=4, found=0)),
             ("boxes", 12, dict(images=3, truths=0, found=6)), ("boxes", 26, dict(images=4, truths=5, found=20)),
             ("masks", 21, dict(images=4, truths=3, found=6)), ("keypoints", 31, dict(images=4, truths=3, found=6))]
    cases = []
    for task, seed, sizes in plans:
        labels, results = case(task, seed, **sizes)
        expected, _ = theirs(task, labels, results)
        cases.append({"task": task, "seed": seed, "labels": labels, "found": results, "expected": expected["figures"]})
    Path(path).write_text(json.dumps(cases, separators=(",", ":")) + "\n")
    for one in cases:
        print(one["task"], len(one["labels"]["annotations"]), len(one["found"]), one["expected"])


def without_boxes(task, results):
    """pycocotools takes the area of a box that is there for that of the mask or the keypoints."""
    key = {"boxes": "bbox", "masks": "segmentation", "keypoints": "keypoints"}[task]
    return [{name: one[name] for name in ("image_id", "category_id", "score", key)} for one in results]


def judged_run(plimsoll, model, frames, labels, *more):
    """A whole run of bench, and its own detections judged by pycocotools."""
    labels = Path(labels)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "found.json")
        subprocess.run([plimsoll, "bench", model, frames, "--labels", labels, "--predictions", results,
                        "--output-dir", folder, "--run-name", "run", "--quiet", *more], check=True, stdout=subprocess.DEVNULL)
        record = json.loads(Path(folder, "run", "report.json").read_text())
        results = json.loads(results.read_text())
    truth, names = json.loads(labels.read_text()), {path.name for path in Path(frames).iterdir()}
    truth["images"] = [image for image in truth["images"] if Path(image["file_name"]).name in names]
    judged = {image["id"] for image in truth["images"]}
    truth["annotations"] = [one for one in truth["annotations"] if one["image_id"] in judged]
    for accuracy in (record["models"][0][key] for key in ("accuracy", "box_accuracy")):
        if accuracy is None:
            continue
        task = accuracy["task"]
        expected, _ = theirs(task, truth, without_boxes(task, results))
        apart = difference(expected, accuracy)
        print(f"{Path(model).name}, {task}: {accuracy['images']} images, {accuracy['truths']} truths, "
              f"{len(results)} detections, map {accuracy['map']}: largest difference {apart:.1e}")
        if apart > 1e-4:
            raise SystemExit(1)


def main():
    program, words = sys.argv[1], sys.argv[2:]
    if words[:1] == ["--speed"]:
        speed(program, int(words[1]) if len(words) > 1 else 3)
    elif words[:1] == ["--run"]:
        judged_run(*words[1:])
    elif words[:1] == ["--fixture"]:
        fixture(words[1])
    else:
        cases, seed = (*map(int, words), 300, 1)[:2] if len(words) == 2 else ((int(words[0]) if words else 300), 1)
        compare_all(program, cases, seed)


main()
