// Lookups that read only the requested rows of a variable, either singly or combined per example.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "tutti/autograd/variable.h"

namespace tutti {

/// Returns the rows of params [rows, ...] at indices (int32 or int64, shape [...]), of shape
/// indices.shape + params.shape[1:]. Parameter servers send only the requested rows, each once. The
/// gradient with respect to params is IndexedSlices. Throws kInvalidArgument, naming the index, if
/// one is out of range. Equivalent of tf.nn.embedding_lookup.
Tensor embedding_lookup(const Variable& params, const Tensor& indices);

/// List of ids for each example: ids[i] belongs to example examples[i]. An example may have no ids.
/// Both tensors are int64 [n]. Corresponds to a tf.SparseTensor with the ids as values.
struct SparseIds {
  Tensor ids;
  Tensor examples;
  std::int64_t num_examples = 0;
};

/// Combination of an example's rows. kSum: the weighted sum. kMean: the weighted sum divided by the
/// sum of the weights. kSqrtN: the weighted sum divided by the square root of the sum of squared
/// weights.
enum class Combiner { kSum, kMean, kSqrtN };

/// Returns [num_examples, params.shape[1:]]: the rows of params at each example's ids, multiplied
/// by weights ([n], of params' type; default: 1) and combined. An example without ids gets a row of
/// NaN with kMean and kSqrtN. Gradients flow to params (IndexedSlices) and weights. Throws
/// kInvalidArgument for mismatched shapes and for ids out of range. Equivalent of
/// tf.nn.embedding_lookup_sparse.
Tensor embedding_lookup_sparse(const Variable& params, const SparseIds& ids,
                               const std::optional<Tensor>& weights = {},
                               Combiner combiner = Combiner::kMean);

/// Same as embedding_lookup_sparse(), but ignores ids below 0 and, unless the combiner is kSum, ids
/// with a weight that is not positive. An example without remaining ids gets a row of zeros.
/// Equivalent of tf.nn.safe_embedding_lookup_sparse.
Tensor safe_embedding_lookup_sparse(const Variable& params, const SparseIds& ids,
                                    const std::optional<Tensor>& weights = {},
                                    Combiner combiner = Combiner::kMean);

}  // namespace tutti
