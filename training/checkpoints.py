"""Networks of Ultralytics with random weights, saved and computed as Ultralytics does.

Fresh networks give nearly the same output everywhere, whatever an engine does wrong: batch
norms that do nothing, biases that are all alike. So those are made to vary first.
"""

import torch
from ultralytics.nn.tasks import DetectionModel, load_checkpoint


def build(shape, names=None):
    """A detector from Ultralytics' own definition (a name such as yolo11n.yaml, or a dict)."""
    model = DetectionModel(shape, ch=3, verbose=False)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            count = module.num_features
            module.running_mean = 0.2 * torch.randn(count)
            module.running_var = 0.5 + torch.rand(count)
            module.weight.data = 0.8 + 0.4 * torch.rand(count)
            module.bias.data = 0.2 * torch.randn(count)
    head = model.model[-1]
    for branch in (*head.cv2, *head.cv3):
        branch[-1].bias.data = torch.randn(branch[-1].bias.shape)
    if names:
        model.names = names
    return model


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
        "train_args": {"task": "detect", "data": None},
    }
    torch.save(checkpoint, path)


def compute(path, image):
    """What Ultralytics computes from a checkpoint, its batch norms folded as for inference."""
    model, _ = load_checkpoint(path, device="cpu", fuse=True)
    with torch.inference_mode():
        output = model(torch.from_numpy(image))
    return (output[0] if isinstance(output, (tuple, list)) else output).numpy()
