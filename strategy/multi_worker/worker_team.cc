// The workers that train together.
// SPDX-License-Identifier: Apache-2.0
//
// Sums of gradients. Each worker adds its replicas' gradients along the largest whole subtrees of
// the canonical tree that they fill (*nodes*). If every worker's replicas are one node, and all of
// one size, the canonical tree over the workers' sums is the rest of the tree over replicas, and
// one all_reduce does it. Otherwise each worker gets *slice* w of all nodes' sums (all_to_all),
// combines them along the tree, and the slices are gathered. Where an algorithm without order was
// named each worker's sum is one buffer.
#include "tutti/strategy/multi_worker/worker_team.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <numeric>
#include <sstream>

#include "tutti/core/error.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/buffer.h"

namespace tutti::internal {
namespace {

/// Bytes of a gathered value that travel with its length.
constexpr std::size_t kInlineBytes = 248;
/// Under which a job remembers how many replicas each worker has.
constexpr const char* kReplicasKey = "workers/replicas";

struct Announcement {
  std::uint64_t size = 0;
  char first[kInlineBytes] = {};
};
static_assert(sizeof(Announcement) == 256);

std::vector<int> all_workers(int count) {
  std::vector<int> workers(static_cast<std::size_t>(count));
  std::iota(workers.begin(), workers.end(), 0);
  return workers;
}

ConstElements bytes_of(const void* data, std::size_t size) {
  return {static_cast<const std::byte*>(data), size, DType::kUInt8};
}
Elements bytes_of(void* data, std::size_t size) {
  return {static_cast<std::byte*>(data), size, DType::kUInt8};
}

std::size_t to_size(int number) { return static_cast<std::size_t>(number); }

}  // namespace

WorkerTeam::WorkerTeam(std::unique_ptr<Communicator> communicator, int num_local_replicas)
    : worker_(communicator->rank()),
      num_workers_(communicator->size()),
      num_local_replicas_(num_local_replicas) {
  begin(std::move(communicator));
}

WorkerTeam::WorkerTeam(std::shared_ptr<WorkerGroup> group, const CommunicatorOptions& options,
                       int num_local_replicas)
    : group_(std::move(group)),
      options_(options),
      worker_(group_->worker()),
      num_workers_(group_->num_workers()),
      num_local_replicas_(num_local_replicas),
      algorithm_(options.algorithm) {
  if (!group_->is_replacement()) {
    begin(group_->make_communicator(options_));
    return;
  }
  std::istringstream counts(group_->remembered(kReplicasKey));
  set_replicas({std::istream_iterator<std::int32_t>(counts), {}});
}

void WorkerTeam::begin(std::unique_ptr<Communicator> communicator) {
  values_ = std::move(communicator);
  sums_ = values_->group(all_workers(num_workers_), {.name = "sums of gradients"});
  algorithm_ = sums_->name();
  allocator_ = sums_->allocator();
  is_canonical_ = sums_->determinism() == Determinism::kCanonical;
  std::vector<std::int32_t> counts(to_size(num_workers()));
  const auto own = static_cast<std::int32_t>(num_local_replicas_);
  values_->all_gather(ConstElements(std::span(&own, 1)), Elements(std::span(counts)), {},
                      {.name = "numbers of replicas"});
  set_replicas(counts);
  if (group_) watches_ = {group_->watch(*values_, "values"), group_->watch(*sums_, "gradients")};
  if (group_) group_->remember(kReplicasKey, join(counts, " "));
}

void WorkerTeam::set_replicas(const std::vector<std::int32_t>& counts) {
  first_of_ = {0};
  for (const std::int32_t count : counts) first_of_.push_back(first_of_.back() + count);
  by_parts_ = false;
  partial_sums_ = {{0, num_local_replicas_}};
  if (!is_canonical_) return;
  partial_sums_ = nodes_of(worker());
  const auto is_like_first = [&](std::int32_t count) { return count == counts.front(); };
  by_parts_ = num_workers() > 1 && (!std::ranges::all_of(counts, is_like_first) ||
                                    !std::has_single_bit(static_cast<unsigned>(counts.front())));
}

bool WorkerTeam::has_lost_a_worker(Duration patience) const {
  return group_ && group_->has_lost_a_worker(patience);
}

void WorkerTeam::reconnect(TimePoint deadline) {
  if (!group_) {
    fail(ErrorCode::kFailedPrecondition,
         "WorkerTeam::reconnect: these workers were connected by a communicator of the caller; "
         "expected a job with a control server; try a ClusterResolver");
  }
  watches_.clear();
  allocator_.reset();
  sums_.reset();
  values_.reset();
  group_->reconnect(deadline);
  begin(group_->make_communicator(options_));
}

Communicator& WorkerTeam::values() const {
  if (values_) return *values_;
  fail(ErrorCode::kFailedPrecondition, "worker ", worker_,
       ": this process takes the place of one that died, and has not got its state yet; expected "
       "Recovery::run() first; try it around the training loop");
}

std::vector<CanonicalNode> WorkerTeam::nodes_of(int worker) const {
  const int first = first_of_[to_size(worker)];
  std::vector<CanonicalNode> nodes =
      canonical_nodes(first, first_of_[to_size(worker) + 1] - first, num_replicas());
  for (CanonicalNode& node : nodes) node.first -= first;
  return nodes;
}

int WorkerTeam::worker_of(int replica) const {
  const auto next = std::ranges::upper_bound(first_of_, replica);
  return static_cast<int>(next - first_of_.begin()) - 1;
}

std::vector<std::string> WorkerTeam::exchange(std::string_view own, std::string_view name) {
  Announcement announcement{own.size()};
  std::memcpy(announcement.first, own.data(), std::min(own.size(), kInlineBytes));
  std::vector<Announcement> all(to_size(num_workers()));
  values().all_gather(bytes_of(&announcement, sizeof announcement),
                      bytes_of(all.data(), all.size() * sizeof announcement), {}, {.name = name});
  const bool is_short =
      std::ranges::all_of(all, [](const Announcement& each) { return each.size <= kInlineBytes; });
  std::vector<std::size_t> sizes;
  for (const Announcement& each : all) sizes.push_back(each.size);
  std::vector<std::string> texts;
  if (is_short) {
    for (const Announcement& each : all) texts.emplace_back(each.first, each.size);
    return texts;
  }
  std::string joined(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), '\0');
  values().all_gather(bytes_of(own.data(), own.size()), bytes_of(joined.data(), joined.size()),
                      sizes, {.name = name});
  std::size_t first = 0;
  for (const std::size_t size : sizes) {
    texts.push_back(joined.substr(first, size));
    first += size;
  }
  return texts;
}

