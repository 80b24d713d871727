#!/usr/bin/env python3
# Times the training steps of train_step with PyTorch (1.13 or newer).
# SPDX-License-Identifier: Apache-2.0
"""--threads 2 uses two threads, --replicas 2 two replicas with one thread each (gloo), --layout compiled torch.compile."""
import os
import subprocess
import sys

import peer_report

FLAGS = peer_report.parse_flags(__doc__, ("default", "channels_last", "compiled"))
RANK = int(os.environ.get("TRAIN_STEP_RANK", "0"))
WORKERS = []
if FLAGS.replicas > 1 and RANK == 0:  # started before torch is imported, so that the imports overlap
    for rank in range(1, FLAGS.replicas):
        WORKERS.append(subprocess.Popen([sys.executable] + sys.argv, stdout=subprocess.DEVNULL,
                                        env=dict(os.environ, TRAIN_STEP_RANK=str(rank))))

import torch  # noqa: E402  the flags set the number of threads, which torch reads once
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

PORT = 29871


class Cifar10Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 5, padding=2)
        self.conv2 = nn.Conv2d(64, 64, 5, padding=2)
        self.lrn = nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)  # torch divides alpha by 9
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.dense1 = nn.Linear(2304, 384)
        self.dense2 = nn.Linear(384, 192)
        self.dense3 = nn.Linear(192, 10)

    def forward(self, x):
        x = self.lrn(self.pool(F.relu(self.conv1(x))))
        x = self.pool(self.lrn(F.relu(self.conv2(x))))
        return self.dense3(F.relu(self.dense2(F.relu(self.dense1(x.flatten(1))))))


class ResidualBlock(nn.Module):
    def __init__(self, channels, filters, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(filters)
        self.shortcut = nn.Identity()
        if stride != 1 or channels != filters:
            self.shortcut = nn.Sequential(nn.Conv2d(channels, filters, 1, stride, bias=False),
                                          nn.BatchNorm2d(filters))

    def forward(self, x):
        y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


def resnet20():
    layers = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    channels = 16
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            layers.append(ResidualBlock(channels, filters, stride if block == 0 else 1))
            channels = filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class GptBlock(nn.Module):
    def __init__(self, features, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(features), nn.LayerNorm(features)
        self.inputs, self.output = nn.Linear(features, 3 * features), nn.Linear(features, features)
        self.up, self.down = nn.Linear(features, 4 * features), nn.Linear(4 * features, features)

    def attention(self, x):
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.inputs(x).chunk(3, -1))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
            masked = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
            y = scores.masked_fill(masked, float("-inf")).softmax(-1) @ value
        return self.output(y.transpose(1, 2).flatten(2))

    def forward(self, x):
        y = x + self.attention(self.norm1(x))
        return y + self.down(F.gelu(self.up(self.norm2(y)), approximate="tanh"))


class Gpt(nn.Module):
    """GPT-2's network with the default sizes of examples/gpt; input and output share weights."""

    def __init__(self, vocabulary=256, context=128, layers=4, heads=4, features=128):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, features), nn.Embedding(context, features)
        self.blocks = nn.Sequential(*(GptBlock(features, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(features)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions.weight[:tokens.shape[1]]
        return (self.norm(self.blocks(x)) @ self.tokens.weight.T).flatten(0, 1)


def make_model(name):
    """Returns the network and the shape of an example."""
    if name == "gpt":
        return Gpt(), (128,)
    if name == "cifar10_cnn":
        return Cifar10Cnn(), (3, 24, 24)
    if name == "resnet20":
        return resnet20(), (3, 32, 32)
    if name == "small_cnn":
        return nn.Sequential(nn.Conv2d(1, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(),
                             nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1600, 64), nn.ReLU(),
                             nn.Linear(64, 10)), (1, 28, 28)
    if name == "mlp":
        return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                             nn.Linear(512, 10)), (784,)
    return nn.Linear(10, 10), (10,)


def main():
    torch.set_num_threads(FLAGS.threads)
    torch.manual_seed(1)
    model, shape = make_model(FLAGS.model)
    parameters = sum(p.numel() for p in model.parameters())
    rows = FLAGS.batch_size // FLAGS.replicas
    x = torch.randn(rows, *shape)
    y = torch.arange(rows) * 7 % 10
    if FLAGS.model == "gpt":
        tokens = torch.randint(256, (rows, 129))
        x, y = tokens[:, :-1].contiguous(), tokens[:, 1:].flatten()
    if FLAGS.layout == "channels_last" and x.dim() == 4:
        model = model.to(memory_format=torch.channels_last)
        x = x.to(memory_format=torch.channels_last)
    if FLAGS.replicas > 1:
        import torch.distributed as dist
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(PORT), GLOO_SOCKET_IFNAME="lo")
        dist.init_process_group("gloo", rank=RANK, world_size=FLAGS.replicas)
        model = nn.parallel.DistributedDataParallel(model)
        FLAGS.seconds = float("inf")  # every process must take the same number of steps
    if FLAGS.layout == "compiled":
        model = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    measured = peer_report.measure(FLAGS, step)
    if RANK == 0:
        peer_report.print_report(FLAGS, f"torch {torch.__version__.split('+')[0]}", parameters, measured,
                                 measured[-1].item())
    return max([worker.wait() for worker in WORKERS], default=0)


sys.exit(main())
