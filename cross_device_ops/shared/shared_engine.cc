// Collectives of threads on each other's memory.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: a call's buffers, one after the other, are its *elements*. Rank r's *part* of n
// elements is [n * r / size, n * (r + 1) / size), cut at multiples of 64 elements. Steps: all
// arrive; every rank reads what it needs where it lies and writes its part (reductions) or its own
// result (copies); all depart. Traffic of an all-reduce of S bytes per rank: size * S read, size *
// S written, by all ranks together: the least for results in every rank's memory.
#include "tutti/cross_device_ops/shared/shared_engine.h"

#include <algorithm>
#include <cstring>

#include "tutti/cross_device_ops/shared/reduce_to_all.h"
#include "tutti/cross_device_ops/shared/shared_group.h"

namespace tutti::internal {
namespace {

class SharedEngine final : public CollectiveEngine {
 public:
  SharedEngine(std::shared_ptr<SharedGroup> group, int rank)
      : group_(std::move(group)), rank_(rank), inputs_(index(size())), outputs_(index(size())) {}
  ~SharedEngine() override {
    group_->set_state(rank_, nullptr);
    group_->close(Error(ErrorCode::kUnavailable,
                        concat("rank ", rank_, " has left the group of ", size(), " ranks")));
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  std::string_view name() const override { return "canonical"; }
  bool supports(Collective, ReduceOp op, DType dtype) const override {
    return dtype != DType::kBool || op == ReduceOp::kMin || op == ReduceOp::kMax;
  }
  Determinism determinism() const override { return Determinism::kCanonical; }

  void run(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline) override;
  void abort(const Error& reason) noexcept override {
    group_->close(Error(ErrorCode::kAborted, reason.message()));
  }
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override {
    const auto own = std::ranges::find(ranks, rank_) - ranks.begin();
    return std::make_unique<SharedEngine>(group_->subgroup(ranks, number), static_cast<int>(own));
  }
  void tend(const std::function<std::string()>& own_state) override {
    if (!told_state_) group_->set_state(rank_, own_state);
    told_state_ = true;
  }
  std::vector<std::string> whereabouts(TimePoint) override {
    std::vector<std::string> states = group_->states();
    states[index(rank_)].clear();
    return states;
  }

 private:
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  void require_same_call() const;
  void work(const CollectiveCall& call);
  void combine_parts(const CollectiveCall& call);
  void combine(const CollectiveCall& call, std::size_t buffer, std::size_t begin, std::size_t end);
  void combine_own_part(const CollectiveCall& call);
  void gather(const CollectiveCall& call) const;
  void exchange(const CollectiveCall& call) const;

  const std::shared_ptr<SharedGroup> group_;
  const int rank_;
  bool told_state_ = false;  // tend()'s thread alone
  // Starts of a range in every rank's memory, kept to spare the allocation.
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
};

void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes) {
  if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
}

void SharedEngine::run(const CollectiveCall& call, const CollectiveHeader& header,
                       TimePoint deadline) {
  group_->arrive(rank_, call, header, deadline);
  try {
    require_same_call();
    work(call);
  } catch (const Error& error) {
    group_->close(error);
    group_->depart(rank_);
    throw;
  }
  group_->depart(rank_);
}

// All ranks look at the same headers, so all of them throw the same message.
void SharedEngine::require_same_call() const {
  const std::uint64_t expected = group_->fingerprint(0);
  for (int r = 1; r < size(); ++r) {
    if (group_->fingerprint(r) == expected) continue;
    fail(ErrorCode::kInvalidArgument, mismatch_message(group_->header(0), group_->header(r)));
  }
  if (group_->header(0).collective != Collective::kAllToAll) return;
  for (int r = 0; r < size(); ++r) {
    for (int s = 0; s < size(); ++s) {
      const std::size_t sent = group_->call(r).counts[index(s)];
      const std::size_t expected_count = group_->call(s).receive_counts[index(r)];
      if (sent == expected_count) continue;
      fail(ErrorCode::kInvalidArgument, "collective mismatch (count): rank ", r, " sends ", sent,
           " elements to rank ", s, ", which expects ", expected_count, ": ",
           group_->header(r).describe(), "; ", group_->header(s).describe());
    }
  }
}

void SharedEngine::work(const CollectiveCall& call) {
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
      return combine_parts(call);
    case Collective::kReduceScatter:
      return combine_own_part(call);
    case Collective::kBroadcast:
      return copy_bytes(group_->call(call.root).outputs[0].data, call.outputs[0].data,
                        call.outputs[0].num_bytes());
    case Collective::kAllGather:
      return gather(call);
    case Collective::kAllToAll:
      return exchange(call);
    case Collective::kBarrier:
      return;
  }
}

void SharedEngine::combine_parts(const CollectiveCall& call) {
  constexpr std::size_t kGrain = 64;
  const auto ranks = static_cast<std::size_t>(size());
  const auto cut = [&](std::size_t part) {
    return part == ranks ? call.count : call.count * part / ranks / kGrain * kGrain;
  };
  const std::size_t begin = cut(index(rank_));
  const std::size_t end = cut(index(rank_) + 1);
  std::size_t first = 0;  // of the buffer, among all elements
  for (std::size_t b = 0; b < call.inputs.size() && first < end; ++b) {
    const std::size_t last = first + call.inputs[b].count;
    if (last > begin) combine(call, b, std::max(begin, first) - first, std::min(end, last) - first);
    first = last;
  }
}

void SharedEngine::combine(const CollectiveCall& call, std::size_t buffer, std::size_t begin,
                           std::size_t end) {
  if (begin >= end) return;
  const std::size_t size_of_element = size_of(call.dtype);
  for (int r = 0; r < size(); ++r) {
    const CollectiveCall& other = group_->call(r);
    inputs_[index(r)] = other.inputs[buffer].data + begin * size_of_element;
    if (call.collective == Collective::kAllReduce) {
      outputs_[index(r)] = other.outputs[buffer].data + begin * size_of_element;
    }
  }
  if (call.collective == Collective::kAllReduce) {
    return reduce_to_all(call.op, call.dtype, inputs_, outputs_, end - begin);
  }
  std::byte* const result = group_->call(call.root).outputs[0].data + begin * size_of_element;
  reduce_along_tree(call.op, call.dtype, inputs_, result, end - begin);
}

void SharedEngine::combine_own_part(const CollectiveCall& call) {
  std::size_t begin = 0;
  for (int r = 0; r < rank_; ++r) begin += call.counts[index(r)];
  for (int r = 0; r < size(); ++r) {
    inputs_[index(r)] = group_->call(r).inputs[0].data + begin * size_of(call.dtype);
  }
  reduce_along_tree(call.op, call.dtype, inputs_, call.outputs[0].data, call.outputs[0].count);
}

void SharedEngine::gather(const CollectiveCall& call) const {
  std::byte* place = call.outputs[0].data;
  for (int r = 0; r < size(); ++r) {
    const ConstElements& part = group_->call(r).inputs[0];
    copy_bytes(part.data, place, part.num_bytes());
    place += part.num_bytes();
  }
}

void SharedEngine::exchange(const CollectiveCall& call) const {
  std::byte* place = call.outputs[0].data;
  for (int r = 0; r < size(); ++r) {
    const CollectiveCall& other = group_->call(r);
    std::size_t begin = 0;
    for (int s = 0; s < rank_; ++s) begin += other.counts[index(s)];
    const std::size_t bytes = call.receive_counts[index(r)] * size_of(call.dtype);
    copy_bytes(other.inputs[0].data + begin * size_of(call.dtype), place, bytes);
    place += bytes;
  }
}

}  // namespace

std::vector<std::unique_ptr<CollectiveEngine>> shared_engines(int size) {
  const auto group = std::make_shared<SharedGroup>(size);
  std::vector<std::unique_ptr<CollectiveEngine>> engines;
  for (int rank = 0; rank < size; ++rank) {
    engines.push_back(std::make_unique<SharedEngine>(group, rank));
  }
  return engines;
}

}  // namespace tutti::internal
