#!/usr/bin/env python3
"""What a detector's training takes, by Ultralytics' own model, loss and optimizer on tensors without data:

    detectors.py MODEL BATCH fp32|amp sgd|adamw BOXES      (yolo11n 8 amp sgd 16; BOXES for each image)

Wants the package plimsoll, torch and ultralytics; no GPU. Compare with `plimsoll estimate MODEL.pt --train`.
"""
import copy
import sys

import plimsoll.torch
import torch
from ultralytics.nn.tasks import DetectionModel
from ultralytics.utils import DEFAULT_CFG

name, batch, precision, optimizer, boxes = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], int(sys.argv[5])
SIZE, CLASSES, MIB = 640, 80, 1 << 20


def training():
    model = DetectionModel(f"{name}.yaml", ch=3, nc=CLASSES, verbose=False).cuda()
    model.args = DEFAULT_CFG
    model.train()
    average = copy.deepcopy(model).eval()
    if optimizer == "sgd":
        steps = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, nesterov=True)
    else:
        steps = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(3):
        labels = {
            "img": torch.zeros(batch, 3, SIZE, SIZE, device="cuda"),
            "batch_idx": torch.arange(batch).repeat_interleave(boxes).float().cuda(),
            "cls": torch.zeros(batch * boxes, 1, device="cuda"),
            "bboxes": torch.zeros(batch * boxes, 4, device="cuda"),
        }
        with torch.autocast("cuda", enabled=precision == "amp"):
            loss, _ = model(labels)
        loss.sum().backward()
        steps.step()
        steps.zero_grad()
    return average


made = plimsoll.torch.estimate(training)
figures = made.total_bytes, made.peak_allocated_bytes, made.peak_reserved_bytes
print(*sys.argv[1:], "total, allocated, reserved MiB:", *(figure // MIB for figure in figures))
