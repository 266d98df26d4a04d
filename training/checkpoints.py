"""Networks of Ultralytics with random weights, saved and computed as Ultralytics does.

Fresh networks give nearly the same output everywhere, whatever an engine does wrong: batch
norms that do nothing, biases that are all alike, features that die away on their long way. So
statistics and biases are made to vary, and the last weights are scaled until the outputs do.
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
    ends = [branch[-1] for branch in (*head.cv2, *head.cv3)]
    for end in ends:
        end.bias.data = torch.zeros(end.bias.shape)
    spread(model, ends)
    for end in ends:
        end.bias.data = torch.randn(end.bias.shape) - 1
    if names:
        model.names = names
    return model


def spread(model, ends):
    """Scales the last convolutions so that what they give varies from place to place."""

    def scale(end, _, output):
        end.weight.data *= 0.4 / output.std(dim=(2, 3)).mean()

    hooks = [end.register_forward_hook(scale) for end in ends]
    with torch.no_grad():
        model.eval()(torch.rand(1, 3, 160, 160))
    for hook in hooks:
        hook.remove()


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
