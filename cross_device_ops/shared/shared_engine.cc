// Collectives on memory that all ranks reach.
// SPDX-License-Identifier: Apache-2.0
//
// Steps: all show their calls and arrive. What is shown inline a rank combines or copies for
// itself, and is done. Else each part (group_parts.h) is done once, reading and writing all ranks'
// memory where it lies, and all leave. Traffic of such an all-reduce of S bytes per rank: size * S
// read and size * S written by all ranks together, the least for results in every rank's memory.
#include "cross_device_ops/shared/shared_engine.h"

#include <algorithm>

#include "cross_device_ops/algorithms/message_engine.h"
#include "cross_device_ops/shared/group_parts.h"
#include "cross_device_ops/shared/staged_reduction.h"
#include "cross_device_ops/shared/thread_group.h"
#include "cross_device_ops/shared/window_calls.h"

namespace tutti::internal {
namespace {

class SharedEngine : public CollectiveEngine {
 public:
  template <class... Arguments>
  explicit SharedEngine(Arguments... of_group)
      : group_(std::move(of_group)...),
        calls_(group_),
        parts_(calls_, group_.size()),
        staged_(group_) {}

  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return !combines(collective) || can_combine(op, dtype);
  }
  Determinism determinism() const override { return Determinism::kCanonical; }

  void run(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline) override;
  void abort(const Error& reason) noexcept override {
    group_.close(Error(ErrorCode::kAborted, reason.message()));
  }
  std::optional<Error> failure_of_peer() override { return group_.failure(); }

 protected:
  /// A call that the ranks cannot do on each other's memory.
  virtual void run_otherwise(const CollectiveCall& call, const CollectiveHeader& header,
                             TimePoint deadline) = 0;

 private:
  void require_same_call(const CollectiveCall& call);
  void run_inline(const CollectiveCall& call);
  void run_in_place(const CollectiveCall& call, TimePoint deadline);

  WindowGroup group_;
  WindowCalls calls_;
  GroupParts parts_;
  StagedReduction staged_;
};

void SharedEngine::run(const CollectiveCall& call, const CollectiveHeader& header,
                       TimePoint deadline) {
  group_.begin_round(header, deadline);
  calls_.show(call, header);
  group_.arrive(header, deadline);
  try {
    require_same_call(call);
  } catch (const Error& error) {
    // Every rank is here and sees the same.
    group_.close(error);
    throw;
  }
  switch (calls_.way()) {
    case WindowCalls::Way::kInline:
      return run_inline(call);
    case WindowCalls::Way::kShared:
      return run_in_place(call, deadline);
    case WindowCalls::Way::kNeither:
      if (call.collective == Collective::kAllReduce) return staged_.run(call, deadline);
      return run_otherwise(call, header, deadline);
  }
}

void SharedEngine::require_same_call(const CollectiveCall& call) {
  const auto fingerprint_of = [this](int rank) {
    return group_.window(rank).seat(group_.round()).fingerprint;
  };
  const std::uint64_t expected = fingerprint_of(0);
  for (int r = 1; r < size(); ++r) {
    if (fingerprint_of(r) == expected) continue;
    fail(ErrorCode::kInvalidArgument, mismatch_message(calls_.header(0), calls_.header(r)));
  }
  if (call.collective == Collective::kAllToAll) parts_.require_counts_fit();
}

/// This rank's result out of what all have shown: a copy, so none waits for it.
void SharedEngine::run_inline(const CollectiveCall& call) {
  if (call.collective == Collective::kAllReduce || call.collective == Collective::kReduce) {
    return calls_.combine_inline(call);
  }
  parts_.do_part(call, rank());
}

void SharedEngine::run_in_place(const CollectiveCall& call, TimePoint deadline) {
  group_.begin_parts();
  if (group_.shares_parts()) {
    for (int part = group_.take_part(); part >= 0; part = group_.take_part()) {
      parts_.do_part(call, part);
      group_.finish_part();
    }
  } else {
    parts_.do_part(call, rank());
    group_.finish_part();
  }
  group_.leave(deadline);
}

class ThreadEngine final : public SharedEngine {
 public:
  ThreadEngine(std::shared_ptr<ThreadGroup> group, int rank)
      : SharedEngine(group, rank), threads_(std::move(group)) {}
  ~ThreadEngine() override { threads_->set_state(rank(), nullptr); }

  std::string_view name() const override { return "canonical"; }
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override {
    const auto own = std::ranges::find(ranks, rank()) - ranks.begin();
    return std::make_unique<ThreadEngine>(threads_->subgroup(ranks, number), static_cast<int>(own));
  }
  void tend(const std::function<std::string()>& own_state) override {
    if (!told_state_) threads_->set_state(rank(), own_state);
    told_state_ = true;
  }
  std::vector<std::string> whereabouts(TimePoint) override {
    std::vector<std::string> states = threads_->states();
    states[static_cast<std::size_t>(rank())].clear();
    return states;
  }

 private:
  void run_otherwise(const CollectiveCall& call, const CollectiveHeader&, TimePoint) override {
    fail(ErrorCode::kInternal, to_string(call.collective), ": threads reach all memory");
  }

  const std::shared_ptr<ThreadGroup> threads_;
  bool told_state_ = false;  // tend()'s thread alone
};

class WindowEngine final : public SharedEngine {
 public:
  WindowEngine(std::string_view name, RankLink link, std::unique_ptr<CollectiveEngine> messages)
      : SharedEngine(link, link.transport->host_memory()),
        name_(name),
        link_(std::move(link)),
        messages_(std::move(messages)),
        allocator_(allocator_in(link_.transport->host_memory())) {}

  std::string_view name() const override { return name_; }
  std::shared_ptr<BufferAllocator> allocator() override { return allocator_; }
  std::optional<Error> failure_of_peer() override {
    if (const auto failure = SharedEngine::failure_of_peer()) return failure;
    return messages_->failure_of_peer();
  }
  void abort(const Error& reason) noexcept override {
    SharedEngine::abort(reason);
    messages_->abort(reason);
  }
  std::unique_ptr<CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                             std::uint32_t number) override {
    return std::make_unique<WindowEngine>(name_, link_.subgroup(ranks, number),
                                          messages_->subgroup(ranks, number));
  }
  void tend(const std::function<std::string()>& own_state) override { messages_->tend(own_state); }
  std::vector<std::string> whereabouts(TimePoint deadline) override {
    return messages_->whereabouts(deadline);
  }

 private:
  void run_otherwise(const CollectiveCall& call, const CollectiveHeader& header,
                     TimePoint deadline) override {
    messages_->run(call, header, deadline);
  }

  const std::string_view name_;  // a literal
  const RankLink link_;
  const std::unique_ptr<CollectiveEngine> messages_;
  const std::shared_ptr<BufferAllocator> allocator_;
};

}  // namespace

std::vector<std::unique_ptr<CollectiveEngine>> shared_engines(int size) {
  const auto group = std::make_shared<ThreadGroup>(size);
  std::vector<std::unique_ptr<CollectiveEngine>> engines;
  for (int rank = 0; rank < size; ++rank) {
    engines.push_back(std::make_unique<ThreadEngine>(group, rank));
  }
  return engines;
}

std::unique_ptr<CollectiveEngine> window_engine(std::shared_ptr<Transport> transport,
                                                std::string_view name) {
  const std::string_view literal = name == "auto" ? "auto" : "canonical";
  RankLink link = link_all(transport);
  return std::make_unique<WindowEngine>(literal, std::move(link),
                                        message_engine(std::move(transport), "canonical"));
}

}  // namespace tutti::internal
