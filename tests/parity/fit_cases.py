# What compile, fit and callbacks do with metrics: directions, masks, weights of steps, ties; stopping and restoring.
# SPDX-License-Identifier: Apache-2.0
import numpy

import metric_cases

DIRECTIONS = {"up": 1.0, "down": -1.0, None: 0.0}


def directions(keras):
    """1: larger is better, -1: smaller is, 0: Keras does not say."""
    metrics = {name: make() for name, (make, _, _) in metric_cases.cases(keras).items()}
    metrics["mean"], metrics["sum"] = keras.metrics.Mean(), keras.metrics.Sum()
    for name in ("mse", "mae", "mape", "msle", "bce", "kl_divergence", "accuracy", "acc"):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(loss="mse", metrics=[name])
        model.evaluate(numpy.ones((1, 1)), numpy.ones((1, 1)), verbose=0)
        metrics[f"{name}_by_name"] = model._compile_metrics.metrics[0]
    return {f"directions/{name}": numpy.array(DIRECTIONS[getattr(metric, "_direction", None)])
            for name, metric in metrics.items()}


def steps(random, rows, length):
    """Labels, predictions and mask of rows of `length` steps; three classes; gaps anywhere."""
    labels = random.randint(0, 3, (rows, length)).astype("int64")
    scores = random.uniform(0.1, 1.0, (rows, length, 3))
    mask = random.randint(0, 3, (rows, length)) > 0
    mask[0] = False
    return labels, scores / scores.sum(axis=-1, keepdims=True), mask


def masked_metrics(tf, keras):
    """Two batches whose lengths differ; with a mask, weights of steps, both, and weights of rows."""
    random = numpy.random.RandomState(31)
    batches = [steps(random, 4, 7), steps(random, 3, 5)]
    weights = [random.randint(0, 9, labels.shape) / 4.0 for labels, _, _ in batches]
    tensors = {}
    for b, ((labels, predictions, mask), weight) in enumerate(zip(batches, weights)):
        tensors |= {f"masked/labels{b}": labels, f"masked/predictions{b}": predictions,
                    f"masked/mask{b}": mask, f"masked/weights{b}": weight}
    made = {"sparse_categorical_accuracy": (keras.metrics.SparseCategoricalAccuracy, False),
            "categorical_accuracy": (keras.metrics.CategoricalAccuracy, True),
            "sparse_categorical_crossentropy": (keras.metrics.SparseCategoricalCrossentropy, False),
            "mean_squared_error": (keras.metrics.MeanSquaredError, True),
            "binary_accuracy": (keras.metrics.BinaryAccuracy, True),
            "cosine_similarity": (keras.metrics.CosineSimilarity, True),
            "root_mean_squared_error": (keras.metrics.RootMeanSquaredError, True),
            "precision": (keras.metrics.Precision, True)}
    for name, (make, one_hot) in made.items():
        for kind in ("mask", "weights", "both", "rows"):
            metric = make()
            for (labels, predictions, mask), weight in zip(batches, weights):
                predictions = tf.constant(predictions)
                if kind != "weights":
                    keras.src.backend.set_keras_mask(predictions, tf.constant(mask))
                sample_weight = {"mask": None, "rows": weight[:, :1]}.get(kind, weight)
                if kind == "rows" and name == "precision":
                    sample_weight = numpy.broadcast_to(sample_weight, weight.shape)
                metric.update_state(numpy.eye(3)[labels] if one_hot else labels, predictions,
                                    sample_weight=sample_weight)
            tensors[f"masked/{name}_{kind}"] = numpy.asarray(metric.result(), "float64")
    return tensors


def weights_of_steps(keras):
    """Training on steps that weigh differently, and metrics with and without the weights."""
    random = numpy.random.RandomState(37)
    inputs, labels = random.uniform(-1, 1, (12, 5, 2)), random.randint(0, 3, (12, 5)).astype("int64")
    weights = random.randint(0, 9, (12, 5)) / 4.0
    kernel = random.uniform(-0.5, 0.5, (2, 3))
    model = keras.Sequential([keras.Input((5, 2)), keras.layers.Dense(3, activation="softmax", use_bias=False)])
    model.set_weights([kernel])
    model.compile(keras.optimizers.SGD(0.5), "sparse_categorical_crossentropy",
                  metrics=["accuracy"], weighted_metrics=["accuracy", "sparse_categorical_crossentropy"])
    history = model.fit(inputs, labels, sample_weight=weights, batch_size=4, epochs=3, shuffle=False, verbose=0)
    last = model.evaluate(inputs, labels, sample_weight=weights, batch_size=4, verbose=0, return_dict=True)
    tensors = {"steps/inputs": inputs, "steps/labels": labels, "steps/weights": weights, "steps/kernel": kernel,
               "steps/final": model.get_weights()[0]}
    for name, values in history.history.items():
        tensors[f"steps/{name}"] = numpy.array(list(values) + [last[name]])
    return tensors


