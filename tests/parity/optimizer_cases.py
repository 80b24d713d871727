# Optimizers over 20 steps of given gradients, in float64. Keras rounds some hyper-parameters to float32 even then, so
# most cases use numbers that float32 holds.
# SPDX-License-Identifier: Apache-2.0
import numpy

STEPS = 20


def rate(value):
    """A schedule computes in the type of its first rate."""
    return numpy.float64(value)


def cases(keras):
    optimizers, schedules = keras.optimizers, keras.optimizers.schedules
    return {
        "sgd": optimizers.SGD(),
        "sgd_momentum": optimizers.SGD(1 / 16, momentum=7 / 8),
        "sgd_nesterov": optimizers.SGD(1 / 16, momentum=7 / 8, nesterov=True),
        "sgd_clipnorm": optimizers.SGD(0.1, clipnorm=0.5),
        "sgd_clipvalue": optimizers.SGD(0.1, clipvalue=0.3),
        "sgd_global_clipnorm": optimizers.SGD(0.1, global_clipnorm=0.7),
        "sgd_exponential_decay": optimizers.SGD(schedules.ExponentialDecay(1 / 8, 5, 0.5)),
        "sgd_exponential_decay_staircase": optimizers.SGD(
            schedules.ExponentialDecay(1 / 8, 5, 0.5, staircase=True)),
        "sgd_piecewise_constant_decay": optimizers.SGD(
            schedules.PiecewiseConstantDecay([4, 11], [1 / 8, 1 / 32, 1 / 64])),
        "adam": optimizers.Adam(),
        "adam_options": optimizers.Adam(1 / 64, beta_1=7 / 8, beta_2=31 / 32, epsilon=1 / 1024),
        "adam_amsgrad": optimizers.Adam(1 / 64, beta_1=7 / 8, beta_2=31 / 32, amsgrad=True),
        "adamw": optimizers.AdamW(1 / 64, weight_decay=5 / 16, beta_1=7 / 8, beta_2=31 / 32),
        "rmsprop": optimizers.RMSprop(1 / 64, rho=7 / 8),
        "rmsprop_momentum": optimizers.RMSprop(1 / 64, rho=7 / 8, momentum=13 / 16),
        "rmsprop_centered": optimizers.RMSprop(1 / 64, rho=7 / 8, epsilon=1 / 1024, centered=True),
        "rmsprop_centered_momentum": optimizers.RMSprop(
            1 / 64, rho=7 / 8, momentum=13 / 16, epsilon=1 / 1024, centered=True),
        "adagrad": optimizers.Adagrad(1 / 8, initial_accumulator_value=1 / 8),
        "adadelta": optimizers.Adadelta(1.0, rho=15 / 16),
        "nadam": optimizers.Nadam(1 / 64, beta_1=7 / 8, beta_2=31 / 32),
        "ftrl": optimizers.Ftrl(1 / 8, initial_accumulator_value=1 / 8),
        "ftrl_options": optimizers.Ftrl(
            1 / 8, learning_rate_power=-11 / 16, initial_accumulator_value=3 / 16,
            l1_regularization_strength=1 / 8, l2_regularization_strength=3 / 16,
            l2_shrinkage_regularization_strength=3 / 64, beta=5 / 16),
        "lion": optimizers.Lion(1 / 64, beta_1=7 / 8, beta_2=63 / 64),
        "lamb": optimizers.Lamb(1 / 64, beta_1=7 / 8, beta_2=31 / 32),
        "sgd_weight_decay": optimizers.SGD(1 / 8, momentum=1 / 2, weight_decay=3 / 64),
        "adam_ema": optimizers.Adam(1 / 64, beta_1=7 / 8, beta_2=31 / 32, use_ema=True,
                                    ema_momentum=7 / 8, ema_overwrite_frequency=6),
        "adam_accumulation": optimizers.Adam(1 / 64, beta_1=7 / 8, beta_2=31 / 32, clipnorm=0.5,
                                             gradient_accumulation_steps=3),
        "sgd_accumulation_cosine": optimizers.SGD(
            schedules.CosineDecay(rate(1 / 8), 16, alpha=1 / 8), weight_decay=1 / 8,
            gradient_accumulation_steps=2),
        "rmsprop_loss_scale": optimizers.RMSprop(1 / 64, rho=7 / 8, loss_scale_factor=7.0),
        "sgd_cosine_decay": optimizers.SGD(schedules.CosineDecay(
            rate(1 / 64), 10, alpha=1 / 8, warmup_target=1 / 2, warmup_steps=5)),
        "sgd_cosine_decay_restarts": optimizers.SGD(schedules.CosineDecayRestarts(
            rate(1 / 8), 3, t_mul=2.0, m_mul=13 / 16, alpha=1 / 16)),
        "sgd_polynomial_decay": optimizers.SGD(schedules.PolynomialDecay(
            rate(1 / 8), 7, end_learning_rate=1 / 128, power=1.5, cycle=True)),
        "sgd_inverse_time_decay": optimizers.SGD(
            schedules.InverseTimeDecay(rate(1 / 8), 4, 11 / 16, staircase=True)),
    }


def record(tf, keras):
    tensors = {}
    for number, (name, optimizer) in enumerate(cases(keras).items()):
        random = numpy.random.RandomState(500 + number)
        initial = [random.uniform(-1.0, 1.0, (3, 2)), random.uniform(-1.0, 1.0, (5,))]
        variables = [keras.Variable(values, dtype="float64") for values in initial]
        gradients = [random.normal(size=(STEPS,) + values.shape) for values in initial]
        after = [[], []]
        optimizer.build(variables)
        for step in range(STEPS):
            optimizer.apply([tf.constant(gradient[step]) for gradient in gradients])
            for kept, variable in zip(after, variables):
                kept.append(variable.numpy())
        for i in range(2):
            tensors[f"{name}/initial{i}"] = initial[i]
            tensors[f"{name}/gradients{i}"] = gradients[i]
            tensors[f"{name}/after{i}"] = numpy.stack(after[i])
    return tensors
