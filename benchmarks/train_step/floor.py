# Lower bound of a step's time: its products at the speed of oneDNN's best product, and its other
# passes at the speed of copies. Both speeds are measured in the same run.
# SPDX-License-Identifier: Apache-2.0
"""Counts for one float32 example. Products: the forward pass, the gradient of the weights, and that of the input (except
in the first layer), without multiplications by zeros of the padding. Passes: the values that a pool, LRN, normalisation
or addition must read and write, forward and backward. Activations (ReLU, bias) cost nothing, because they belong to the
previous pass. SGD adds three passes over the weights."""
import json
import os
import subprocess


def measure_speeds(program, threads):
    """Runs one process of floor_speeds per thread. Returns their total speeds {"flops": ..., "bytes": ...}."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    running = [subprocess.Popen([program], stdout=subprocess.PIPE, text=True, env=environment) for _ in range(threads)]
    speeds = [json.loads(process.communicate()[0]) for process in running]
    return {key: sum(each[key] for each in speeds) for key in ("flops", "bytes")}


def taps(side, kernel, stride=1):
    """Returns the fraction of a kernel's multiplications that do not involve zeros of "same" padding."""
    places = -(-side // stride)
    before = max((places - 1) * stride + kernel - side, 0) // 2
    inside = sum(0 <= place * stride + tap - before < side for place in range(places) for tap in range(kernel))
    return (inside / (places * kernel)) ** 2


class Count:
    def __init__(self):
        self.flops = 0
        self.elements = 0
        self.weights = 0
        self.first = True

    def product(self, places, inner, outer, bias=True, share=1.0):
        """Adds a convolution with `places` output positions, or a dense layer (places=1). `share`: fraction of products counted."""
        self.flops += 2 * places * inner * outer * share * (2 if self.first else 3)
        self.weights += inner * outer + (outer if bias else 0)
        self.first = False

    def passes(self, forward, backward):
        self.elements += forward + backward


def _cifar10_cnn(c):
    c.product(24 * 24, 75, 64, share=taps(24, 5))
    c.passes(45 * 1024, 45 * 1024)  # pool: 36864 -> 9216 values
    c.passes(2 * 9216, 3 * 9216)    # LRN
    c.product(12 * 12, 1600, 64, share=taps(12, 5))
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
    def conv_norm(side, kernel, inputs, filters, stride=1):
        c.product(side * side, kernel * kernel * inputs, filters, bias=False, share=taps(side * stride, kernel, stride))
        values = side * side * filters
        c.passes(3 * values, 5 * values)  # statistics, then values; two sums, then the gradient
        c.weights += 2 * filters

    conv_norm(32, 3, 3, 16)
    inputs = 16
    for side, filters in ((32, 16), (16, 32), (8, 64)):
        for _ in range(3):
            stride = 1 if inputs == filters else 2
            conv_norm(side, 3, inputs, filters, stride)
            conv_norm(side, 3, filters, filters)
            if stride == 2:
                conv_norm(side, 1, inputs, filters, stride)
            c.passes(side * side * filters, 0)  # the addition reads one more tensor
            inputs = filters
    c.product(1, 64, 10)


def _gpt(c, steps=128, features=128, layers=4, vocabulary=256):
    c.first = False  # the first product's input has a gradient, because an embedding precedes it
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


def floor_seconds(model, batch_size, speeds):
    count = Count()
    MODELS[model](count)
    traffic = 4 * (count.elements * batch_size + 3 * count.weights)
    return count.flops * batch_size / speeds["flops"] + traffic / speeds["bytes"]
