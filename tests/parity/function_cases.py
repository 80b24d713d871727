# Functions of one tensor: activations and regularizers with their gradients, constraints; in float64.
# SPDX-License-Identifier: Apache-2.0
import numpy

ACTIVATIONS = ["linear", "relu", "sigmoid", "tanh", "softmax", "log_softmax", "softplus", "softsign", "elu", "selu",
               "gelu", "silu", "hard_silu", "mish", "relu6", "leaky_relu", "exponential", "hard_sigmoid"]


def in_float32(function):
    """For what Keras cannot do in float64."""
    import tensorflow as tf
    return lambda x: tf.cast(function(tf.cast(x, "float32")), "float64")


def cases(keras):
    """name: (function, largest input)."""
    activations, regularizers, constraints = keras.activations, keras.regularizers, keras.constraints
    table = {name: (activations.get(name), 8.0) for name in ACTIVATIONS}
    table["gelu_tanh"] = (lambda x: activations.gelu(x, approximate=True), 8.0)
    table["regularizer_l1"] = (regularizers.L1(0.25), 1.0)
    table["regularizer_l2"] = (regularizers.L2(0.125), 1.0)
    table["regularizer_l1_l2"] = (regularizers.L1L2(0.25, 0.125), 1.0)
    table["regularizer_orthogonal"] = (in_float32(regularizers.OrthogonalRegularizer(0.5)), 1.0)
    table["max_norm"] = (constraints.MaxNorm(1.5), 1.0)
    table["max_norm_axis_1"] = (constraints.MaxNorm(1.5, axis=1), 1.0)
    table["non_neg"] = (constraints.NonNeg(), 1.0)
    table["unit_norm"] = (constraints.UnitNorm(), 1.0)
    table["min_max_norm"] = (constraints.MinMaxNorm(0.75, 1.25, rate=0.5), 1.0)
    return table


def record(tf, keras):
    tensors = {}
    for number, (name, (function, largest)) in enumerate(cases(keras).items()):
        random = numpy.random.RandomState(700 + number)
        x = tf.constant(random.uniform(-largest, largest, (5, 7)))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.convert_to_tensor(function(x))
            factors = random.uniform(-1.0, 1.0, y.shape)
            target = tf.reduce_sum(y * factors)
        tensors[f"{name}/x"] = x.numpy()
        tensors[f"{name}/y"] = y.numpy()
        tensors[f"{name}/factors"] = numpy.asarray(factors)
        tensors[f"{name}/gradient"] = tape.gradient(target, x).numpy()
    return tensors
