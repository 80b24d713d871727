// A recurrent layer in both directions of time.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/bidirectional.h"

#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

Bidirectional::Bidirectional(const Recurrent& layer, const std::string& layer_name,
                             BidirectionalOptions options)
    : LayerOf(options.name, options.input_shape), merge_mode_(options.merge_mode) {
  if (merge_mode_ != "concat" && merge_mode_ != "sum" && merge_mode_ != "mul" &&
      merge_mode_ != "ave") {
    fail(ErrorCode::kInvalidArgument,
         "Bidirectional: expected merge_mode 'concat', 'sum', 'mul' or 'ave', got '", merge_mode_,
         "'");
  }
  if (layer.options().return_state) {
    fail(ErrorCode::kInvalidArgument,
         "Bidirectional: the layer returns its states, which cannot be merged; try .return_state = "
         "false");
  }
  RecurrentOptions forward = layer.options();
  forward.zero_output_for_mask = forward.return_sequences;
  RecurrentOptions backward = forward;
  forward.name = "forward_" + layer_name;
  backward.name = "backward_" + layer_name;
  backward.go_backwards = !forward.go_backwards;
  forward_ = layer.sibling(std::move(forward));
  backward_ = layer.sibling(std::move(backward));
}

Shape Bidirectional::build(const Shape& input) {
  const Shape shape = add_layer(*forward_, input);
  add_layer(*backward_, input);
  return merge_mode_ == "concat" ? shape.with_dim(-1, 2 * shape[-1]) : shape;
}

Tensor Bidirectional::call(const Tensor& input, CallContext context) const {
  const Tensor a = (*forward_)(input, context);
  Tensor b = (*backward_)(input, context);
  if (backward_->options().return_sequences) b = internal::reversed_steps(b);
  const Tensor merged = merge(a, b);
  if (forward_->options().return_sequences) MaskScope::set_mask(merged, MaskScope::mask_of(input));
  return merged;
}

Tensor Bidirectional::merge(const Tensor& a, const Tensor& b) const {
  if (merge_mode_ == "concat") return concat({a, b}, -1);
  if (merge_mode_ == "mul") return a * b;
  return merge_mode_ == "sum" ? a + b : (a + b) * 0.5;
}

}  // namespace tutti
