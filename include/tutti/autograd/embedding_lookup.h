// Rows of a variable, without reading the others: alone, or several combined.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "tutti/autograd/variable.h"

namespace tutti {

// Rows of a variable, without reading the others.

/// Rows of params [rows, ...] at indices (int32 or int64, shape [...]) -> indices.shape +
/// params.shape[1:]; a variable on parameter servers sends each row once and no other. The gradient
/// with respect to params is IndexedSlices. Throws kInvalidArgument naming an index out of range.
/// tf.nn.embedding_lookup.
Tensor embedding_lookup(const Variable& params, const Tensor& indices);

// Several rows of a table combined into one, per example.

/// Which ids each example has: ids[i] belongs to example examples[i]; an example may have none.
/// Both int64 [n]. tf.SparseTensor with the ids as values.
struct SparseIds {
  Tensor ids;
  Tensor examples;
  std::int64_t num_examples = 0;
};

/// kMean: the weighted sum over the sum of weights; kSqrtN: over the root of the sum of squared
/// weights.
enum class Combiner { kSum, kMean, kSqrtN };

/// [num_examples, params.shape[1:]]: rows of params at each example's ids, times weights ([n], of
/// params' type; none: 1), combined. Every example needs an id, or its row is not a number under
/// kMean and kSqrtN. Gradients flow to params (IndexedSlices) and weights. Throws kInvalidArgument
/// for shapes that do not fit and for ids out of range. tf.nn.embedding_lookup_sparse.
Tensor embedding_lookup_sparse(const Variable& params, const SparseIds& ids,
                               const std::optional<Tensor>& weights = {},
                               Combiner combiner = Combiner::kMean);

/// The same without ids below 0 and, unless combined by kSum, without those whose weight is not
/// above 0; the row of an example that has none left is zeros.
/// tf.nn.safe_embedding_lookup_sparse.
Tensor safe_embedding_lookup_sparse(const Variable& params, const SparseIds& ids,
                                    const std::optional<Tensor>& weights = {},
                                    Combiner combiner = Combiner::kMean);

}  // namespace tutti
