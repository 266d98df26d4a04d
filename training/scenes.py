"""Scenes from the project's own generator, letterboxed as a detector wants them."""

import queue
import struct
import subprocess
import threading

import numpy as np
import torch
import torch.nn.functional as F

SIZE = 256
MOST = 10  # objects a frame, for padding


def read(pipe, count):
    data = pipe.read(count)
    if len(data) != count:
        raise EOFError("the generator ended early")
    return data


def frames(binary, kind, which, seed, count):
    """Yields (pixels, truth); truth has rows of class, left, top, right, bottom."""
    command = [binary, kind, which, str(seed), str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=1 << 20) as child:
        for _ in range(count):
            width, height, deep = struct.unpack("<3I", read(child.stdout, 12))
            data = read(child.stdout, width * height * deep)
            (objects,) = struct.unpack("<I", read(child.stdout, 4))
            truth = np.frombuffer(read(child.stdout, 20 * objects), "<f4").reshape(objects, 5)
            if deep == 3:
                yield np.frombuffer(data, np.uint8).reshape(height, width, 3), truth
            else:
                yield np.frombuffer(data, "<u2").reshape(height, width), truth


def stretch(heat, low, high):
    """16 bits to 8 by percentiles."""
    floor, ceiling = np.percentile(heat, [low, high])
    scaled = (heat.astype(np.float32) - floor) / max(ceiling - floor, 1.0)
    return (np.clip(scaled, 0, 1) * 255).astype(np.uint8)


def letterbox(pixels):
    """Ultralytics' letterbox: plain bilinear, grey 114 around, centred."""
    height, width = pixels.shape[:2]
    ratio = min(SIZE / height, SIZE / width)
    rows, columns = round(height * ratio), round(width * ratio)
    image = torch.from_numpy(np.ascontiguousarray(pixels)).float()
    image = image.permute(2, 0, 1)[None] if image.ndim == 3 else image[None, None]
    image = F.interpolate(image, (rows, columns), mode="bilinear", align_corners=False)
    image = image.round().expand(1, 3, rows, columns)
    top, left = round((SIZE - rows) / 2 - 0.1), round((SIZE - columns) / 2 - 0.1)
    sheet = torch.full((3, SIZE, SIZE), 114.0)
    sheet[:, top : top + rows, left : left + columns] = image[0]
    return sheet / 255, ratio, left, top


def prepare(pixels, truth, rng):
    """An input and its targets: class (-1 where there is none), left, top, right, bottom."""
    if pixels.ndim == 2:
        # Which percentiles are used is the user's choice: learn to live with any.
        low, high = (1.0, 99.0) if rng is None else (rng.uniform(0.2, 2), rng.uniform(98, 99.8))
        pixels = stretch(pixels, low, high)
    image, ratio, left, top = letterbox(pixels)
    target = torch.full((MOST, 5), -1.0)
    for i, row in enumerate(truth[:MOST]):
        target[i, 0] = float(row[0])
        target[i, 1:] = torch.tensor(row[1:] * ratio)
        target[i, [1, 3]] += left
        target[i, [2, 4]] += top
    if rng is not None and rng.random() < 0.5:
        image = image.flip(2)
        real = target[:, 0] >= 0
        flipped = torch.stack([SIZE - target[:, 3], SIZE - target[:, 1]], 1)
        target[real, 1], target[real, 3] = flipped[real, 0], flipped[real, 1]
    return image, target


def batches(binary, kind, seed, size):
    """Training batches without end, made ahead on a thread."""
    made = queue.Queue(8)

    def work():
        rng = np.random.default_rng(seed)
        turn = seed
        while True:
            images, targets = [], []
            for pixels, truth in frames(binary, kind, "training", turn, 4096):
                image, target = prepare(pixels, truth, rng)
                images.append(image)
                targets.append(target)
                if len(images) == size:
                    made.put((torch.stack(images), torch.stack(targets)))
                    images, targets = [], []
            turn += 1

    threading.Thread(target=work, daemon=True).start()
    while True:
        yield made.get()