def f1_ties(keras):
    """Largest predictions that are equal, and rows without any."""
    random = numpy.random.RandomState(41)
    predictions = random.randint(0, 3, (24, 4)) / 4.0
    predictions[5:9] = 0.0
    predictions[9] = [-0.25, 0.0, -0.5, 0.0]
    predictions[10] = -0.25
    labels = numpy.eye(4)[random.randint(0, 4, 24)]
    tensors = {"f1/labels": labels, "f1/predictions": predictions}
    for average in (None, "micro", "macro", "weighted"):
        metric = keras.metrics.F1Score(average=average)
        metric.update_state(labels, predictions)
        tensors[f"f1/{average or 'per_class'}"] = numpy.asarray(metric.result(), "float64")
    return tensors


class Watched:
    """As much of a model as callbacks ask for."""

    def __init__(self, keras):
        self.stop_training, self.epoch = False, 0
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(loss="mse", metrics=[keras.metrics.AUC(name="auc")])
        model.evaluate(numpy.ones((1, 1)), numpy.ones((1, 1)), verbose=0)
        self.metrics = model.metrics

    def get_weights(self):
        return [self.epoch]

    def set_weights(self, weights):
        self.restored = weights[0]


def early_stopping(keras):
    """Random values: when training stops, and which epoch's weights are restored."""
    random = numpy.random.RandomState(43)
    watched = Watched(keras)
    options, series, ends = [], [], []
    for _ in range(60):
        larger, patience = int(random.randint(2)), int(random.randint(4))
        start, delta = int(random.randint(4)), float(random.choice([0.0, 0.25]))
        values = random.randint(0, 17, 10) / 16.0
        monitor = "val_auc" if larger else "val_loss"
        callback = keras.callbacks.EarlyStopping(monitor, min_delta=delta, patience=patience,
                                                 restore_best_weights=True, start_from_epoch=start)
        watched.stop_training, watched.restored, stopped = False, -1, -1
        callback.set_model(watched)
        callback.on_train_begin()
        for watched.epoch, value in enumerate(values):
            callback.on_epoch_end(watched.epoch, {monitor: value})
            if watched.stop_training:
                stopped = watched.epoch
                break
        callback.on_train_end()
        options.append([larger, patience, start, delta])
        series.append(values)
        ends.append([stopped, watched.restored])
    return {"stopping/options": numpy.array(options, "float64"), "stopping/values": numpy.array(series),
            "stopping/ends": numpy.array(ends, "float64")}


def restored_weights(keras):
    """A line whose validation is best on the way: what is left when fit ends, with and without averages."""
    x = numpy.array([[1.0], [2.0], [3.0], [4.0]])
    tensors = {"restored/x": x}
    averages = {"plain": {}, "ema": {"use_ema": True, "ema_momentum": 0.75},
                "overwritten": {"use_ema": True, "ema_momentum": 0.75, "ema_overwrite_frequency": 3}}
    for name, options in averages.items():
        for patience in (1, 50):
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
            model.set_weights([numpy.array([[0.0]])])
            model.compile(keras.optimizers.SGD(1 / 64, **options), "mse")
            callback = keras.callbacks.EarlyStopping(patience=patience, restore_best_weights=True)
            history = model.fit(x, x, validation_data=(x, 0.625 * x), batch_size=2, epochs=8, shuffle=False,
                                callbacks=[callback], verbose=0)
            case = f"restored/{name}_{patience}"
            tensors[f"{case}_val_loss"] = numpy.array(history.history["val_loss"])
            tensors[f"{case}_best_epoch"] = numpy.array(float(callback.best_epoch))
            tensors[f"{case}_final"] = model.get_weights()[0]
    return tensors


def record(tf, keras):
    return {**directions(keras), **masked_metrics(tf, keras), **weights_of_steps(keras), **f1_ties(keras),
            **early_stopping(keras), **restored_weights(keras)}
