// Collectives of threads on each other's memory.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: a call's buffers, one after the other, are its *elements*. *Part* r of a reduction of
// n elements is [n * r / size, n * (r + 1) / size), cut at multiples of 64 elements; of a copy it
// is rank r's result. Steps: all arrive; each part is done once, reading and writing all ranks'
// memory where it lies; all leave. Traffic of an all-reduce of S bytes per rank: size * S read and
// size * S written by all ranks together, the least for results in every rank's memory.
#include "tutti/cross_device_ops/shared/shared_engine.h"

#include <algorithm>
#include <cstring>

#include "tutti/cross_device_ops/shared/reduce_to_all.h"
#include "tutti/cross_device_ops/shared/shared_group.h"
#include "tutti/cross_device_ops/shared/update_pass.h"

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
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    const bool combines = collective == Collective::kAllReduce ||
                          collective == Collective::kReduce ||
                          collective == Collective::kReduceScatter;
    return !combines || dtype != DType::kBool || op == ReduceOp::kMin || op == ReduceOp::kMax;
  }
  Determinism determinism() const override { return Determinism::kCanonical; }
  bool fuses_updates() const override { return true; }

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
  const CollectiveCall& call_of(int rank) const { return group_->call(rank_, rank); }
  void require_same_call(const CollectiveCall& call) const;
  void require_counts_fit() const;
  void do_parts(const CollectiveCall& call);
  void do_part(const CollectiveCall& call, int part);
  void combine_part(const CollectiveCall& call, int part);
  void combine(const CollectiveCall& call, std::size_t buffer, std::size_t begin, std::size_t end);
  void update(const CollectiveCall& call, std::size_t buffer, std::size_t begin, std::size_t end,
              int part);
  void combine_for(int rank);
  void gather_for(int rank) const;
  void exchange_for(int rank) const;

  const std::shared_ptr<SharedGroup> group_;
  const int rank_;
  bool told_state_ = false;  // tend()'s thread alone
  // Starts of a range in every rank's memory, kept to spare the allocation.
  std::vector<const std::byte*> inputs_;
  std::vector<std::byte*> outputs_;
  std::vector<std::vector<std::byte*>> slots_;  // [slot][rank]
};

constexpr std::size_t kGrain = 64;  // elements

void copy_bytes(const std::byte* from, std::byte* to, std::size_t bytes) {
  if (bytes > 0 && from != to) std::memcpy(to, from, bytes);
}

void SharedEngine::run(const CollectiveCall& call, const CollectiveHeader& header,
                       TimePoint deadline) {
  group_->arrive(rank_, call, header, deadline);
  try {
    require_same_call(call);
  } catch (const Error& error) {
    // Every rank is here: all looked at the same headers.
    group_->close(error);
    group_->finish_part(rank_);
    group_->leave(rank_);
    throw;
  }
  do_parts(call);
  group_->leave(rank_);
}

void SharedEngine::require_same_call(const CollectiveCall& call) const {
  const std::uint64_t expected = group_->fingerprint(rank_, 0);
  for (int r = 1; r < size(); ++r) {
    if (group_->fingerprint(rank_, r) == expected) continue;
    fail(ErrorCode::kInvalidArgument,
         mismatch_message(group_->header(rank_, 0), group_->header(rank_, r)));
  }
  if (call.collective == Collective::kAllToAll) require_counts_fit();
}

void SharedEngine::require_counts_fit() const {
  for (int r = 0; r < size(); ++r) {
    for (int s = 0; s < size(); ++s) {
      const std::size_t sent = call_of(r).counts[index(s)];
      const std::size_t expected = call_of(s).receive_counts[index(r)];
      if (sent == expected) continue;
      fail(ErrorCode::kInvalidArgument, "collective mismatch (count): rank ", r, " sends ", sent,
           " elements to rank ", s, ", which expects ", expected, ": rank ", r, " calls ",
           group_->header(rank_, r).describe(), "; rank ", s, " calls ",
           group_->header(rank_, s).describe());
    }
  }
}

void SharedEngine::do_parts(const CollectiveCall& call) {
  // In an all_to_all every rank has just looked into all others' memory, and so must stay.
  if (!group_->shares_parts() || call.collective == Collective::kAllToAll) {
    group_->take_own_part();
    do_part(call, rank_);
    group_->finish_part(rank_);
    return;
  }
  for (int part = group_->take_part(rank_); part >= 0; part = group_->take_part(rank_)) {
    do_part(call, part);
    group_->finish_part(rank_);
  }
}