std::vector<std::string> WorkerTeam::gather_texts(std::string_view own, std::string_view name) {
  return exchange(own, name);
}

std::string WorkerTeam::broadcast_text(const std::string& own, int giver, std::string_view name) {
  std::uint64_t size = own.size();
  values().broadcast(bytes_of(&size, sizeof size), giver, {.name = name});
  std::string text = worker() == giver ? own : std::string(size, '\0');
  values().broadcast(bytes_of(text.data(), text.size()), giver, {.name = name});
  return text;
}

ReplicaValues WorkerTeam::gather(const ReplicaValues& local, std::string_view name) {
  ReplicaValues all;
  const std::vector<std::string> encoded = exchange(encode_values(local), name);
  for (std::size_t w = 0; w < encoded.size(); ++w) {
    ReplicaValues values = decode_values(encoded[w]);
    const auto expected = to_size(first_of_[w + 1] - first_of_[w]);
    if (values.size() != expected) {
      fail(ErrorCode::kDataLoss, name, ": worker ", w, " gave the values of ", values.size(),
           " replicas; expected ", expected);
    }
    std::ranges::move(values, std::back_inserter(all));
  }
  return all;
}

std::vector<Tensor> WorkerTeam::gather_tensors(std::span<const Tensor> local,
                                               std::string_view name) {
  ReplicaValues values;
  for (const Tensor& value : local) values.push_back({value});
  std::vector<Tensor> all;
  for (std::vector<Gradient>& value : gather(values, name)) {
    all.push_back(value.at(0).dense());
  }
  return all;
}

