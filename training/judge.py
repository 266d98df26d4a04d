"""Precision and recall at IoU 0.5 and confidence 0.25, after class-aware suppression."""

import numpy as np
import torch

from scenes import frames, prepare


def overlap(one, many):
    near, far = np.maximum(one[:2], many[:, :2]), np.minimum(one[2:], many[:, 2:])
    common = np.clip(far - near, 0, None).prod(1)
    area = lambda b: (b[..., 2] - b[..., 0]) * (b[..., 3] - b[..., 1])
    return common / (area(one) + area(many) - common + 1e-9)


def detections(output, confidence=0.25, limit=0.45):
    """Rows of confidence, class, left, top, right, bottom; the surest first."""
    scores, classes = output[4:].max(0), output[4:].argmax(0)
    keep = np.flatnonzero(scores > confidence)
    keep = keep[np.argsort(-scores[keep], kind="stable")]
    middle, half = output[:2, keep].T, output[2:4, keep].T / 2
    rows = np.column_stack([scores[keep], classes[keep], middle - half, middle + half])
    found = []
    while len(rows):
        first, rows = rows[0], rows[1:]
        found.append(first)
        rows = rows[(rows[:, 1] != first[1]) | (overlap(first[2:], rows[:, 2:]) <= limit)]
    return found


def judge(net, binary, kind, which, seed, count):
    right = said = real = 0
    net.eval()
    for pixels, truth in frames(binary, kind, which, seed, count):
        image, target = prepare(pixels, truth, None)
        with torch.no_grad():
            output = net(image[None])[0].numpy()
        left = target[target[:, 0] >= 0].numpy()
        real += len(left)
        for row in detections(output):
            said += 1
            same = np.flatnonzero(left[:, 0] == row[1])
            shares = overlap(row[2:], left[same][:, 1:])
            if len(same) and shares.max() >= 0.5:
                right += 1
                left = np.delete(left, same[shares.argmax()], 0)
    return right / max(said, 1), right / max(real, 1)
