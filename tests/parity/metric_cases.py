# Metrics: the result after each of three batches, without and with weights, in float64.
# SPDX-License-Identifier: Apache-2.0
import numpy

from loss_cases import labels_of, predictions_of

BATCHES = 3


def cases(keras):
    """name: (how to make it, kind of labels, kind of predictions)."""
    metrics = keras.metrics
    table = {}

    def add(name, metric_class, labels, predictions, **options):
        table[name] = (lambda: metric_class(**options), labels, predictions)

    for name, metric_class in {"mean_squared_error": metrics.MeanSquaredError,
                               "mean_absolute_error": metrics.MeanAbsoluteError,
                               "root_mean_squared_error": metrics.RootMeanSquaredError,
                               "mean_absolute_percentage_error": metrics.MeanAbsolutePercentageError,
                               "cosine_similarity": metrics.CosineSimilarity,
                               "log_cosh": metrics.LogCoshError}.items():
        add(name, metric_class, "numbers", "numbers")
    add("mean_squared_logarithmic_error", metrics.MeanSquaredLogarithmicError, "positive", "positive")
    add("hinge", metrics.Hinge, "signs", "numbers")
    add("squared_hinge", metrics.SquaredHinge, "signs", "numbers")
    add("categorical_hinge", metrics.CategoricalHinge, "one_hot", "numbers")
    add("kl_divergence", metrics.KLDivergence, "distribution", "distribution")
    add("poisson", metrics.Poisson, "positive", "positive")
    add("binary_crossentropy", metrics.BinaryCrossentropy, "binary", "probabilities")
    add("categorical_crossentropy", metrics.CategoricalCrossentropy, "one_hot", "distribution")
    add("sparse_categorical_crossentropy", metrics.SparseCategoricalCrossentropy, "classes", "distribution")
    add("sparse_categorical_accuracy", metrics.SparseCategoricalAccuracy, "classes", "numbers")
    add("categorical_accuracy", metrics.CategoricalAccuracy, "one_hot", "numbers")
    add("binary_accuracy", metrics.BinaryAccuracy, "binary", "probabilities")
    add("binary_accuracy_threshold", metrics.BinaryAccuracy, "binary", "probabilities", threshold=0.75)
    add("top_k_categorical_accuracy", metrics.TopKCategoricalAccuracy, "one_hot", "numbers", k=2)
    add("sparse_top_k_categorical_accuracy", metrics.SparseTopKCategoricalAccuracy, "classes", "numbers", k=2)
    for name, metric_class in {"precision": metrics.Precision, "recall": metrics.Recall}.items():
        add(name, metric_class, "binary", "probabilities")
        add(f"{name}_top_2", metric_class, "binary", "probabilities", top_k=2)
        add(f"{name}_of_class_1", metric_class, "binary", "probabilities", class_id=1, thresholds=0.375)
    add("true_positives", metrics.TruePositives, "binary", "probabilities")
    add("true_negatives", metrics.TrueNegatives, "binary", "probabilities")
    add("false_positives", metrics.FalsePositives, "binary", "probabilities")
    add("false_negatives", metrics.FalseNegatives, "binary", "probabilities", thresholds=0.75)
    for average in ("micro", "macro", "weighted"):
        add(f"f1_score_{average}", metrics.F1Score, "one_hot", "distribution", average=average)
    add("f1_score_threshold", metrics.F1Score, "binary", "probabilities", average="macro", threshold=0.5)
    add("f_beta_score", metrics.FBetaScore, "one_hot", "distribution", average="weighted", beta=2.0)
    scores = {"num_classes": 4, "sparse_y_pred": False, "dtype": "float64"}  # its own type would be an integer
    add("mean_io_u", metrics.MeanIoU, "classes", "numbers", **scores)
    add("mean_io_u_ignoring_2", metrics.MeanIoU, "classes", "numbers", ignore_class=2, **scores)
    add("auc", metrics.AUC, "binary", "probabilities")
    add("auc_precision_recall", metrics.AUC, "binary", "probabilities", curve="PR", num_thresholds=50)
    add("auc_from_logits", metrics.AUC, "binary", "numbers", from_logits=True)
    return table


def results(metric, batches, weighted):
    each = []
    for labels, predictions, weights in batches:
        if "top_k_categorical" in metric.name:
            predictions = predictions.astype("float32")  # all that TensorFlow's in_top_k takes
        metric.update_state(labels, predictions, sample_weight=weights if weighted else None)
        each.append(numpy.asarray(metric.result(), "float64"))
    return numpy.array(each)


def record(tf, keras):
    tensors = {}
    for number, (name, (make, label_kind, prediction_kind)) in enumerate(cases(keras).items()):
        random = numpy.random.RandomState(900 + number)
        batches = []
        for _ in range(BATCHES):
            labels, predictions = labels_of(label_kind, random), predictions_of(prediction_kind, random)
            batches.append((labels, predictions, random.randint(0, 9, len(labels)) / 4.0))
        tensors[f"{name}/plain"] = results(make(), batches, weighted=False)
        tensors[f"{name}/weighted"] = results(make(), batches, weighted=True)
        for part, what in enumerate(("labels", "predictions", "weights")):
            tensors[f"{name}/{what}"] = numpy.concatenate([batch[part] for batch in batches])
    return tensors
