#!/usr/bin/env python3
# Writes weights with the `safetensors` package, named and laid out as in PyTorch and in Keras, and
# the outputs that NumPy computes with them.
# SPDX-License-Identifier: Apache-2.0
"""Usage: write.py    (pip install numpy safetensors) writes pytorch.safetensors and keras.safetensors to the folder of this script"""
import pathlib

import numpy
from safetensors.numpy import save_file

HERE = pathlib.Path(__file__).resolve().parent
numbers = numpy.random.default_rng(7)


def random(*shape):
    return numbers.uniform(-0.5, 0.5, shape).astype(numpy.float32)


def convolved(x, weight, groups, padding):
    """Same as torch.nn.functional.conv2d; x is [batch, in, h, w], weight is [out, in / groups, kh, kw]."""
    x = numpy.pad(x.astype(numpy.float64), [(0, 0), (0, 0), (padding, padding), (padding, padding)])
    out, own, kh, kw = weight.shape
    y = numpy.zeros((x.shape[0], out, x.shape[2] - kh + 1, x.shape[3] - kw + 1))
    for o in range(out):
        first = o // (out // groups) * own
        for i in range(y.shape[2]):
            for j in range(y.shape[3]):
                window = x[:, first : first + own, i : i + kh, j : j + kw]
                y[:, o, i, j] = (window * weight[o]).sum(axis=(1, 2, 3))
    return y


def pytorch():
    """Writes pytorch.safetensors for Conv2d(2, 4, 3, padding=1), ReLU, Conv2d(4, 8, 3, groups=4), global mean, Linear(8, 3)."""
    x = random(5, 2, 6, 6)
    weights = {"features.0.weight": random(4, 2, 3, 3), "features.0.bias": random(4),
               "features.2.weight": random(8, 1, 3, 3), "features.2.bias": random(8),
               "classifier.weight": random(3, 8), "classifier.bias": random(3),
               "bn.num_batches_tracked": numpy.array(12, numpy.int64)}
    y = convolved(x, weights["features.0.weight"], 1, 1) + weights["features.0.bias"][:, None, None]
    y = convolved(numpy.maximum(y, 0), weights["features.2.weight"], 4, 0) + weights["features.2.bias"][:, None, None]
    y = y.mean(axis=(2, 3)) @ weights["classifier.weight"].T + weights["classifier.bias"]
    extra = {"test.x": numpy.ascontiguousarray(x.transpose(0, 2, 3, 1)), "test.y": y.astype(numpy.float32)}
    save_file({**weights, **extra}, HERE / "pytorch.safetensors", {"format": "pt"})


def keras():
    """Writes keras.safetensors for Dense(6, "tanh"), Dense(2)."""
    x = random(4, 3)
    weights = {"layers/dense/vars/0": random(3, 6), "layers/dense/vars/1": random(6),
               "layers/dense_1/vars/0": random(6, 2), "layers/dense_1/vars/1": random(2)}
    w = list(weights.values())
    y = numpy.tanh(x.astype(numpy.float64) @ w[0] + w[1]) @ w[2] + w[3]
    save_file({**weights, "test/x": x, "test/y": y.astype(numpy.float32)}, HERE / "keras.safetensors")


pytorch()
keras()
