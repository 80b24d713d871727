// Strategy::reduce: values of replicas as one, exact for replicas with unequal numbers of rows.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/call_site.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/strategy/strategy.h"
#include "tutti/strategy/strategy_mode.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti {
namespace {

constexpr const char* kWho = "Strategy::reduce";

void require_sum_or_mean(ReduceOp op) {
  if (op == ReduceOp::kSum || op == ReduceOp::kMean) return;
  fail(ErrorCode::kInvalidArgument, kWho, ": expected SUM or MEAN, got ", op,
       "; try ReplicaContext::all_reduce for other operations");
}

/// numerator / count: true division, integers give float32.
Tensor quotient(const Tensor& numerator, std::int64_t count) {
  const auto divisor = static_cast<double>(count);
  if (is_floating(numerator.dtype())) return divide(numerator, divisor);
  return cast(divide(cast(numerator, DType::kFloat64), divisor), DType::kFloat32);
}

std::int64_t length_of(const Tensor& value, std::span<const int> axes) {
  std::int64_t length = 1;
  for (const int axis : axes) length *= value.shape().dim(axis);
  return length;
}

/// SUM over `axes` of each value (float for bool is not guessed: bool is refused by reduce_sum), on
/// its device.
std::vector<Tensor> sums_over_axes(std::span<const Tensor> values, std::span<const int> axes) {
  std::vector<Tensor> sums;
  for (const Tensor& value : values) {
    for (const int axis : axes) value.shape().normalized_axis(axis, kWho);
    sums.push_back(reduce_sum(value, {std::vector<int>(axes.begin(), axes.end()), false}));
  }
  return sums;
}

}  // namespace

Tensor Strategy::reduce(ReduceOp op, const PerReplica<Tensor>& value, std::optional<int> axis,
                        const SourceLocation& where) {
  if (axis) return reduce(op, value, std::span<const int>(&*axis, 1), where);
  const CallSite site(where);
  internal::require_cross_replica(*this, kWho);
  require_sum_or_mean(op);
  check_argument_count(value.size());
  const GradientTape::StopRecording stop;
  return reduce_tensors_along_tree(op, values_of_all_replicas(value, "reduce"),
                                   parameter_devices().front());
}

Tensor Strategy::reduce(ReduceOp op, const PerReplica<Tensor>& value, std::span<const int> axes,
                        const SourceLocation& where) {
  const CallSite site(where);
  internal::require_cross_replica(*this, kWho);
  require_sum_or_mean(op);
  check_argument_count(value.size());
  if (axes.empty()) return reduce(op, value, std::nullopt, where);
  const GradientTape::StopRecording stop;
  const PerReplica<Tensor> sums(sums_over_axes(value.values(), axes));
  const Tensor sum = reduce_tensors_along_tree(
      ReduceOp::kSum, values_of_all_replicas(sums, "reduce"), parameter_devices().front());
  if (op == ReduceOp::kSum) return sum;
  std::vector<Tensor> lengths;
  for (const Tensor& each : value) {
    lengths.push_back(Tensor::from<std::int64_t>({}, {length_of(each, axes)}));
  }
  std::int64_t count = 0;
  for (const Tensor& length :
       values_of_all_replicas(PerReplica<Tensor>(std::move(lengths)), "lengths in reduce")) {
    count += length.item_int();
  }
  return quotient(sum, count);
}

Tensor Strategy::reduce(std::string_view op, const PerReplica<Tensor>& value,
                        std::optional<int> axis, const SourceLocation& where) {
  return reduce(parse_reduce_op(op), value, axis, where);
}

Tensor Strategy::reduce(ReduceOp op, const Tensor& value, std::optional<int> axis) {
  internal::require_cross_replica(*this, kWho);
  require_sum_or_mean(op);
  if (op == ReduceOp::kSum && num_replicas_in_sync() > 1) {
    fail(ErrorCode::kInvalidArgument, kWho, ": SUM of a value that is not distributed, with ",
         num_replicas_in_sync(),
         " replicas; expected a PerReplica; try MEAN, or the result of run()");
  }
  if (!axis) return value;
  const GradientTape::StopRecording stop;
  const std::span<const int> axes(&*axis, 1);
  const Tensor sum = sums_over_axes(std::span(&value, 1), axes).front();
  return op == ReduceOp::kSum ? sum : quotient(sum, length_of(value, axes));
}

}  // namespace tutti
