// Implements UpdateRule (number and description) and Gradient (access by form, and conversion to a
// dense tensor).
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/update_rule.h"

#include "tensor/device_backend.h"
#include "tensor/kernel_table.h"
#include "tutti/core/json.h"
#include "tutti/tensor/gradient.h"

namespace tutti {

/// Assigns the number on first use, because servers create a rule for each update and never need
/// its number.
std::uint64_t UpdateRule::number() const {
  static std::atomic<std::uint64_t> last{0};
  std::uint64_t number = number_.load();
  if (number != 0) return number;
  const std::uint64_t own = ++last;
  return number_.compare_exchange_strong(number, own) ? own : number;
}

std::optional<DeviceRule> UpdateRule::device_rule(const UpdateScalars&) const {
  return std::nullopt;
}

Json UpdateRule::describe() const {
  fail(ErrorCode::kUnimplemented, "UpdateRule '", name(),
       "': expected a rule with describe(), whose result is sent to the variable's task, got one "
       "without it; implement describe(), and call register_update_rule() in every task");
}

// Gradients: access to the dense or sparse form, and conversion of slices to a dense tensor.

Gradient::Gradient(Tensor dense) {
  if (dense.defined()) value_ = std::move(dense);
}

Gradient::Gradient(IndexedSlices slices) : value_(std::move(slices)) {}

const Tensor& Gradient::dense() const {
  if (const Tensor* dense = std::get_if<Tensor>(&value_)) return *dense;
  fail(ErrorCode::kFailedPrecondition, "Gradient::dense: expected a dense gradient, got ",
       is_none() ? "none: no path leads from the target to this source"
                 : "IndexedSlices; call to_dense()");
}

const IndexedSlices& Gradient::slices() const {
  if (const IndexedSlices* slices = std::get_if<IndexedSlices>(&value_)) return *slices;
  fail(ErrorCode::kFailedPrecondition, "Gradient::slices: expected IndexedSlices, got ",
       is_none() ? "none: no path leads from the target to this source"
                 : "a dense gradient; call dense()");
}

Tensor Gradient::to_dense() const { return is_slices() ? slices().to_dense() : dense(); }

Tensor IndexedSlices::to_dense() const {
  OpCall call;
  call.op = OpId::kScatterRows;
  call.inputs = {values, indices};
  call.outputs = {{dense_shape, values.dtype()}};
  return compute(call)[0];
}

}  // namespace tutti
