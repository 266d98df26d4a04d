"""A small detector with the outputs of YOLO11: [1, 4 + classes, cells].

Five halvings, two heads (a cell for every 8 and every 16 pixels), no anchors: each cell says
how far the four edges are, and how sure it is of each class.
"""

import torch
from torch import nn

from scenes import SIZE


def conv(inside, outside, kernel=3, stride=1):
    return nn.Sequential(
        nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(outside, eps=1e-3, momentum=0.03),
        nn.ReLU(),
    )


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = conv(width, width), conv(width, width)

    def forward(self, x):
        return x + self.two(self.one(x))


class Net(nn.Module):
    strides = (8, 16)

    def __init__(self, classes):
        super().__init__()
        self.classes = classes
        self.stem = nn.Sequential(conv(3, 12, stride=2), conv(12, 24, stride=2))
        self.eight = nn.Sequential(conv(24, 40, stride=2), Residual(40))
        self.sixteen = nn.Sequential(conv(40, 56, stride=2), Residual(56))
        self.last = nn.Sequential(conv(56, 56, stride=2), Residual(56))
        self.up = nn.Upsample(scale_factor=2, mode="nearest")
        self.join16 = nn.Sequential(conv(112, 56, 1), conv(56, 56))
        self.join8 = nn.Sequential(conv(96, 40, 1), conv(40, 40))
        self.heads = nn.ModuleList(
            nn.Sequential(conv(width, 40), nn.Conv2d(40, 4 + classes, 1)) for width in (40, 56)
        )
        for head in self.heads:
            nn.init.zeros_(head[-1].weight[:4])
            nn.init.constant_(head[-1].bias[4:], -5.0)
            nn.init.constant_(head[-1].bias[:4], 0.7)
        spots = [
            torch.stack(torch.meshgrid(*[(torch.arange(SIZE // s) + 0.5) * s] * 2, indexing="xy"))
            .flatten(1)
            for s in self.strides
        ]
        self.register_buffer("spots", torch.cat(spots, 1)[None])
        steps = [torch.full((1, 1, (SIZE // s) ** 2), float(s)) for s in self.strides]
        self.register_buffer("steps", torch.cat(steps, 2))

    def raw(self, x):
        eight = self.eight(self.stem(x))
        sixteen = self.sixteen(eight)
        sixteen = self.join16(torch.cat([self.up(self.last(sixteen)), sixteen], 1))
        eight = self.join8(torch.cat([self.up(sixteen), eight], 1))
        made = [head(level).flatten(2) for head, level in zip(self.heads, (eight, sixteen))]
        return torch.cat(made, 2)

    def split(self, raw):
        """Boxes as left, top, right, bottom in input pixels, and class logits."""
        edges = raw[:, :4].clamp(-4, 4).exp() * self.steps
        return torch.cat([self.spots - edges[:, :2], self.spots + edges[:, 2:]], 1), raw[:, 4:]

    def forward(self, x):
        boxes, logits = self.split(self.raw(x))
        near, far = boxes[:, :2], boxes[:, 2:]
        return torch.cat([(near + far) * 0.5, far - near, logits.sigmoid()], 1)
