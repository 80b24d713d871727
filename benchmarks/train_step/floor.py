# The least time that a step can take: its arithmetic at the speed of good matrix products, its other passes at
# the speed of memory.
# SPDX-License-Identifier: Apache-2.0
"""Counted per example, float32. Products: forward, gradient of the weights, and of the input (not in the first
layer). Passes: what a pool, LRN, normalisation or addition must read and write, forward and backward; activations
(ReLU, bias) are free, being part of the pass before. Plus three streams over the weights for SGD."""

# Operations per second of one thread in well-shaped products, and bytes per second of 1 and 2 threads from DRAM, as
# measured on the machine of the first results (AMD EPYC, Zen 3, 2 virtual CPUs).
FLOPS_PER_THREAD = 90e9
BYTES = {1: 22e9, 2: 37e9}


class Count:
    def __init__(self):
        self.flops = 0
        self.elements = 0
        self.weights = 0
        self.first = True

    def product(self, places, inner, outer, bias=True):
        """A convolution with `places` outputs, or a dense layer with one."""
        self.flops += 2 * places * inner * outer * (2 if self.first else 3)
        self.weights += inner * outer + (outer if bias else 0)
        self.first = False

    def passes(self, forward, backward):
        self.elements += forward + backward


def _cifar10_cnn(c):
    c.product(24 * 24, 75, 64)
    c.passes(45 * 1024, 45 * 1024)  # pool: 36864 -> 9216 values
    c.passes(2 * 9216, 3 * 9216)    # LRN
    c.product(12 * 12, 1600, 64)
    c.passes(2 * 9216, 3 * 9216)
    c.passes(11520, 11520)
    for inner, outer in ((2304, 384), (384, 192), (192, 10)):
        c.product(1, inner, outer)


def _small_cnn(c):
    c.product(26 * 26, 9, 32)
    c.passes(32 * (676 + 169), 32 * (676 + 169))
    c.product(11 * 11, 288, 64)
    c.passes(64 * (121 + 25), 64 * (121 + 25))
    c.product(1, 1600, 64)
    c.product(1, 64, 10)


def _mlp(c):
    for inner, outer in ((784, 512), (512, 512), (512, 10)):
        c.product(1, inner, outer)


def _resnet20(c):
    def conv_norm(side, kernel, inputs, filters):
        c.product(side * side, kernel * kernel * inputs, filters, bias=False)
        values = side * side * filters
        c.passes(3 * values, 5 * values)  # statistics, then values; two sums, then the gradient
        c.weights += 2 * filters

    conv_norm(32, 3, 3, 16)
    inputs = 16
    for side, filters in ((32, 16), (16, 32), (8, 64)):
        for _ in range(3):
            conv_norm(side, 3, inputs, filters)
            conv_norm(side, 3, filters, filters)
            if inputs != filters:
                conv_norm(side, 1, inputs, filters)
            c.passes(side * side * filters, 0)  # the addition reads one tensor more
            inputs = filters
    c.product(1, 64, 10)


def _gpt(c, steps=128, features=128, layers=4, vocabulary=256):
    c.first = False  # the embedding before it has a gradient
    for _ in range(layers):
        for inner, outer in ((features, 3 * features), (features, features), (features, 4 * features), (4 * features, features)):
            c.product(steps, inner, outer)
        c.flops += 3 * 2 * (2 * steps * steps * features) // 2  # scores and values; half of them are masked
        c.passes(2 * 3 * steps * features, 2 * 5 * steps * features)  # normalisations
        c.passes(steps * 4 * features * 2, steps * 4 * features * 3)  # GELU
        c.weights += 4 * features
    c.passes(3 * steps * features, 5 * steps * features)
    c.product(steps, features, vocabulary, bias=False)
    c.passes(2 * steps * vocabulary, 2 * steps * vocabulary)  # softmax
    c.weights += (steps + 2) * features


def _tiny(c):
    c.product(1, 10, 10)


MODELS = {"cifar10_cnn": _cifar10_cnn, "small_cnn": _small_cnn, "mlp": _mlp, "resnet20": _resnet20, "gpt": _gpt,
          "tiny": _tiny}


def floor_seconds(model, batch_size, threads):
    count = Count()
    MODELS[model](count)
    traffic = 4 * (count.elements * batch_size + 3 * count.weights)
    return count.flops * batch_size / (FLOPS_PER_THREAD * threads) + traffic / BYTES[min(threads, 2)]
