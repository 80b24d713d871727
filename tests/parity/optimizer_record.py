#!/usr/bin/env python3
# Writes tests/optimizer/keras_record.h: what Keras's optimizers and schedules give in float64.
# SPDX-License-Identifier: Apache-2.0
"""Needs tensorflow-cpu. Usage: optimizer_record.py > tests/optimizer/keras_record.h

Hyperparameters are sums of a few powers of 2: Keras rounds some constants to float32 even when weights
are float64, and these survive it. (0.96 in Nadam does not: hence its wider tolerance.)
"""
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

optimizers = keras.optimizers
schedules = optimizers.schedules
STEPS = 24
RATE = 0.0078125
BETAS = {"beta_1": 0.875, "beta_2": 0.9921875}


def rate(value):
    """A schedule computes in the type of its first rate."""
    return np.float64(value)


CASES = {
    "sgd": lambda: optimizers.SGD(RATE),
    "sgd_nesterov": lambda: optimizers.SGD(0.046875, momentum=0.875, nesterov=True),
    "adam": lambda: optimizers.Adam(RATE, **BETAS),
    "adam_amsgrad": lambda: optimizers.Adam(RATE, amsgrad=True, **BETAS),
    "adamw": lambda: optimizers.AdamW(RATE, weight_decay=0.3125, **BETAS),
    "rmsprop": lambda: optimizers.RMSprop(RATE, rho=0.875),
    "rmsprop_centered": lambda: optimizers.RMSprop(
        RATE, rho=0.875, momentum=0.8125, epsilon=0.0009765625, centered=True
    ),
    "adagrad": lambda: optimizers.Adagrad(0.125, initial_accumulator_value=0.125),
    "adadelta": lambda: optimizers.Adadelta(1.0, rho=0.9375),
    "nadam": lambda: optimizers.Nadam(RATE, **BETAS),
    "ftrl": lambda: optimizers.Ftrl(0.125, initial_accumulator_value=0.125),
    "ftrl_regularized": lambda: optimizers.Ftrl(
        0.125,
        learning_rate_power=-0.6875,
        initial_accumulator_value=0.1875,
        l1_regularization_strength=0.125,
        l2_regularization_strength=0.1875,
        l2_shrinkage_regularization_strength=0.046875,
        beta=0.3125,
    ),
    "lion": lambda: optimizers.Lion(RATE, beta_1=0.875, beta_2=0.984375),
    "lamb": lambda: optimizers.Lamb(RATE, **BETAS),
    "weight_decay": lambda: optimizers.SGD(0.125, momentum=0.5, weight_decay=0.046875),
    "clipnorm": lambda: optimizers.Adam(RATE, clipnorm=0.5, **BETAS),
    "global_clipnorm": lambda: optimizers.Adam(RATE, global_clipnorm=0.5, **BETAS),
    "clipvalue": lambda: optimizers.Adam(RATE, clipvalue=0.1875, **BETAS),
    "ema": lambda: optimizers.Adam(
        RATE, use_ema=True, ema_momentum=0.875, ema_overwrite_frequency=5, **BETAS
    ),
    "accumulation": lambda: optimizers.SGD(
        schedules.CosineDecay(rate(0.125), 20, alpha=0.125),
        gradient_accumulation_steps=3,
        clipnorm=1.0,
        weight_decay=0.125,
    ),
    "loss_scale_factor": lambda: optimizers.RMSprop(RATE, rho=0.875, loss_scale_factor=7.0),
    "cosine_decay": lambda: optimizers.SGD(
        schedules.CosineDecay(
            rate(0.015625), 10, alpha=0.125, warmup_target=0.5, warmup_steps=5
        )
    ),
    "cosine_decay_restarts": lambda: optimizers.SGD(
        schedules.CosineDecayRestarts(rate(0.5), 3, t_mul=2.0, m_mul=0.8125, alpha=0.0625)
    ),
    "polynomial_decay": lambda: optimizers.SGD(
        schedules.PolynomialDecay(
            rate(0.5), 7, end_learning_rate=0.0078125, power=1.5, cycle=True
        )
    ),
    "inverse_time_decay": lambda: optimizers.SGD(
        schedules.InverseTimeDecay(rate(0.5), 4, 0.6875, staircase=True)
    ),
    "exponential_decay": lambda: optimizers.SGD(schedules.ExponentialDecay(rate(0.5), 4, 0.6875)),
}


def gradient(step, element):
    return ((step * 37 + element * 101 + step * element * 11) % 64 - 31) / 16.0


def train(make):
    optimizer = make()
    kernel = keras.Variable([0.5, -1.0, 2.0, 0.25, 0.0009765625], dtype="float64", name="kernel")
    bias = keras.Variable([0.6875, -0.3125], dtype="float64", name="bias")
    for step in range(STEPS):
        values = [gradient(step, element) for element in range(7)]
        parts = [tf.constant(values[:5], tf.float64), tf.constant(values[5:], tf.float64)]
        optimizer.apply(parts, [kernel, bias])
    return list(kernel.numpy()) + list(bias.numpy())


def main():
    keras.backend.set_floatx("float64")
    print(
        "// What Keras's optimizers give; written by tests/parity/optimizer_record.py.\n"
        "// SPDX-License-Identifier: Apache-2.0\n"
        f"// Keras {keras.__version__}, TensorFlow {tf.__version__}, {STEPS} steps in float64.\n"
        "#pragma once\n\n#include <vector>\n\n"
        "namespace tutti::optimizer_tests {\n\nstruct KerasRecord {\n  const char* name;\n"
        "  std::vector<double> weights;  // 5 of \"kernel\", 2 of \"bias\"\n};\n\n"
        "// clang-format off\n"
        "inline const std::vector<KerasRecord>& keras_records() {\n"
        "  static const std::vector<KerasRecord> records = {"
    )
    for name, make in CASES.items():
        weights = [repr(float(value)) for value in train(make)]
        print(f'      {{"{name}",\n       {{{", ".join(weights[:4])},\n'
              f'        {", ".join(weights[4:])}}}}},')
    print("  };\n  return records;\n}\n// clang-format on\n\n}  // namespace tutti::optimizer_tests")


if __name__ == "__main__":
    main()