DType WorkerTeam::sum_dtype(DType dtype) {
  return dtype == DType::kBFloat16 || dtype == DType::kFloat16 ? DType::kFloat32 : dtype;
}

MutableTensor WorkerTeam::make_buffer(std::size_t count, DType dtype) {
  const Shape shape{static_cast<std::int64_t>(count)};
  if (!allocator_) return {shape, dtype, Device{}};
  try {
    return {shape, dtype, *allocator_};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted) throw;
    // Right, but each sum then copies it through a window.
    log_warning_once(concat("Sums of gradients are slower than they could be: ", error.message()));
    return {shape, dtype, Device{}};
  }
}

BufferRef WorkerTeam::allocate(std::size_t bytes) {
  return make_buffer(bytes, DType::kUInt8).buffer();
}

CollectiveHandle WorkerTeam::start_sum(std::span<const Elements> partials, std::string_view name) {
  if (!by_parts_) return sums_->start_all_reduce(ReduceOp::kSum, partials[0], {.name = name});
  sum_by_parts(partials, name);
  return {};
}

void WorkerTeam::sum_by_parts(std::span<const Elements> partials, std::string_view name) {
  const std::size_t workers = to_size(num_workers());
  const std::size_t count = partials[0].count;
  const DType dtype = partials[0].dtype;
  const std::size_t element = size_of(dtype);
  const auto begin_of = [&](std::size_t w) { return count * w / workers; };
  const auto slice_of = [&](std::size_t w) { return begin_of(w + 1) - begin_of(w); };

  // Slice w of each partial sum, in worker order.
  const BufferRef sent = allocate(count * partials.size() * element);
  std::vector<std::size_t> send_counts, receive_counts;
  std::byte* place = sent->data();
  for (std::size_t w = 0; w < workers; ++w) {
    for (const Elements& partial : partials) {
      std::memcpy(place, partial.data + begin_of(w) * element, slice_of(w) * element);
      place += slice_of(w) * element;
    }
    send_counts.push_back(slice_of(w) * partials.size());
  }
  const auto own = to_size(worker());
  std::vector<CanonicalNode> nodes;
  for (std::size_t w = 0; w < workers; ++w) {
    const std::vector<CanonicalNode> of_worker = nodes_of(static_cast<int>(w));
    for (CanonicalNode node : of_worker) {
      node.first += first_of_[w];
      nodes.push_back(node);
    }
    receive_counts.push_back(slice_of(own) * of_worker.size());
  }
  const std::size_t received_count = slice_of(own) * nodes.size();
  const BufferRef received = allocate(received_count * element);
  sums_->all_to_all({sent->data(), count * partials.size(), dtype},
                    Elements{received->data(), received_count, dtype}, send_counts, receive_counts,
                    {.name = name});
  std::vector<const std::byte*> inputs;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    inputs.push_back(received->data() + n * slice_of(own) * element);
  }
  std::byte* const result = partials[0].data + begin_of(own) * element;
  combine_nodes(ReduceOp::kSum, dtype, nodes, inputs, result, slice_of(own));

  std::vector<std::size_t> slices;
  for (std::size_t w = 0; w < workers; ++w) slices.push_back(slice_of(w));
  const BufferRef own_slice = allocate(slice_of(own) * element);
  std::memcpy(own_slice->data(), result, slice_of(own) * element);
  sums_->all_gather({own_slice->data(), slice_of(own), dtype}, partials[0], slices, {.name = name});
}

void WorkerTeam::set_step(std::uint64_t step) {
  if (group_) group_->set_step(step);
}

void WorkerTeam::abort(const Error& reason) noexcept {
  if (values_) values_->abort(reason);
  if (sums_) sums_->abort(reason);
}

}  // namespace tutti::internal
