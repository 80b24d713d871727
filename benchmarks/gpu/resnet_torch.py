#!/usr/bin/env python3
# PyTorch program that corresponds to train_resnet: same networks, batches, optimizer, flags and
# lines of JSON.
# SPDX-License-Identifier: Apache-2.0
"""Needs PyTorch 2 or newer (1.13 without --mode compile). With --device cpu it runs on any machine, at small sizes."""
import argparse
import json
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


def convolution(channels, filters, size, stride=1):
    return nn.Conv2d(channels, filters, size, stride, size // 2, bias=False)


class ResidualBlock(nn.Module):
    """Block of convolutions with batch normalisation, and a shortcut: a 1x1 convolution if the shape changes."""

    def __init__(self, channels, sizes, stride, momentum, epsilon):
        super().__init__()
        layers, inner = [], channels
        strided = 1 if len(sizes) == 3 else 0  # as in torchvision, the stride belongs to the 3x3 convolution
        for i, (filters, size) in enumerate(sizes):
            layers += [convolution(inner, filters, size, stride if i == strided else 1),
                       nn.BatchNorm2d(filters, epsilon, momentum), nn.ReLU(inplace=True)]
            inner = filters
        self.body = nn.Sequential(*layers[:-1])
        self.shortcut = nn.Identity()
        if stride != 1 or channels != inner:
            self.shortcut = nn.Sequential(convolution(channels, inner, 1, stride),
                                          nn.BatchNorm2d(inner, epsilon, momentum))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x), inplace=True)


def small_resnet(blocks, classes=10):
    momentum, epsilon = 0.01, 1e-3  # as in tutti's layer, whose momentum is 1 - torch's
    layers, channels = [convolution(3, 16, 3), nn.BatchNorm2d(16, epsilon, momentum), nn.ReLU(inplace=True)], 16
    for filters in (16, 32, 64):
        for block in range(blocks):
            stride = 2 if block == 0 and filters > 16 else 1
            layers.append(ResidualBlock(channels, [(filters, 3), (filters, 3)], stride, momentum, epsilon))
            channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def resnet50(classes=1000):
    momentum, epsilon = 0.1, 1e-5
    layers = [convolution(3, 64, 7, 2), nn.BatchNorm2d(64, epsilon, momentum), nn.ReLU(inplace=True),
              nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for filters, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            stride = 2 if block == 0 and filters > 64 else 1
            sizes = [(filters, 1), (filters, 3), (4 * filters, 1)]
            layers.append(ResidualBlock(channels, sizes, stride, momentum, epsilon))
            channels = 4 * filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))


NETWORKS = {"resnet8": lambda: small_resnet(1), "resnet20": lambda: small_resnet(3), "resnet50": resnet50}


def parse_flags():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", choices=NETWORKS, default="resnet20")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--policy", choices=("float32", "tf32", "mixed_bfloat16", "mixed_float16"), default="float32")
    parser.add_argument("--mode", choices=("eager", "compile"), default="eager")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--image-size", type=int, default=0, help="height and width of images; 0: the network's default")
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=10, help="number of steps per round")
    parser.add_argument("--warmup", type=int, default=3, help="number of steps before the first round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--on-demand", action="store_true", help="read numbers of steps from standard input; run a round for each")
    flags = parser.parse_args()
    flags.image_size = flags.image_size or (224 if flags.network == "resnet50" else 32)
    return flags


class Training:
    def __init__(self, flags):
        self.device = torch.device(flags.device)
        on_gpu = self.device.type == "cuda"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = flags.policy == "tf32"
        torch.backends.cudnn.benchmark = True
        torch.manual_seed(1)
        self.model = NETWORKS[flags.network]().to(self.device).to(memory_format=torch.channels_last)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        x = torch.randn(flags.batch_size, 3, flags.image_size, flags.image_size, device=self.device)
        self.x = x.contiguous(memory_format=torch.channels_last)
        self.y = torch.arange(flags.batch_size, device=self.device) * 7 % 10
        self.half = {"mixed_bfloat16": torch.bfloat16, "mixed_float16": torch.float16}.get(flags.policy)
        # The fused optimizer updates all weights in one launch; it is PyTorch's fastest SGD.
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=flags.learning_rate, momentum=0.9,
                                         **({"fused": True} if on_gpu else {}))
        scaler = flags.policy == "mixed_float16" and on_gpu
        self.scaler = torch.amp.GradScaler("cuda") if scaler else None
        self.forward = torch.compile(self.loss_of) if flags.mode == "compile" else self.loss_of

    def loss_of(self, x, y):
        return F.cross_entropy(self.model(x), y)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(self.device.type, self.half or torch.bfloat16, enabled=self.half is not None):
            loss = self.forward(self.x, self.y)
        if self.scaler:
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        else:
            loss.backward()
            self.optimizer.step()
        return loss.detach()

    def time_steps(self, steps):
        """Runs steps. Returns the seconds until the last loss is known, and that loss."""
        begin = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        value = loss.item()
        return time.perf_counter() - begin, value


def emit(**event):
    print(json.dumps(event), flush=True)


def run_round(training, flags, steps):
    seconds, loss = training.time_steps(steps)
    emit(event="round", steps=steps, seconds=seconds, loss=loss,
         images_per_second=steps * flags.batch_size / max(seconds, 1e-9))


def main():
    flags = parse_flags()
    training = Training(flags)
    first = 0.0
    if flags.warmup > 0:
        first, _ = training.time_steps(1)
        if flags.warmup > 1:
            training.time_steps(flags.warmup - 1)
    emit(event="ready", program=f"torch {torch.__version__}", mode=flags.mode, network=flags.network,
         policy=flags.policy, devices=flags.device, batch_size=flags.batch_size, image_size=flags.image_size,
         parameters=training.parameters, first_step_seconds=first)
    if flags.on_demand:
        for line in sys.stdin:
            run_round(training, flags, int(line))
    else:
        for _ in range(flags.rounds):
            run_round(training, flags, flags.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
