// Gradients of this process's replicas in one reduction: kinds, and search for non-finite values.
// SPDX-License-Identifier: Apache-2.0
//
// Infinities and NaNs survive every sum, so only sums are searched; if a sum contains one, the
// replicas' gradients are searched for its origin.
#include "strategy/reduction/bucket_inputs.h"

#include <cstring>

#include "tutti/core/logging.h"
#include "tutti/cross_device_ops/gradient_ops.h"

namespace tutti::internal {
namespace {

GradientKind kind_of(const Gradient& gradient) {
  return gradient.is_dense()    ? GradientKind::kDense
         : gradient.is_slices() ? GradientKind::kSparse
                                : GradientKind::kNone;
}

}  // namespace

Gradient on_host(const Gradient& gradient) {
  const bool is_on_gpu = device_of(gradient).type == DeviceType::kGpu;
  return is_on_gpu ? copy_to(gradient, Device{}) : gradient;
}

const ReplicaShards* shards_of(const Variable& variable) {
  const auto* const shards = dynamic_cast<const ReplicaShards*>(&variable.storage());
  return shards && shards->sums_shards() ? shards : nullptr;
}

BucketInputs::BucketInputs(ReplicaServices& all_services, const PlanInUse& in_use,
                           std::span<const Variable> of_variables)
    : services(all_services),
      team(services.num_workers() == 1 ? nullptr : services.team.get()),
      plan(in_use.plan),
      residuals(in_use.residuals),
      variables(of_variables.begin(), of_variables.end()),
      num_replicas(services.replica_devices.size()),
      policy(services.communication.non_finite),
      kinds(variables.size()),
      sparse_sums(variables.size()),
      kept_sums(variables.size()),
      gradients(num_replicas * variables.size()),
      given_kinds(num_replicas * variables.size()) {}

void BucketInputs::put(std::size_t replica, std::size_t variable, const Gradient& gradient) {
  of(replica, variable) = gradient;
  given_kinds[replica * variables.size() + variable] = kind_of(gradient);
}

const BucketPlan::Item& BucketInputs::item_of(std::size_t variable) const {
  const auto [bucket, item] = plan->places[variable];
  return plan->buckets[bucket].items[item];
}

bool BucketInputs::has_dense(std::size_t index) const {
  return std::ranges::any_of(bucket(index).items, [&](const BucketPlan::Item& item) {
    return kinds[item.variable] == GradientKind::kDense;
  });
}

GradientKind BucketInputs::unify(std::size_t variable) {
  bool any_dense = false, any_sparse = false;
  std::vector<std::size_t> without;
  for (std::size_t r = 0; r < num_replicas; ++r) {
    const GradientKind kind = given_kind(r, variable);
    any_dense = any_dense || kind == GradientKind::kDense;
    any_sparse = any_sparse || kind == GradientKind::kSparse;
    if (kind == GradientKind::kNone) without.push_back(r);
  }
  if (!any_dense && !any_sparse) return kinds[variable] = GradientKind::kNone;
  if (!without.empty()) {
    log_warning_once(concat("Variable '", variables[variable].name(),
                            "' has no gradient on replicas ", tutti::join(without),
                            " but has one on others; the missing gradients count as zeros"));
  }
  if (any_dense) make_dense(variable);
  return kinds[variable] = any_dense ? GradientKind::kDense : GradientKind::kSparse;
}

void BucketInputs::make_dense(std::size_t variable) {
  for (std::size_t r = 0; r < num_replicas; ++r) {
    Gradient& gradient = of(r, variable);
    if (gradient.is_dense()) continue;
    gradient = gradient.is_slices()
                   ? gradient.to_dense()
                   : Tensor::zeros(variables[variable].shape(), variables[variable].dtype(),
                                   services.replica_devices[r]);
  }
}

std::vector<IndexedSlices> BucketInputs::slices_of(std::size_t variable) const {
  const Shape& shape = variables[variable].shape();
  std::vector<IndexedSlices> slices;
  for (std::size_t r = 0; r < num_replicas; ++r) {
    const Gradient& gradient = of(r, variable);
    if (gradient.is_slices()) {
      slices.push_back(on_host(gradient).slices());
      continue;
    }
    slices.push_back({Tensor::zeros(shape.with_dim(0, 0), variables[variable].dtype()),
                      Tensor::zeros({0}, DType::kInt64), shape});
  }
  return slices;
}

void BucketInputs::sum_slices(std::size_t variable, std::vector<IndexedSlices> slices) {
  // IndexedSlices on GPUs are summed on the host, because only the host sorts rows.
  const Device first = services.replica_devices.front();
  const Device where = first.type == DeviceType::kGpu ? Device{} : first;
  IndexedSlices sum = sum_slices_canonically(slices, where);
  const auto count = static_cast<std::size_t>(sum.values.num_elements());
  if (checks() && count_non_finite(sum.values.dtype(), sum.values.bytes().data(), count) > 0) {
    note_slices(item_of(variable), slices, sum);
  }
  sparse_sums[variable] = std::move(sum);
}

const std::byte* BucketInputs::prepared(std::size_t replica, const Piece& piece, std::byte* copy) {
  const Tensor& gradient = of(replica, piece.item.variable).dense();
  const std::byte* const values =
      gradient.bytes().data() + piece.offset() * size_of(gradient.dtype());
  if (!compresses(piece.bucket)) return values;
  residuals->compress(replica, piece.bucket, piece.begin, reinterpret_cast<const float*>(values),
                      reinterpret_cast<float*>(copy), piece.count());
  return copy;
}

void BucketInputs::note(const BucketPlan::Item& item, std::size_t index, int replica) {
  non_finite.note({item.variable, static_cast<std::int64_t>(index), replica});
}

void BucketInputs::note_first(const Piece& piece, const std::byte* sum) {
  const DType dtype = bucket(piece.bucket).dtype;
  bool any = false;
  for (std::size_t r = 0; r < num_replicas; ++r) {
    const Gradient& gradient = of(r, piece.item.variable);
    if (!gradient.is_dense()) continue;  // the gradient is on another worker
    const Tensor values = on_host(gradient).dense();
    const auto found = first_non_finite(
        dtype, values.bytes().data() + piece.offset() * size_of(dtype), piece.count());
    if (!found) continue;
    note(piece.item, piece.offset() + *found, services.first_replica() + static_cast<int>(r));
    any = true;
  }
  if (any) return;
  const auto found = first_non_finite(dtype, sum, piece.count());
  if (found) note(piece.item, piece.offset() + *found, NonFiniteValue::kSum);
}

void BucketInputs::note_slices(const BucketPlan::Item& item, std::span<const IndexedSlices> slices,
                               const IndexedSlices& sum) {
  const auto note_in = [&](const IndexedSlices& each, int replica) {
    const auto count = static_cast<std::size_t>(each.values.num_elements());
    const auto found = first_non_finite(each.values.dtype(), each.values.bytes().data(), count);
    if (!found) return false;
    const std::size_t rows = static_cast<std::size_t>(each.indices.num_elements());
    const std::size_t width = count / rows;
    const auto row =
        static_cast<std::size_t>(each.indices.host_span<std::int64_t>()[*found / width]);
    note(item, row * width + *found % width, replica);
    return true;
  };
  bool any = false;
  for (std::size_t r = 0; r < slices.size(); ++r) {
    any = note_in(slices[r], static_cast<int>(r)) || any;
  }
  if (!any) note_in(sum, NonFiniteValue::kSum);
}

void BucketInputs::release_gradients(std::size_t index) {
  for_dense_items(index, [&](const Piece& piece) {
    for (std::size_t r = 0; r < num_replicas; ++r) of(r, piece.item.variable) = Gradient();
  });
}

void BucketInputs::search_sum(std::size_t index, const std::byte* sum) {
  if (!checks()) return;
  const DType dtype = bucket(index).dtype;
  for_dense_items(index, [&](const Piece& piece) {
    const std::byte* const values = sum + piece.begin * size_of(dtype);
    if (count_non_finite(dtype, values, piece.count()) > 0) note_first(piece, values);
  });
}

void BucketInputs::search_gradient(std::size_t variable) {
  const Gradient& gradient = of(0, variable);
  if (gradient.is_none()) return;
  const BucketPlan::Item& item = item_of(variable);
  const Gradient near = on_host(gradient);
  if (gradient.is_slices()) return note_slices(item, {&near.slices(), 1}, near.slices());
  const Tensor values = near.dense();
  const auto found = first_non_finite(values.dtype(), values.bytes().data(), item.count);
  if (found) note(item, *found, 0);
}

}  // namespace tutti::internal
