// The embedding layer.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/embedding.h"

#include "tutti/autograd/embedding_lookup.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {

Embedding::Embedding(std::int64_t input_dim, std::int64_t output_dim, EmbeddingOptions options)
    : LayerOf(options.name, options.input_shape),
      input_dim_(input_dim),
      output_dim_(output_dim),
      options_(std::move(options)) {
  if (input_dim <= 0 || output_dim <= 0) {
    fail(ErrorCode::kInvalidArgument, "Embedding: expected positive dimensions, got ", input_dim,
         " x ", output_dim);
  }
}

Shape Embedding::build(const Shape& input) {
  add_weight(options_.embeddings_initializer, {input_dim_, output_dim_}, {.name = "embeddings"},
             options_.embeddings_regularizer, options_.embeddings_constraint);
  std::vector<std::int64_t> dims(input.begin(), input.end());
  dims.push_back(output_dim_);
  return Shape(std::span<const std::int64_t>(dims));
}

Tensor Embedding::call(const Tensor& input, CallContext) const {
  const Tensor result = embedding_lookup(weight(0), input);
  if (options_.mask_zero) MaskScope::set_mask(result, not_equal(input, 0));
  return result;
}

}  // namespace tutti
