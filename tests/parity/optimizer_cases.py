# Optimizers over 20 steps of given gradients, in float64. Keras rounds some hyper-parameters to float32 even then, so
# most cases use numbers that float32 holds.
# SPDX-License-Identifier: Apache-2.0
import numpy

STEPS = 20


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
