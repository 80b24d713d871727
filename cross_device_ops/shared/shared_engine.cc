// Collectives of threads on each other's memory.
// SPDX-License-Identifier: Apache-2.0
//
// Steps: all arrive; each part (group_parts.h) is done once, reading and writing all ranks' memory
// where it lies; all leave. Traffic of an all-reduce of S bytes per rank: size * S read and
// size * S written by all ranks together, the least for results in every rank's memory.
#include "tutti/cross_device_ops/shared/shared_engine.h"

#include <algorithm>

#include "tutti/cross_device_ops/shared/group_parts.h"
#include "tutti/cross_device_ops/shared/shared_group.h"

namespace tutti::internal {
namespace {

class SharedEngine final : public CollectiveEngine, private GroupCalls {
 public:
  SharedEngine(std::shared_ptr<SharedGroup> group, int rank)
      : group_(std::move(group)), rank_(rank), parts_(*this, group_->size()) {}
  ~SharedEngine() override {
    group_->set_state(rank_, nullptr);
    group_->close(Error(ErrorCode::kUnavailable,
                        concat("rank ", rank_, " has left the group of ", size(), " ranks")));
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  std::string_view name() const override { return "canonical"; }
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return !combines(collective) || can_combine(op, dtype);
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
  void require_same_call(const CollectiveCall& call) const;
  void do_parts(const CollectiveCall& call);

  // What the others have brought, for the parts.
  const SharedGroup::Seat& seat(int rank) const { return group_->seat(rank_, rank); }
  const CollectiveCall& call(int rank) const override { return seat(rank).call; }
  const CollectiveHeader& header(int rank) const override { return *seat(rank).header; }
  std::byte* output(int rank, std::size_t buffer) const override {
    return buffer == 0 ? seat(rank).first_output : seat(rank).outputs[buffer].data;
  }
  bool in_place(int rank) const override { return seat(rank).in_place; }

  const std::shared_ptr<SharedGroup> group_;
  const int rank_;
  bool told_state_ = false;  // tend()'s thread alone
  GroupParts parts_;
};

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
  const std::uint64_t expected = seat(0).fingerprint;
  for (int r = 1; r < size(); ++r) {
    if (seat(r).fingerprint == expected) continue;
    fail(ErrorCode::kInvalidArgument, mismatch_message(header(0), header(r)));
  }
  if (call.collective == Collective::kAllToAll) parts_.require_counts_fit();
}

void SharedEngine::do_parts(const CollectiveCall& call) {
  // In an all_to_all every rank has just looked into all others' memory, and so must stay.
  if (!group_->shares_parts() || call.collective == Collective::kAllToAll) {
    group_->take_own_part(rank_);
    parts_.do_part(call, rank_);
    group_->finish_part(rank_);
    return;
  }
  for (int part = group_->take_part(rank_); part >= 0; part = group_->take_part(rank_)) {
    parts_.do_part(call, part);
    group_->finish_part(rank_);
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
