"""Task-aligned assignment and the two losses, after YOLOv8 and TOOD."""

import math

import torch
import torch.nn.functional as F

CELLS = 8  # for each object


def iou(a, b):
    """Of boxes in the last axis; shapes broadcast. Returns IoU and CIoU."""
    near, far = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    common = (far - near).clamp(min=0).prod(-1)
    size_a, size_b = a[..., 2:] - a[..., :2], b[..., 2:] - b[..., :2]
    plain = common / (size_a.prod(-1) + size_b.prod(-1) - common + 1e-6)
    hull = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    between = ((a[..., :2] + a[..., 2:] - b[..., :2] - b[..., 2:]) ** 2).sum(-1) / 4
    slant = [torch.atan(s[..., 0] / s[..., 1].clamp(min=1e-3)) for s in (size_a, size_b)]
    aspect = 4 / math.pi**2 * (slant[0] - slant[1]) ** 2
    with torch.no_grad():
        weight = aspect / (aspect - plain + 1 + 1e-6)
    return plain, plain - between / ((hull**2).sum(-1) + 1e-6) - aspect * weight


def assign(boxes, scores, target, spots):
    """For each cell the object it answers for (or -1) and how well aligned it is."""
    wanted = target[..., 1:]
    real = target[..., 0] >= 0
    inside = torch.stack(
        [
            spots[0] - wanted[..., 0:1],
            spots[1] - wanted[..., 1:2],
            wanted[..., 2:3] - spots[0],
            wanted[..., 3:4] - spots[1],
        ]
    ).amin(0) > 0.5
    inside &= real[..., None]
    plain, _ = iou(wanted[:, :, None], boxes[:, None])
    plain = plain.clamp(min=0) * inside
    classes = target[..., 0].clamp(min=0).long()
    sure = scores.gather(2, classes[:, None].expand(-1, scores.shape[1], -1)).transpose(1, 2)
    metric = sure.sqrt() * plain**6
    best = metric.topk(CELLS, dim=2)
    chosen = torch.zeros_like(metric).scatter_(2, best.indices, 1.0) * inside * (metric > 1e-9)
    # A cell claimed by several objects goes to the one that it overlaps most.
    owner = (plain * chosen + chosen * 1e-6).max(1)
    keep = F.one_hot(owner.indices, metric.shape[1]).transpose(1, 2) * chosen
    metric = metric * keep
    most, top = metric.amax(2, keepdim=True), (plain * keep).amax(2, keepdim=True)
    aligned = (metric / (most + 1e-9) * top).amax(1)
    return torch.where(keep.sum(1) > 0, owner.indices, -1), aligned


def loss(net, raw, target):
    boxes, logits = net.split(raw)
    boxes, logits = boxes.transpose(1, 2), logits.transpose(1, 2)
    with torch.no_grad():
        owner, aligned = assign(boxes, logits.sigmoid(), target, net.spots[0])
    hit = owner >= 0
    picked = target.gather(1, owner.clamp(min=0)[..., None].expand(-1, -1, 5))
    wanted = torch.zeros_like(logits)
    wanted[hit] = F.one_hot(picked[hit][:, 0].long(), net.classes).float() * aligned[hit][:, None]
    total = aligned.sum().clamp(min=1)
    classify = F.binary_cross_entropy_with_logits(logits, wanted, reduction="sum") / total
    _, complete = iou(boxes[hit], picked[hit][:, 1:])
    place = ((1 - complete) * aligned[hit]).sum() / total
    return classify + 4 * place, classify.item(), place.item()
