# Initializers: mean, standard deviation and the largest absolute value of many, for another generator cannot give the
# same values; for those without chance, and orthogonal ones, what is equal.
# SPDX-License-Identifier: Apache-2.0
import numpy

KERNELS = {"matrix": (300, 500), "image": (5, 5, 64, 96), "vector": (150000,)}


def cases(keras):
    initializers = keras.initializers
    return {
        "glorot_uniform": initializers.GlorotUniform(seed=1),
        "glorot_normal": initializers.GlorotNormal(seed=2),
        "he_uniform": initializers.HeUniform(seed=3),
        "he_normal": initializers.HeNormal(seed=4),
        "lecun_uniform": initializers.LecunUniform(seed=5),
        "lecun_normal": initializers.LecunNormal(seed=6),
        "random_uniform": initializers.RandomUniform(seed=7),
        "random_uniform_limits": initializers.RandomUniform(-0.25, 0.75, seed=8),
        "random_normal": initializers.RandomNormal(seed=9),
        "random_normal_mean": initializers.RandomNormal(0.5, 0.25, seed=10),
        "truncated_normal": initializers.TruncatedNormal(seed=11),
        "variance_scaling": initializers.VarianceScaling(seed=12),
        "variance_scaling_out_uniform": initializers.VarianceScaling(
            scale=3.0, mode="fan_out", distribution="uniform", seed=13),
        "variance_scaling_average_untruncated": initializers.VarianceScaling(
            scale=0.5, mode="fan_avg", distribution="untruncated_normal", seed=14),
    }


def equal_cases(keras):
    initializers = keras.initializers
    return {
        "zeros": initializers.Zeros(),
        "ones": initializers.Ones(),
        "constant": initializers.Constant(0.375),
        "identity": initializers.Identity(gain=1.5),
    }


def record(_, keras):
    tensors = {}
    for name, initializer in cases(keras).items():
        for kernel, shape in KERNELS.items():
            values = numpy.asarray(initializer(shape, dtype="float32")).astype("float64")
            tensors[f"{name}/{kernel}"] = numpy.array([values.mean(), values.std(), numpy.abs(values).max()])
    for name, initializer in equal_cases(keras).items():
        tensors[f"{name}/equal"] = numpy.asarray(initializer((3, 4), dtype="float32"))
    for name, shape in {"tall": (12, 5), "wide": (5, 12), "image": (2, 3, 4, 7)}.items():
        values = numpy.asarray(keras.initializers.Orthogonal(gain=1.5, seed=15)(shape, dtype="float32"))
        matrix = values.reshape(-1, shape[-1]).astype("float64")
        gram = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
        tensors[f"orthogonal/{name}"] = gram
    return tensors
