// Activations that are made of other operations.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/activations.h"

#include <cmath>
#include <numbers>

#include "tutti/tensor/ops/checks.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace {

using namespace internal;

/// Throws naming the activation unless x is floating.
void check(std::string_view name, const Operand& x) {
  if (is_floating(defined(OpId::kMultiply, x).dtype())) return;
  fail(ErrorCode::kInvalidArgument, who(name, x.where), ": expected a floating type, got ",
       x.dtype(), " of shape ", x.shape(), "; try cast()");
}

}  // namespace

Tensor silu(const Operand& x) {
  check("silu", x);
  return x.tensor * sigmoid(x);
}

Tensor gelu_tanh(const Operand& x) {
  check("gelu_tanh", x);
  const double scale = std::sqrt(2.0 / std::numbers::pi);
  const Tensor inner = (x.tensor + 0.044715 * (square(x) * x.tensor)) * scale;
  return 0.5 * x.tensor * (1.0 + tanh(inner));
}

Tensor leaky_relu(const Operand& x, double slope) {
  check("leaky_relu", x);
  return where(greater(x, 0.0), x, x.tensor * slope);
}

Tensor selu(const Operand& x) {
  check("selu", x);
  constexpr double kAlpha = 1.6732632423543772, kScale = 1.0507009873554805;
  return where(greater_equal(x, 0.0), x.tensor * kScale, elu(x) * (kAlpha * kScale));
}

Tensor relu6(const Operand& x) {
  check("relu6", x);
  return minimum(6.0, relu(x));  // not clip(), whose derivative is 1 at both ends
}

Tensor hard_sigmoid(const Operand& x) {
  check("hard_sigmoid", x);
  return relu6(x.tensor + 3.0) / 6.0;
}

Tensor hard_silu(const Operand& x) {
  check("hard_silu", x);
  return x.tensor * hard_sigmoid(x);
}

Tensor softsign(const Operand& x) {
  check("softsign", x);
  return x.tensor / (abs(x) + 1.0);
}

}  // namespace tutti
