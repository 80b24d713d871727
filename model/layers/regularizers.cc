// Penalties on weights, by function and by name.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/regularizers.h"

#include <string_view>

#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/reduction.h"

namespace tutti {

Regularizer::Regularizer(const char* name) {
  const std::string_view text = name;
  if (text == "l1") {
    *this = regularizers::l1();
  } else if (text == "l2") {
    *this = regularizers::l2();
  } else if (text == "l1_l2") {
    *this = regularizers::l1_l2();
  } else if (!text.empty()) {
    fail(ErrorCode::kInvalidArgument, "Regularizer: no regularizer is named '", text,
         "'; expected one of l1, l2, l1_l2");
  }
}

Tensor Regularizer::operator()(const Tensor& weight) const {
  TUTTI_CHECK(function_, "an empty regularizer was called");
  return function_(weight);
}

namespace regularizers {

Regularizer l1(double factor) {
  return Regularizer([factor](const Tensor& weight) { return reduce_sum(abs(weight)) * factor; });
}

Regularizer l2(double factor) {
  return Regularizer(
      [factor](const Tensor& weight) { return reduce_sum(square(weight)) * factor; });
}

Regularizer l1_l2(double l1_factor, double l2_factor) {
  return Regularizer([=](const Tensor& weight) {
    return reduce_sum(abs(weight)) * l1_factor + reduce_sum(square(weight)) * l2_factor;
  });
}

}  // namespace regularizers
}  // namespace tutti
