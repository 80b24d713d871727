// Lookups of rows of a variable, alone or combined per example, without reading the others.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "tutti/autograd/variable.h"

namespace tutti {

/// Returns the rows of params [rows, ...] at indices (int32 or int64, shape [...]), of shape
/// indices.shape + params.shape[1:]. A variable on parameter servers sends each requested row once
/// and no other. The gradient with respect to params is IndexedSlices. Throws kInvalidArgument
/// naming an index out of range. tf.nn.embedding_lookup.
Tensor embedding_lookup(const Variable& params, const Tensor& indices);

/// Ids per example: ids[i] belongs to example examples[i]; an example may have none. Both int64
/// [n]. Corresponds to a tf.SparseTensor with the ids as values.
struct SparseIds {
  Tensor ids;
  Tensor examples;
  std::int64_t num_examples = 0;
};

/// kMean divides the weighted sum by the sum of the weights, kSqrtN by the square root of the sum
/// of squared weights.
enum class Combiner { kSum, kMean, kSqrtN };

/// Returns [num_examples, params.shape[1:]]: the rows of params at each example's ids, multiplied
/// by weights ([n], of params' type; default: 1) and combined. An example without ids has a row of
/// NaN under kMean and kSqrtN. Gradients flow to params (IndexedSlices) and weights. Throws
/// kInvalidArgument for mismatched shapes and for ids out of range. tf.nn.embedding_lookup_sparse.
Tensor embedding_lookup_sparse(const Variable& params, const SparseIds& ids,
                               const std::optional<Tensor>& weights = {},
                               Combiner combiner = Combiner::kMean);

/// Same as embedding_lookup_sparse(), but ignores ids below 0 and, unless the combiner is kSum, ids
/// with a weight that is not positive. The row of an example without remaining ids is zeros.
/// tf.nn.safe_embedding_lookup_sparse.
Tensor safe_embedding_lookup_sparse(const Variable& params, const SparseIds& ids,
                                    const std::optional<Tensor>& weights = {},
                                    Combiner combiner = Combiner::kMean);

}  // namespace tutti
