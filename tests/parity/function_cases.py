# Functions of one tensor: activations and regularizers with their gradients, at random and at their corners;
# constraints; vectors that are almost 0; in float64.
# SPDX-License-Identifier: Apache-2.0
import numpy

ACTIVATIONS = ["linear", "relu", "sigmoid", "tanh", "softmax", "log_softmax", "softplus", "softsign", "elu", "selu",
               "gelu", "silu", "hard_silu", "mish", "relu6", "leaky_relu", "exponential", "hard_sigmoid"]
# Where any of them, or of the layers below, has a corner, with what is beside it.
CORNERS = numpy.array([[-6.0, -3.5, -3.0, -2.5, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 1.5, 2.5, 3.0, 3.5, 5.0, 6.0, 6.5]])
FILTERS = (2, 2, 3, 4)


def in_float32(function):
    """For what Keras cannot do in float64."""
    import tensorflow as tf
    return lambda x: tf.cast(function(tf.cast(x, "float32")), "float64")


def between(largest, shape=(5, 7)):
    return lambda random: random.uniform(-largest, largest, shape)


def exactly(values):
    return lambda random: numpy.array(values)


def corner_cases(keras):
    activations, layers = keras.activations, keras.layers
    functions = {name: activations.get(name) for name in ACTIVATIONS}
    functions["relu_slope"] = layers.ReLU(negative_slope=0.25)
    functions["relu_max_6"] = layers.ReLU(max_value=6.0)
    functions["relu_max_5"] = layers.ReLU(max_value=5.0)
    functions["relu_slope_max_6"] = layers.ReLU(negative_slope=0.25, max_value=6.0)
    functions["relu_slope_max_5"] = layers.ReLU(negative_slope=0.25, max_value=5.0)
    functions["relu_threshold"] = layers.ReLU(threshold=1.0)
    functions["relu_threshold_max_6"] = layers.ReLU(threshold=1.0, max_value=6.0)
    functions["relu_threshold_slope_max_5"] = layers.ReLU(threshold=1.0, negative_slope=0.25, max_value=5.0)
    functions["leaky_relu_layer"] = layers.LeakyReLU(negative_slope=0.25)
    functions["elu_alpha"] = layers.ELU(alpha=0.5)
    functions["prelu"] = layers.PReLU(alpha_initializer=keras.initializers.Constant(0.25))
    return {f"{name}_at_corners": (function, exactly(CORNERS)) for name, function in functions.items()}


def short_vector_cases(keras):
    vectors = {"short": [[3e-9, 4e-9]], "shorter": [[3e-14, 4e-14]], "zero": [[0.0, 0.0]]}
    functions = {
        "unit_normalization": keras.layers.UnitNormalization(),
        "cosine_similarity": lambda x: keras.losses.cosine_similarity(x, keras.ops.ones_like(x)),
        "dot_normalized": lambda x: keras.layers.Dot(axes=1, normalize=True)([x, keras.ops.ones_like(x)]),
    }
    return {f"{name}_of_{length}_vector": (function, exactly(values)) for name, function in functions.items()
            for length, values in vectors.items()}


def cases(keras):
    """name: (function, what makes its input)."""
    activations, regularizers, constraints = keras.activations, keras.regularizers, keras.constraints
    table = {name: (activations.get(name), between(8.0)) for name in ACTIVATIONS}
    table["gelu_tanh"] = (lambda x: activations.gelu(x, approximate=True), between(8.0))
    table["regularizer_l1"] = (regularizers.L1(0.25), between(1.0))
    table["regularizer_l2"] = (regularizers.L2(0.125), between(1.0))
    table["regularizer_l1_l2"] = (regularizers.L1L2(0.25, 0.125), between(1.0))
    table["regularizer_orthogonal"] = (in_float32(regularizers.OrthogonalRegularizer(0.5)), between(1.0))
    table["max_norm"] = (constraints.MaxNorm(1.5), between(1.0))
    table["max_norm_axis_1"] = (constraints.MaxNorm(1.5, axis=1), between(1.0))
    table["non_neg"] = (constraints.NonNeg(), between(1.0))
    table["unit_norm"] = (constraints.UnitNorm(), between(1.0))
    table["min_max_norm"] = (constraints.MinMaxNorm(0.75, 1.25, rate=0.5), between(1.0))
    table["max_norm_of_filters"] = (constraints.MaxNorm(1.5, axis=[0, 1, 2]), between(1.0, FILTERS))
    table["unit_norm_of_filters"] = (constraints.UnitNorm(axis=[0, 1, 2]), between(1.0, FILTERS))
    table["min_max_norm_of_filters"] = (
        constraints.MinMaxNorm(0.75, 1.25, rate=0.5, axis=[0, 1, 2]), between(1.0, FILTERS))
    return table | corner_cases(keras) | short_vector_cases(keras)


def record_functions(tf, table, first_seed):
    """What the functions of {name: (function, what makes its input)} give, with gradients."""
    tensors = {}
    for number, (name, (function, make_input)) in enumerate(table.items()):
        random = numpy.random.RandomState(first_seed + number)
        x = tf.constant(make_input(random))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.convert_to_tensor(function(x))
            factors = random.uniform(-1.0, 1.0, y.shape)
            target = tf.reduce_sum(y * factors)
        tensors[f"{name}/x"] = x.numpy()
        tensors[f"{name}/y"] = y.numpy()
        tensors[f"{name}/factors"] = numpy.asarray(factors)
        gradient = tape.gradient(target, x, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        tensors[f"{name}/gradient"] = gradient.numpy()
    return tensors


def record(tf, keras):
    return record_functions(tf, cases(keras), 700)
