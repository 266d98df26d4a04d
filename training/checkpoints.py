"""Networks of Ultralytics with random weights, saved and computed as Ultralytics does.

Fresh networks give nearly the same output everywhere, whatever an engine does wrong: batch
norms that do nothing, biases that are all alike, features that die away on their long way. So
the batch norms take their statistics from pictures (those that are compared: a network that
learnt nothing goes astray on others), and the last weights are scaled until the
outputs vary: classes that are told apart, boxes, masks, keypoints and angles of many kinds.
"""

import math

import numpy as np
import torch
from ultralytics.data.augment import LetterBox
from ultralytics.nn import tasks

MODELS = {
    "detect": tasks.DetectionModel,
    "segment": tasks.SegmentationModel,
    "pose": tasks.PoseModel,
    "obb": tasks.OBBModel,
    "classify": tasks.ClassificationModel,
}


def pictures(count, rows, columns, seed=0):
    """Pictures with things in them: squares, discs and stripes on a slope, and some noise."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[:rows, :columns].astype(np.float32)
    made = []
    for _ in range(count):
        angle = draw.uniform(0, math.pi)
        slope = (x * math.cos(angle) / columns + y * math.sin(angle) / rows)[..., None]
        image = 90 + 80 * slope * draw.uniform(-1, 1, 3) + draw.normal(0, 8, (rows, columns, 3))
        for _ in range(int(draw.integers(12, 30))):
            cx, cy, size = draw.uniform(0, columns), draw.uniform(0, rows), draw.uniform(0.02, 0.25) * rows
            kind = draw.integers(0, 3)
            if kind == 0:
                inside = np.maximum(abs(x - cx), abs(y - cy)) < size
            elif kind == 1:
                inside = (x - cx) ** 2 + (y - cy) ** 2 < size**2
            else:
                turn = draw.uniform(0, math.pi)
                inside = (abs((x - cx) * math.cos(turn) + (y - cy) * math.sin(turn)) < size) & (
                    abs((y - cy) * math.cos(turn) - (x - cx) * math.sin(turn)) < size / 4
                )
            image[inside] = image[inside] * 0.2 + draw.uniform(0, 255, 3) * 0.8
        made.append(np.clip(image, 0, 255).astype(np.uint8))
    return made


# Rows and columns of the pictures that networks are made and compared with.
SIZES = ((480, 640), (375, 500), (640, 480))


def shots():
    """A picture of each size."""
    return [pictures(1, *size, seed=40 + number)[0] for number, size in enumerate(SIZES)]


def boxed(side, fill=False):
    """The same in squares as a network sees them: with Ultralytics' border, or stretched."""
    fit = LetterBox((side, side), auto=False, scale_fill=fill)
    return tensor([fit(image=image) for image in shots()])


def tensor(images):
    """As Ultralytics gives them to a network."""
    stack = np.stack([image[..., ::-1].transpose(2, 0, 1) for image in images])
    return torch.from_numpy(np.ascontiguousarray(stack)).float() / 255


