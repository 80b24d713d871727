# Functions of one tensor that other operations make up: sorted, masked, scattered, sums of products; with gradients,
# in float64.
# SPDX-License-Identifier: Apache-2.0
import numpy

from function_cases import between, exactly, record_functions

TIES = [[2.0, 1.0, 2.0, -3.0, 1.0, 2.0], [0.0, -1.0, 5.0, -1.0, 0.0, 5.0]]
SPECIAL = [[numpy.inf, -numpy.inf, numpy.nan, 0.0, 1.5]]
MASK = [[True, False, True, True, False], [False, False, False, True, True], [True, True, True, True, True]]
# At halves, away from the jumps of quotients by 2 and -2.
HALVES = [[-4.5, -3.5, -2.5, -1.5, -0.5], [0.5, 1.5, 2.5, 3.5, 4.5]]
CONSTANTS = {
    "matrix": numpy.random.RandomState(1).uniform(-1.0, 1.0, (5, 4)),
    "stack": numpy.random.RandomState(2).uniform(-1.0, 1.0, (2, 5, 3)),
    "vector": numpy.array([0.5, -1.0, 2.0]),
}


def integers(tf, function):
    """For results that are not floating."""
    return lambda x: tf.cast(function(x), tf.float64)


def cases(tf):
    linalg, math = tf.linalg, tf.math
    cube, square = between(2.0, (2, 3, 5)), between(2.0, (4, 4))
    matrix, stack, vector = (tf.constant(CONSTANTS[name]) for name in ("matrix", "stack", "vector"))
    return {
        "sort": (lambda x: tf.sort(x, axis=1), cube),
        "sort_descending": (lambda x: tf.sort(x, direction="DESCENDING"), cube),
        "argsort_of_ties": (integers(tf, lambda x: tf.argsort(x, stable=True)), exactly(TIES)),
        "argsort_of_ties_descending": (
            integers(tf, lambda x: tf.argsort(x, direction="DESCENDING", stable=True)), exactly(TIES)),
        "argsort_axis_0": (integers(tf, lambda x: tf.argsort(x, axis=0, stable=True)), cube),
        "variance": (math.reduce_variance, cube),
        "variance_axis": (lambda x: math.reduce_variance(x, 1), cube),
        "std": (lambda x: math.reduce_std(x, [0, 2], keepdims=True), cube),
        "logsumexp": (lambda x: tf.reduce_logsumexp(x, 2), between(800.0, (2, 3, 5))),
        "logsumexp_all": (tf.reduce_logsumexp, cube),
        "logsumexp_keep": (lambda x: tf.reduce_logsumexp(x, [1], keepdims=True), cube),
        "cumprod": (lambda x: math.cumprod(x, 2), cube),
        "cumprod_exclusive": (lambda x: math.cumprod(x, 1, exclusive=True), cube),
        "cumprod_reverse": (lambda x: math.cumprod(x, -1, exclusive=True, reverse=True), cube),
        "roll": (lambda x: tf.roll(x, 7, 2), cube),
        "roll_back": (lambda x: tf.roll(x, -1, 0), cube),
        "tril": (lambda x: linalg.band_part(x, -1, 0), square),
        "triu": (lambda x: linalg.band_part(x, 0, -1), cube),
        "scatter": (lambda x: tf.scatter_nd([[1], [0], [1]], x, [4, 5]), between(2.0, (3, 5))),
        "scatter_elements": (
            lambda x: tf.scatter_nd([[0, 4], [2, 0], [2, 1], [0, 4]], x, [3, 5]), between(2.0, (4,))),
        "boolean_mask": (lambda x: tf.boolean_mask(x, [True, False, True]), between(2.0, (3, 5))),
        "boolean_mask_of_elements": (lambda x: tf.boolean_mask(x, MASK), between(2.0, (3, 5))),
        "isnan": (integers(tf, math.is_nan), exactly(SPECIAL)),
        "isinf": (integers(tf, math.is_inf), exactly(SPECIAL)),
        "isfinite": (integers(tf, math.is_finite), exactly(SPECIAL)),
        "floor_mod": (lambda x: x % 2.0, exactly(HALVES)),
        "floor_mod_by_negative": (lambda x: x % -2.0, exactly(HALVES)),
        "floor_divide": (lambda x: x // 2.0, exactly(HALVES)),
        "einsum_product": (lambda x: tf.einsum("ij,jk->ik", x, matrix), between(2.0, (3, 5))),
        "einsum_batch": (lambda x: tf.einsum("bij,bjk->bik", x, stack), cube),
        "einsum_trace": (lambda x: tf.einsum("ii->", x), square),
        "einsum_diagonal": (lambda x: tf.einsum("...ii->...i", x), between(2.0, (2, 4, 4))),
        "einsum_transpose": (lambda x: tf.einsum("...ij->...ji", x), cube),
        "einsum_ellipsis": (lambda x: tf.einsum("...ij,jk->...ik", x, matrix), cube),
        "einsum_implied": (lambda x: tf.einsum("ba", x), square),
        "einsum_outer": (lambda x: tf.einsum("i,j->ji", x, vector), between(2.0, (4,))),
        "einsum_three": (lambda x: tf.einsum("bij,jk,i->bk", x, matrix, vector), cube),
        "einsum_summed_alone": (lambda x: tf.einsum("bij,kl->b", x, matrix), cube),
        "index": (lambda x: x[1], cube),
        "index_from_end": (lambda x: x[:, -1, 1:4], cube),
        "index_ranges": (lambda x: x[0:1, 1:, -9:-1], cube),
    }


def record(tf, keras):
    del keras
    return CONSTANTS | record_functions(tf, cases(tf), 900)
