"""Trains one of the demo's detectors for some minutes and writes it as ONNX."""

import argparse
import copy
import math
import time

import onnx
import torch

from judge import judge
from loss import loss
from net import Net
from scenes import SIZE, batches

CLASSES = ["person", "car", "sign"]


def export(net, kind, path):
    net = copy.deepcopy(net).eval()
    torch.onnx.export(
        net,
        torch.zeros(1, 3, SIZE, SIZE),
        path,
        opset_version=13,
        input_names=["images"],
        output_names=["output0"],
    )
    model = onnx.load(path)
    names = {i: name for i, name in enumerate(CLASSES)}
    facts = {
        "description": f"Plimsoll demo detector ({kind}), trained on synthetic scenes",
        "names": str(names),
        "stride": "32",
        "task": "detect",
        "batch": "1",
        "imgsz": str([SIZE, SIZE]),
    }
    onnx.helper.set_model_props(model, facts)
    model.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
    onnx.checker.check_model(model)
    onnx.save(model, path)


def train(options):
    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    net = Net(len(CLASSES))
    if options.resume:
        net.load_state_dict(torch.load(options.resume))
    mean = copy.deepcopy(net)
    decayed = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=options.rate)
    began, told, sums, step = time.time(), 0.0, [0.0, 0.0], 0
    for images, targets in batches(options.scenes, options.kind, 1000 * options.seed, 16):
        part = (time.time() - began) / (60 * options.minutes)
        if part >= 1:
            break
        warm = min(1.0, (step + 1) / 100)
        rate = options.rate * warm * (0.02 + 0.98 * (1 + math.cos(math.pi * part)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = rate
        net.train()
        total, classify, place = loss(net, net.raw(images), targets)
        optimizer.zero_grad()
        total.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 10.0)
        optimizer.step()
        step += 1
        keep = min(0.998, step / (step + 20))
        with torch.no_grad():
            for slow, fast in zip(mean.state_dict().values(), net.state_dict().values()):
                if slow.is_floating_point():
                    slow.mul_(keep).add_(fast, alpha=1 - keep)
                else:
                    slow.copy_(fast)
        sums = [sums[0] * 0.98 + classify * 0.02, sums[1] * 0.98 + place * 0.02]
        if time.time() - told > 60:
            told = time.time()
            scores = judge(mean, options.scenes, options.kind, "unseen", 9, 60)
            print(f"{step} steps, {told - began:.0f} s, losses {sums[0]:.3f} {sums[1]:.3f},"
                  f" unseen {scores[0]:.3f} {scores[1]:.3f}", flush=True)
            torch.save(mean.state_dict(), options.output + ".pt")
    torch.save(mean.state_dict(), options.output + ".pt")
    export(mean, options.kind, options.output)
    for which in ("training", "unseen"):
        scores = judge(mean, options.scenes, options.kind, which, 77, 400)
        print(f"{which}: precision {scores[0]:.4f}, recall {scores[1]:.4f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["rgb", "thermal"])
    parser.add_argument("output", help="the .onnx file to write")
    parser.add_argument("--scenes", required=True, help="the built example `scenes`")
    parser.add_argument("--minutes", type=float, default=12)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--resume", help="weights (.pt) to begin from")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
