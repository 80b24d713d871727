// Implements lookups of a variable's rows.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/embedding_lookup.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <vector>

#include "autograd/recording.h"
#include "tensor/op_checks.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/variable.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

namespace {

Tensor as_int64(const Tensor& indices) {
  internal::require_index(OpId::kGather, indices);
  return cast(indices.to(Device{}), DType::kInt64);
}

/// Returns the indices in ascending order, without duplicates.
std::vector<std::int64_t> unique_rows(std::span<const std::int64_t> indices) {
  std::vector<std::int64_t> rows(indices.begin(), indices.end());
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

/// Returns the position in `rows` of each index, in the shape of `indices`.
Tensor places(const Tensor& indices, const std::vector<std::int64_t>& rows) {
  std::vector<std::int64_t> result;
  for (const std::int64_t index : indices.host_span<std::int64_t>()) {
    result.push_back(std::ranges::lower_bound(rows, index) - rows.begin());
  }
  return Tensor::from(indices.shape(), result);
}

void check_indices(const Variable& params, const Tensor& indices,
                   const std::vector<std::int64_t>& rows) {
  const std::int64_t num_rows = params.shape().rank() == 0 ? 0 : params.shape().dim(0);
  if (rows.empty() || (rows.front() >= 0 && rows.back() < num_rows)) return;
  const std::int64_t wrong = rows.front() < 0 ? rows.front() : rows.back();
  const auto all = indices.host_span<std::int64_t>();
  fail(ErrorCode::kInvalidArgument, "embedding_lookup: variable '", params.name(),
       "': index out of range; expected 0 .. ", num_rows - 1, ", got ", wrong, " at position ",
       std::ranges::find(all, wrong) - all.begin());
}

void record(const Variable& params, const Tensor& indices, const Tensor& values) {
  if (!internal::any_tape_records()) return;
  Tensor flat;
  {
    const GradientTape::StopRecording stop;
    const NoDeviceScope on_the_host;
    flat = reshape(indices, {-1});
  }
  const Shape shape = params.shape();
  internal::tapes_see_rows(params, values, [=](std::span<const Tensor> gradients) {
    if (!gradients.front().defined()) return std::vector<Gradient>{Gradient()};
    const Tensor rows = reshape(gradients.front(), shape.with_dim(0, flat.num_elements()));
    return std::vector<Gradient>{IndexedSlices{rows, flat.to(rows.device()), shape}};
  });
}

}  // namespace

Tensor embedding_lookup(const Variable& params, const Tensor& indices) {
  if (!params.storage().reads_rows()) {
    const Tensor all = params.value();
    std::optional<DeviceScope> task;  // gathers on the variable's task, which sends only the rows
    if (const auto device = remote_device_of(all)) task.emplace(*device);
    return gather(all, indices);
  }
  Tensor wanted, values;
  {
    const GradientTape::StopRecording stop;
    const Device device = internal::device_beside(indices);
    const NoDeviceScope on_the_host;
    wanted = as_int64(indices);
    const auto rows = unique_rows(wanted.host_span<std::int64_t>());
    check_indices(params, wanted, rows);
    const Tensor numbers = Tensor::from(Shape{static_cast<std::int64_t>(rows.size())}, rows);
    values = params.storage().read_rows(numbers);
    values = gather(values, places(wanted, rows).to(values.device())).to(device);
  }
  record(params, wanted, values);
  const std::optional<DType> type = AutocastScope::current();
  const bool casts = type && *type != values.dtype() && params.storage().options().autocast &&
                     is_floating(values.dtype());
  return casts ? cast(values, *type) : values;
}

Tensor Variable::operator[](std::initializer_list<Index> indices) const {
  if (indices.size() == 0 || shape().rank() == 0 || !storage().reads_rows()) {
    return value()[indices];
  }
  std::vector<Index> within_rows(indices);
  Index& first = within_rows.front();
  const internal::AxisPart part = internal::part_of_axis(first, shape(), 0);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(part.count));
  std::iota(rows.begin(), rows.end(), part.first);
  const Tensor read = embedding_lookup(*this, Tensor::from(Shape{part.count}, rows));
  first = first.is_range ? Index(Range{}, first.where) : Index(0, first.where);
  return internal::part_of(Operand(read, first.where), within_rows);
}

