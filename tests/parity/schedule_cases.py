# Learning-rate schedules over 40 steps, in float64.
# SPDX-License-Identifier: Apache-2.0
import numpy

STEPS = 40


def cases(keras):
    schedules = keras.optimizers.schedules
    rate = numpy.float64(1 / 8)  # a schedule computes in the type of its first rate
    return {
        "exponential_decay": schedules.ExponentialDecay(rate, 5, 0.5),
        "exponential_decay_staircase": schedules.ExponentialDecay(rate, 6, 0.75, staircase=True),
        "piecewise_constant_decay": schedules.PiecewiseConstantDecay([4, 11, 30], [1 / 8, 1 / 32, 1 / 64, 1 / 4]),
        "polynomial_decay": schedules.PolynomialDecay(rate, 17, end_learning_rate=1 / 128),
        "polynomial_decay_power": schedules.PolynomialDecay(rate, 17, end_learning_rate=1 / 128, power=0.5),
        "polynomial_decay_cycle": schedules.PolynomialDecay(
            rate, 7, end_learning_rate=1 / 128, power=1.5, cycle=True),
        "inverse_time_decay": schedules.InverseTimeDecay(rate, 4, 11 / 16),
        "inverse_time_decay_staircase": schedules.InverseTimeDecay(rate, 4, 11 / 16, staircase=True),
        "cosine_decay": schedules.CosineDecay(rate, 25),
        "cosine_decay_alpha": schedules.CosineDecay(rate, 25, alpha=1 / 8),
        "cosine_decay_warm_up": schedules.CosineDecay(
            numpy.float64(1 / 64), 20, alpha=1 / 8, warmup_target=1 / 2, warmup_steps=9),
        "cosine_decay_restarts": schedules.CosineDecayRestarts(rate, 4),
        "cosine_decay_restarts_options": schedules.CosineDecayRestarts(
            rate, 5, t_mul=1.5, m_mul=13 / 16, alpha=1 / 16),
        "cosine_decay_restarts_equal": schedules.CosineDecayRestarts(rate, 6, t_mul=1.0, m_mul=0.5),
    }


def record(_, keras):
    return {f"{name}/rates": numpy.array([numpy.asarray(schedule(step), "float64") for step in range(STEPS)])
            for name, schedule in cases(keras).items()}
