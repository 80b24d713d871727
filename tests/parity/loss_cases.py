# Losses: one value per example, the gradient by predictions, and the classes with weights, in float64.
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
    if kind == "wide_logits":
        return random.uniform(-20.0, 20.0, (ROWS, CLASSES))
    return random.uniform(-2.0, 2.0, (ROWS, CLASSES))


def cases(keras):
    """name: (function, class, options of both, kind of labels, kind of predictions)."""
    losses = keras.losses
    logits = {"from_logits": True}

    def pair(name):
        return getattr(losses, name), getattr(losses, "".join(part.capitalize() for part in name.split("_")))

    sparse = pair("sparse_categorical_crossentropy")
    categorical, binary = pair("categorical_crossentropy"), pair("binary_crossentropy")
    binary_focal, categorical_focal = pair("binary_focal_crossentropy"), pair("categorical_focal_crossentropy")
    return {
        "sparse_categorical_crossentropy": (*sparse, logits, "classes", "logits"),
        "sparse_categorical_crossentropy_probabilities": (*sparse, {}, "classes", "distribution"),
        "categorical_crossentropy": (*categorical, logits, "distribution", "logits"),
        "categorical_crossentropy_probabilities": (*categorical, {}, "one_hot", "distribution"),
        "categorical_crossentropy_smoothed": (*categorical, {**logits, "label_smoothing": 0.1}, "one_hot", "logits"),
        "binary_crossentropy": (*binary, logits, "binary", "logits"),
        "binary_crossentropy_probabilities": (*binary, {}, "binary", "probabilities"),
        "binary_crossentropy_smoothed": (*binary, {**logits, "label_smoothing": 0.2}, "binary", "logits"),
        "mean_squared_error": (*pair("mean_squared_error"), {}, "numbers", "numbers"),
        "mean_absolute_error": (*pair("mean_absolute_error"), {}, "numbers", "numbers"),
        "huber": (*pair("huber"), {}, "numbers", "numbers"),
        "huber_delta": (*pair("huber"), {"delta": 0.5}, "numbers", "numbers"),
        "log_cosh": (*pair("log_cosh"), {}, "numbers", "numbers"),
        "hinge": (*pair("hinge"), {}, "signs", "numbers"),
        "hinge_of_zeros_and_ones": (*pair("hinge"), {}, "binary", "numbers"),
        "squared_hinge": (*pair("squared_hinge"), {}, "signs", "numbers"),
        "kl_divergence": (losses.kl_divergence, losses.KLDivergence, {}, "distribution", "distribution"),
        "poisson": (*pair("poisson"), {}, "positive", "positive"),
        "binary_focal_crossentropy": (*binary_focal, logits, "binary", "logits"),
        "binary_focal_crossentropy_probabilities": (*binary_focal, {}, "binary", "probabilities"),
        "binary_focal_crossentropy_options": (
            *binary_focal, {**logits, "gamma": 1.5, "alpha": 0.375, "apply_class_balancing": True,
                            "label_smoothing": 0.125}, "binary", "logits"),
        "categorical_focal_crossentropy": (*categorical_focal, logits, "one_hot", "logits"),
        "categorical_focal_crossentropy_probabilities": (*categorical_focal, {}, "one_hot", "distribution"),
        "categorical_focal_crossentropy_options": (
            *categorical_focal, {**logits, "gamma": 3.0, "alpha": 0.5, "label_smoothing": 0.125}, "one_hot",
            "logits"),
        "mean_absolute_percentage_error": (*pair("mean_absolute_percentage_error"), {}, "numbers", "numbers"),
        "mean_squared_logarithmic_error": (*pair("mean_squared_logarithmic_error"), {}, "positive", "numbers"),
        "cosine_similarity": (*pair("cosine_similarity"), {}, "numbers", "numbers"),
        "categorical_hinge": (*pair("categorical_hinge"), {}, "one_hot", "numbers"),
        "binary_focal_crossentropy_wide": (*binary_focal, logits, "binary", "wide_logits"),
        "categorical_focal_crossentropy_wide": (*categorical_focal, logits, "one_hot", "wide_logits"),
    }


def record(tf, keras):
    tensors = {}
    for number, (name, case) in enumerate(cases(keras).items()):
        function, loss_class, options, label_kind, prediction_kind = case
        random = numpy.random.RandomState(300 + number)
        labels = labels_of(label_kind, random)
        predictions = tf.constant(predictions_of(prediction_kind, random))
        factors = random.uniform(0.5, 1.5, ROWS)
        with tf.GradientTape() as tape:
            tape.watch(predictions)
            values = function(tf.constant(labels), predictions, **options)
            target = tf.reduce_sum(values * factors)
        tensors[f"{name}/labels"] = labels
        tensors[f"{name}/predictions"] = predictions.numpy()
        tensors[f"{name}/factors"] = factors
        tensors[f"{name}/values"] = values.numpy()
        tensors[f"{name}/gradient"] = tape.gradient(target, predictions).numpy()
        # The class, with weights: its mean and its sum.
        tensors[f"{name}/reduced"] = numpy.array([
            loss_class(reduction=reduction, **options)(labels, predictions, sample_weight=factors).numpy()
            for reduction in ("sum_over_batch_size", "sum")])
    return tensors
