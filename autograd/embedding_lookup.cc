// Fetching each row once, and telling tapes which variable they came from.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/embedding_lookup.h"

#include <algorithm>
#include <vector>

#include "tutti/autograd/autocast.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/tape_stack.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/checks.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

Tensor as_int64(const Tensor& indices) {
  const Tensor host = indices.to(Device{});
  return host.dtype() == DType::kInt64 ? host : cast(host, DType::kInt64);
}

/// Ascending, each once.
std::vector<std::int64_t> unique_rows(std::span<const std::int64_t> indices) {
  std::vector<std::int64_t> rows(indices.begin(), indices.end());
  std::ranges::sort(rows);
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  return rows;
}

/// For each index its place among `rows`, in the shape of `indices`.
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
  if (!params.storage().reads_rows()) return gather(params.value(), indices);
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

}  // namespace tutti