namespace {

void check(const char* who, const Variable& params, const SparseIds& ids,
           const std::optional<Tensor>& weights) {
  const auto refuse = [&](const auto&... what) {
    fail(ErrorCode::kInvalidArgument, who, ": variable '", params.name(), "': ", what...);
  };
  if (params.shape().rank() < 1) refuse("expected rows, got a scalar");
  if (ids.ids.rank() != 1 || ids.examples.shape() != ids.ids.shape()) {
    refuse("expected ids and examples of one shape [n], got ", ids.ids.shape(), " and ",
           ids.examples.shape());
  }
  if (weights && (weights->shape() != ids.ids.shape() || weights->dtype() != params.dtype())) {
    refuse("expected weights of shape ", ids.ids.shape(), " and dtype ", params.dtype(),
           ", got shape ", weights->shape(), " and dtype ", weights->dtype());
  }
}

/// Reshapes [n] to [n, 1, ..., 1], which broadcasts to values of `rank` dimensions.
Tensor column(const Tensor& values, int rank) {
  std::vector<std::int64_t> dims(static_cast<std::size_t>(rank), 1);
  dims.front() = values.shape().dim(0);
  return reshape(values, dims);
}

Tensor sum_per_example(const Tensor& values, const SparseIds& ids) {
  return scatter_rows(values, ids.examples, values.shape().with_dim(0, ids.num_examples));
}

/// Returns the divisor of the sums; undefined for kSum.
Tensor divisor(const Tensor& weights, const SparseIds& ids, Combiner combiner) {
  if (combiner == Combiner::kSum) return {};
  if (combiner == Combiner::kMean) return sum_per_example(weights, ids);
  return sqrt(sum_per_example(square(weights), ids));
}

/// Returns the ids at `positions`.
SparseIds picked(const SparseIds& ids, const Tensor& positions) {
  const GradientTape::StopRecording stop;
  return {gather(ids.ids, positions), gather(ids.examples, positions), ids.num_examples};
}

std::vector<std::int64_t> valid_positions(const SparseIds& ids,
                                          const std::optional<Tensor>& weights, Combiner combiner) {
  const Tensor host = ids.ids.to(Device{});
  const std::vector<double> factors =
      weights && combiner != Combiner::kSum ? weights->to_doubles() : std::vector<double>();
  std::vector<std::int64_t> positions;
  const std::vector<double> numbers = host.to_doubles();
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] < 0.0 || (!factors.empty() && !(factors[i] > 0.0))) continue;
    positions.push_back(static_cast<std::int64_t>(i));
  }
  return positions;
}

/// Returns a tensor [num_examples] that is 1 for each example without ids, else 0.
Tensor without_ids(const SparseIds& ids, DType dtype) {
  std::vector<float> missing(static_cast<std::size_t>(ids.num_examples), 1.0F);
  for (const double example : ids.examples.to_doubles()) {
    missing[static_cast<std::size_t>(example)] = 0.0F;
  }
  const GradientTape::StopRecording stop;
  return cast(Tensor::from(Shape{ids.num_examples}, missing), dtype);
}

Tensor combined(const Variable& params, const SparseIds& ids, const std::optional<Tensor>& weights,
                Combiner combiner, const Tensor& added_to_divisor) {
  const Tensor rows = embedding_lookup(params, ids.ids);
  const Tensor factors =
      weights ? *weights : Tensor::ones(ids.ids.shape(), rows.dtype(), rows.device());
  const Tensor weighted = weights ? rows * column(factors, rows.rank()) : rows;
  const Tensor sums = sum_per_example(weighted, ids);
  Tensor by = divisor(factors, ids, combiner);
  if (!by.defined()) return sums;
  if (added_to_divisor.defined()) by = by + added_to_divisor;
  return sums / column(by, sums.rank());
}

}  // namespace

Tensor embedding_lookup_sparse(const Variable& params, const SparseIds& ids,
                               const std::optional<Tensor>& weights, Combiner combiner) {
  check("embedding_lookup_sparse", params, ids, weights);
  return combined(params, ids, weights, combiner, {});
}

Tensor safe_embedding_lookup_sparse(const Variable& params, const SparseIds& ids,
                                    const std::optional<Tensor>& weights, Combiner combiner) {
  check("safe_embedding_lookup_sparse", params, ids, weights);
  const auto positions = valid_positions(ids, weights, combiner);
  const Tensor chosen = Tensor::from(Shape{static_cast<std::int64_t>(positions.size())}, positions);
  const SparseIds valid = picked(ids, chosen);
  const std::optional<Tensor> factors =
      weights ? std::optional<Tensor>(gather(*weights, chosen)) : std::nullopt;
  // The divisor of an example without ids is 1, so that its result is 0.
  return combined(params, valid, factors, combiner, without_ids(valid, params.dtype()));
}

}  // namespace tutti