void SharedEngine::do_part(const CollectiveCall& call, int part) {
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kReduce:
      return combine_part(call, part);
    case Collective::kReduceScatter:
      return combine_for(part);
    case Collective::kBroadcast: {
      const Elements& data = call_of(part).outputs[0];
      return copy_bytes(call_of(call.root).outputs[0].data, data.data, data.num_bytes());
    }
    case Collective::kAllGather:
      return gather_for(part);
    case Collective::kAllToAll:
      return exchange_for(part);
    case Collective::kBarrier:
      return;
  }
}

void SharedEngine::combine_part(const CollectiveCall& call, int part) {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t begin = call.count * index(part) / ranks;
  const std::size_t end = call.count * index(part + 1) / ranks;
  const bool is_last = index(part) + 1 == ranks;
  std::size_t first = 0;  // of the buffer, among all elements
  for (std::size_t b = 0; b < call.inputs.size() && first < end; ++b) {
    const std::size_t count = call.inputs[b].count;
    // A part ends inside a buffer where a cache line of most buffers does.
    const auto cut = [&](std::size_t place) {
      return place >= first + count ? count
             : place <= first       ? 0
                                    : (place - first) / kGrain * kGrain;
    };
    const std::size_t from = cut(begin);
    const std::size_t to = is_last ? count : cut(end);
    if (from < to && call.update == nullptr) combine(call, b, from, to);
    if (from < to && call.update != nullptr) update(call, b, from, to, part);
    first += count;
  }
}

void SharedEngine::combine(const CollectiveCall& call, std::size_t buffer, std::size_t begin,
                           std::size_t end) {
  const std::size_t size_of_element = size_of(call.dtype);
  const std::size_t offset = begin * size_of_element;
  for (int r = 0; r < size(); ++r) {
    if (call.collective == Collective::kAllReduce) {
      outputs_[index(r)] = group_->output(rank_, r, buffer) + offset;
      inputs_[index(r)] = outputs_[index(r)];
      // In place one list is read instead of two: each costs a cache miss.
      if (group_->in_place(rank_, r)) continue;
    }
    inputs_[index(r)] = call_of(r).inputs[buffer].data + offset;
  }
  if (call.collective == Collective::kAllReduce) {
    return reduce_to_all(call.op, call.dtype, inputs_, outputs_, end - begin);
  }
  std::byte* const result = call_of(call.root).outputs[0].data + offset;
  reduce_along_tree(call.op, call.dtype, inputs_, result, end - begin);
}

void SharedEngine::update(const CollectiveCall& call, std::size_t buffer, std::size_t begin,
                          std::size_t end, int part) {
  const std::size_t offset = begin * size_of(call.dtype);
  slots_.resize(call.update->slots.size(), std::vector<std::byte*>(index(size())));
  for (int r = 0; r < size(); ++r) {
    const CollectiveCall& other = call_of(r);
    inputs_[index(r)] = other.inputs[buffer].data + offset;
    outputs_[index(r)] = other.update->weights[buffer].data + offset;
    for (std::size_t s = 0; s < slots_.size(); ++s) {
      slots_[s][index(r)] = other.update->slots[s][buffer].data + offset;
    }
  }
  // Weights that no cache holds until their next use are better stored past them.
  constexpr std::size_t kCaches = 16 << 20;
  const std::size_t copies = index(size()) * (1 + slots_.size());
  sum_and_update(*call.update->rule, call.update->scalars, call.mean,
                 call.count * size_of(call.dtype) * copies > kCaches,
                 {call.dtype, end - begin, inputs_, outputs_, slots_, index(part)});
}

void SharedEngine::combine_for(int rank) {
  const CollectiveCall& own = call_of(rank);
  std::size_t begin = 0;
  for (int r = 0; r < rank; ++r) begin += own.counts[index(r)];
  for (int r = 0; r < size(); ++r) {
    inputs_[index(r)] = call_of(r).inputs[0].data + begin * size_of(own.dtype);
  }
  reduce_along_tree(own.op, own.dtype, inputs_, own.outputs[0].data, own.outputs[0].count);
}

void SharedEngine::gather_for(int rank) const {
  std::byte* place = call_of(rank).outputs[0].data;
  for (int r = 0; r < size(); ++r) {
    const ConstElements& part = call_of(r).inputs[0];
    copy_bytes(part.data, place, part.num_bytes());
    place += part.num_bytes();
  }
}

void SharedEngine::exchange_for(int rank) const {
  const CollectiveCall& own = call_of(rank);
  std::byte* place = own.outputs[0].data;
  for (int r = 0; r < size(); ++r) {
    const CollectiveCall& other = call_of(r);
    std::size_t begin = 0;
    for (int s = 0; s < rank; ++s) begin += other.counts[index(s)];
    const std::size_t bytes = own.receive_counts[index(r)] * size_of(own.dtype);
    copy_bytes(other.inputs[0].data + begin * size_of(own.dtype), place, bytes);
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