def build(shape, names=None, side=320, sure=0.95, images=None, bias=0.0):
    """A network from Ultralytics' own definition: a name such as yolo11n-seg.yaml, or a dict.

    `sure` is the share of places whose surest class stays below a confidence of 0.25; `bias` the mean
    of the batch norms' biases. Deep networks with random weights magnify roundings; with a bias of 1
    their activations are nearly linear, and they magnify less.
    """
    definition = shape if isinstance(shape, dict) else tasks.yaml_model_load(shape)
    task = tasks.guess_model_task(definition)
    rtdetr = definition["head"][-1][2] == "RTDETRDecoder"
    kind = tasks.RTDETRDetectionModel if rtdetr else MODELS[task]
    model = kind(shape, ch=3, verbose=False)
    model.task = task or "detect"
    images = boxed(side, rtdetr) if images is None else torch.cat([images, images.flip(3), images.flip(2)])
    norms = [module for module in model.modules() if isinstance(module, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # the mean of all that is seen
        norm.weight.data = 0.8 + 0.4 * torch.rand(norm.num_features)
        norm.bias.data = bias + 0.2 * torch.randn(norm.num_features)
    for module in model.modules():
        if type(module).__name__ == "A2C2f" and module.gamma is not None:
            module.gamma.data = 0.3 + 0.3 * torch.rand(module.gamma.shape)
    if rtdetr:
        vary_decoder(model.model[-1])
    statistics(model, images)
    for norm in norms:
        norm.momentum = 0.03
    spread(model, images, sure)
    if names:
        model.names = names
    return model.eval()


def statistics(model, images):
    """The batch norms' statistics, from pictures."""
    if isinstance(model, tasks.RTDETRDetectionModel):
        # Its head takes labels in training: only the batch norms are set so.
        model.eval()
        for module in model.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.train()
    else:
        model.train()
    with torch.no_grad():
        model.predict(images) if not isinstance(model, tasks.RTDETRDetectionModel) else model(images)


def vary_decoder(head):
    """Weights of RT-DETR's decoder that begin as zeros."""
    for module in head.modules():
        if isinstance(module, torch.nn.Linear) and float(module.weight.data.abs().max()) == 0:
            torch.nn.init.normal_(module.weight, std=0.02)


def spread(model, images, sure):
    """Scales what ends the network so that what it gives varies from place to place."""
    head = model.model[-1]
    model.eval()
    if isinstance(head, tasks.Classify):
        return scaled(model, images, [(head.linear, 2.0, 0.0)])
    if isinstance(head, tasks.RTDETRDecoder):
        scaled(model, images, [(head.enc_score_head, 1.5, 0.0)])
        ends = [(mlp.layers[-1], 0.2, 0.0) for mlp in (head.enc_bbox_head, *head.dec_bbox_head)]
        scaled(model, images, ends)
        return settle(model, images, list(head.dec_score_head)[-1:], sure=0.5)
    ends, scores = [], []
    for prefix in ("", "one2one_"):
        branch = lambda name: getattr(head, prefix + name, None) or ()  # noqa: E731
        ends += [(end[-1], 1.0, 1.5 if head.reg_max == 1 else 0.0) for end in branch("cv2")]
        if hasattr(head, "cv4_kpts"):
            ends += [(end, 1.0, 0.0) for end in branch("cv4_kpts")]
        else:
            ends += [(end[-1], 1.0, 0.0) for end in branch("cv4")]
        scores.append([end[-1] for end in branch("cv3")])
    for one2one in (False, True):
        model.end2end = one2one
        scaled(model, images, ends)
        if scores[one2one]:
            settle(model, images, scores[one2one], sure)
    model.end2end = False


def outputs(model, images, ends):
    """What these layers give, place by place: one row for each."""
    seen = {}
    flat = lambda value: value.flatten(2).transpose(1, 2).flatten(0, 1) if value.ndim == 4 else value.flatten(0, -2)  # noqa: E731
    hooks = [end.register_forward_hook(lambda end, _, value: seen.update({end: flat(value)})) for end in ends]
    with torch.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return seen


def scaled(model, images, ends):
    """Brings each layer's output to a spread and a mean."""
    seen = outputs(model, images, [end for end, _, _ in ends])
    for end, deviation, mean in ends:
        if end in seen:
            factor = deviation / seen[end].std().clamp(min=1e-6)
            end.weight.data *= factor
            end.bias.data = mean - factor * (seen[end].mean(0) - end.bias.data) + 0.3 * torch.randn(end.bias.shape)


def settle(model, images, ends, sure):
    """The same of the scores: few places are above a confidence of 0.25, and none near 1, where
    confidences are all alike and decide nothing."""
    scaled(model, images, [(end, 2.0, 0.0) for end in ends])

    def best():
        return torch.cat([value.max(1).values for value in outputs(model, images, ends).values()])

    values = best()
    factor = 3.0 / float((values.max() - values.quantile(sure)).clamp(min=1e-3))
    for end in ends:
        end.weight.data *= factor
        end.bias.data *= factor
    shift = math.log(0.25 / 0.75) - float(best().quantile(sure))
    for end in ends:
        end.bias.data += shift


def save(model, path, dtype=torch.float16):
    """As Ultralytics saves after training: the weights by half, no optimizer."""
    checkpoint = {
        "date": "2026-11-15T00:00:00",
        "version": "8.4.0",
        "license": "AGPL-3.0 License (https://ultralytics.com/license)",
        "docs": "https://docs.ultralytics.com",
        "epoch": -1,
        "ema": None,
        "model": model.to(dtype),
        "optimizer": None,
        "train_args": {"task": getattr(model, "task", "detect"), "data": None},
    }
    torch.save(checkpoint, path)


def compute(path, image):
    """What Ultralytics computes from a checkpoint, its batch norms folded as for inference."""
    model, _ = tasks.load_checkpoint(path, device="cpu", fuse=True)
    with torch.inference_mode():
        output = model(torch.from_numpy(image))
    return (output[0] if isinstance(output, (tuple, list)) else output).numpy()
