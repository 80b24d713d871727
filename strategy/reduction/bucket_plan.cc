// Divides variable lists into buckets, and buckets into slices.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/bucket_plan.h"

#include <algorithm>
#include <map>
#include <utility>

#include "strategy/reduction/bucket_sums.h"
#include "strategy/reduction/gradient_filters.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kFirstBucketBytes = std::size_t{1} << 20;
constexpr std::size_t kDefaultBucketBytes = std::size_t{4} << 20;
constexpr std::size_t kSmallestSliceBytes = std::size_t{16} << 10;
constexpr std::size_t kMostPlans = 16;

std::size_t rounded_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

std::vector<std::uint64_t> ids_of(std::span<const Variable> variables) {
  std::vector<std::uint64_t> ids;
  ids.reserve(variables.size());
  for (const Variable& variable : variables) ids.push_back(variable.storage().id());
  return ids;
}

BucketPlan BucketPlan::make(std::span<const Variable> variables, std::int64_t bytes_per_pack,
                            std::int64_t first_bytes_per_pack) {
  const std::size_t full =
      bytes_per_pack > 0 ? static_cast<std::size_t>(bytes_per_pack) : kDefaultBucketBytes;
  const std::size_t first = first_bytes_per_pack > 0
                                ? static_cast<std::size_t>(first_bytes_per_pack)
                                : std::min(full, kFirstBucketBytes);
  BucketPlan plan;
  plan.variable_ids = ids_of(variables);
  plan.places.resize(variables.size());
  using Kind = std::pair<DType, bool>;  // kind of variables in one bucket
  std::map<Kind, std::size_t> open;     // index of the bucket that still accepts variables
  std::map<Kind, std::size_t> limit;    // size, in bytes, at which the open bucket closes
  for (std::size_t i = variables.size(); i-- > 0;) {
    const DType dtype = variables[i].dtype();
    const Kind kind{dtype, shards_of(variables[i]) != nullptr};
    auto found = open.find(kind);
    if (found == open.end()) {
      found = open.emplace(kind, plan.buckets.size()).first;
      plan.buckets.push_back({dtype, 0, {}});
    }
    Bucket& bucket = plan.buckets[found->second];
    const auto count = static_cast<std::size_t>(variables[i].shape().num_elements());
    plan.places[i] = {found->second, bucket.items.size()};
    bucket.items.push_back({i, bucket.count, count});
    bucket.count += rounded_up(count, kAlignment / size_of(dtype));
    const std::size_t bytes = limit.try_emplace(kind, first).first->second;
    if (bucket.count * size_of(dtype) < bytes) continue;
    open.erase(found);
    limit[kind] = full;
  }
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    Bucket& bucket = plan.buckets[b];
    bucket.id = 0xCBF29CE484222325u;  // FNV-1a
    for (const Item& item : bucket.items) {
      bucket.id = (bucket.id ^ plan.variable_ids[item.variable]) * 0x100000001B3u;
    }
    bucket.name = concat("gradients ", b + 1, "/", plan.buckets.size(), " ",
                         variables[bucket.items.front().variable].name());
  }
  return plan;
}

std::vector<SliceRange> cut_slices(std::size_t count, std::size_t element_size, int num_replicas) {
  const std::size_t bytes = count * element_size;
  const std::size_t parts = std::clamp<std::size_t>(bytes / kSmallestSliceBytes, 1,
                                                    static_cast<std::size_t>(num_replicas));
  const std::size_t length = rounded_up((count + parts - 1) / parts, kAlignment / element_size);
  std::vector<SliceRange> slices;
  for (std::size_t begin = 0; begin < count; begin += length) {
    slices.push_back({begin, std::min(count, begin + length)});
  }
  return slices;
}

PlanInUse& BucketPlans::find_or_make(std::span<const Variable> variables,
                                     const CommunicationOptions& options, std::size_t num_senders) {
  const std::vector<std::uint64_t> ids = ids_of(variables);
  const auto found = std::ranges::find_if(
      plans_, [&](const PlanInUse& each) { return each.plan->variable_ids == ids; });
  if (found != plans_.end()) {
    std::rotate(plans_.begin(), found, found + 1);
    return plans_.front();
  }
  require_compressible(options.compression, variables);
  PlanInUse made;
  made.plan = std::make_shared<const BucketPlan>(
      BucketPlan::make(variables, options.bytes_per_pack, options.first_bytes_per_pack));
  if (options.compression != WireCompression::kNone && num_senders > 0) {
    made.residuals = std::make_shared<Residuals>(options.compression, *made.plan, num_senders);
  }
  plans_.insert(plans_.begin(), std::move(made));
  if (plans_.size() > kMostPlans) plans_.pop_back();
  return plans_.front();
}

}  // namespace tutti::internal
