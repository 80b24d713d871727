# Losses, one value per example and the gradient by predictions, in float64.
# SPDX-License-Identifier: Apache-2.0
import numpy

ROWS, CLASSES = 6, 4


def labels_of(kind, random):
    if kind == "classes":
        return random.randint(0, CLASSES, ROWS).astype("int64")
    if kind == "distribution":
        weights = random.uniform(0.1, 1.0, (ROWS, CLASSES))
        return weights / weights.sum(axis=1, keepdims=True)
    if kind == "one_hot":
        return numpy.eye(CLASSES)[random.randint(0, CLASSES, ROWS)]
    if kind == "binary":
        return random.randint(0, 2, (ROWS, CLASSES)).astype("float64")
    if kind == "signs":
        return random.randint(0, 2, (ROWS, CLASSES)) * 2.0 - 1.0
    if kind == "positive":
        return random.uniform(0.1, 2.0, (ROWS, CLASSES))
    return random.uniform(-2.0, 2.0, (ROWS, CLASSES))


def predictions_of(kind, random):
    if kind == "probabilities":
        return random.uniform(0.05, 0.95, (ROWS, CLASSES))
    if kind == "distribution":
        return labels_of("distribution", random)
    if kind == "positive":
        return random.uniform(0.1, 2.0, (ROWS, CLASSES))
    return random.uniform(-2.0, 2.0, (ROWS, CLASSES))


def cases(keras):
    """name: (function of labels and predictions, kind of labels, kind of predictions)."""
    losses = keras.losses
    return {
        "sparse_categorical_crossentropy": (
            lambda y, p: losses.sparse_categorical_crossentropy(y, p, from_logits=True), "classes", "logits"),
        "sparse_categorical_crossentropy_probabilities": (
            losses.sparse_categorical_crossentropy, "classes", "distribution"),
        "categorical_crossentropy": (
            lambda y, p: losses.categorical_crossentropy(y, p, from_logits=True), "distribution", "logits"),
        "categorical_crossentropy_probabilities": (losses.categorical_crossentropy, "one_hot", "distribution"),
        "categorical_crossentropy_smoothed": (
            lambda y, p: losses.categorical_crossentropy(y, p, from_logits=True, label_smoothing=0.1), "one_hot",
            "logits"),
        "binary_crossentropy": (
            lambda y, p: losses.binary_crossentropy(y, p, from_logits=True), "binary", "logits"),
        "binary_crossentropy_probabilities": (losses.binary_crossentropy, "binary", "probabilities"),
        "binary_crossentropy_smoothed": (
            lambda y, p: losses.binary_crossentropy(y, p, from_logits=True, label_smoothing=0.2), "binary",
            "logits"),
        "mean_squared_error": (losses.mean_squared_error, "numbers", "numbers"),
        "mean_absolute_error": (losses.mean_absolute_error, "numbers", "numbers"),
        "huber": (losses.huber, "numbers", "numbers"),
        "huber_delta": (lambda y, p: losses.huber(y, p, delta=0.5), "numbers", "numbers"),
        "log_cosh": (losses.log_cosh, "numbers", "numbers"),
        "hinge": (losses.hinge, "signs", "numbers"),
        "hinge_of_zeros_and_ones": (losses.hinge, "binary", "numbers"),
        "squared_hinge": (losses.squared_hinge, "signs", "numbers"),
        "kl_divergence": (losses.kl_divergence, "distribution", "distribution"),
        "poisson": (losses.poisson, "positive", "positive"),
    }


def record(tf, keras):
    tensors = {}
    for number, (name, (function, label_kind, prediction_kind)) in enumerate(cases(keras).items()):
        random = numpy.random.RandomState(300 + number)
        labels = labels_of(label_kind, random)
        predictions = tf.constant(predictions_of(prediction_kind, random))
        factors = random.uniform(0.5, 1.5, ROWS)
        with tf.GradientTape() as tape:
            tape.watch(predictions)
            values = function(tf.constant(labels), predictions)
            target = tf.reduce_sum(values * factors)
        tensors[f"{name}/labels"] = labels
        tensors[f"{name}/predictions"] = predictions.numpy()
        tensors[f"{name}/factors"] = factors
        tensors[f"{name}/values"] = values.numpy()
        tensors[f"{name}/gradient"] = tape.gradient(target, predictions).numpy()
    return tensors
