// Collectives of processes of one host on memory that all of them map.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/shared/shared_engine.h"

#include "tutti/cross_device_ops/algorithms/message_engine.h"
#include "tutti/cross_device_ops/shared/group_parts.h"
#include "tutti/cross_device_ops/shared/staged_reduction.h"
#include "tutti/cross_device_ops/shared/window_calls.h"
#include "tutti/cross_device_ops/shared/window_group.h"

namespace tutti::internal {
namespace {

class WindowEngine final : public CollectiveEngine {
 public:
  WindowEngine(std::string_view name, RankLink link, std::unique_ptr<CollectiveEngine> messages)
      : name_(name),
        link_(std::move(link)),
        messages_(std::move(messages)),
        group_(link_, link_.transport->host_memory()),
        allocator_(allocator_in(link_.transport->host_memory())),
        calls_(group_),
        parts_(calls_, group_.size()),
        staged_(group_) {}

  int rank() const override { return link_.rank; }
  int size() const override { return link_.size(); }
  std::string_view name() const override { return name_; }
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return messages_->supports(collective, op, dtype);
  }
  Determinism determinism() const override { return Determinism::kCanonical; }
  std::shared_ptr<BufferAllocator> allocator() override { return allocator_; }

  void run(const CollectiveCall& call, const CollectiveHeader& header, TimePoint deadline) override;
  void abort(const Error& reason) noexcept override {
    group_.close(Error(ErrorCode::kAborted, reason.message()));
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
  void require_same_call();
  void require_counts_fit();
  void run_inline(const CollectiveCall& call);
  void run_in_place(const CollectiveCall& call, TimePoint deadline);

  const std::string_view name_;  // a literal
  const RankLink link_;
  const std::unique_ptr<CollectiveEngine> messages_;
  WindowGroup group_;
  const std::shared_ptr<BufferAllocator> allocator_;
  WindowCalls calls_;
  GroupParts parts_;
  StagedReduction staged_;
};

void WindowEngine::run(const CollectiveCall& call, const CollectiveHeader& header,
                       TimePoint deadline) {
  group_.begin_round(header, deadline);
  calls_.show(call, header);
  group_.arrive(header, deadline);
  require_same_call();
  const WindowCalls::Way way = calls_.way();
  switch (way) {
    case WindowCalls::Way::kInline:
      return run_inline(call);
    case WindowCalls::Way::kShared:
      calls_.read(call, way);
      return run_in_place(call, deadline);
    case WindowCalls::Way::kNeither:
      if (call.collective == Collective::kAllReduce) return staged_.run(call, deadline);
      return messages_->run(call, header, deadline);
  }
}

void WindowEngine::require_same_call() {
  const std::uint64_t expected = group_.window(0).seat(group_.round()).fingerprint;
  for (int r = 1; r < size(); ++r) {
    const WindowSeat& seat = group_.window(r).seat(group_.round());
    if (seat.fingerprint == expected) continue;
    const Error error(ErrorCode::kInvalidArgument,
                      mismatch_message(group_.window(0).seat(group_.round()).header, seat.header));
    // Every rank is here and sees the same.
    group_.close(error);
    throw error;
  }
}

void WindowEngine::require_counts_fit() {
  try {
    parts_.require_counts_fit();
  } catch (const Error& error) {
    group_.close(error);
    throw;
  }
}

/// This rank's result out of what all have shown: a copy, so none waits for it.
void WindowEngine::run_inline(const CollectiveCall& call) {
  if (call.collective == Collective::kBarrier) return;
  if (call.collective == Collective::kAllReduce || call.collective == Collective::kReduce) {
    return calls_.combine_inline(call);
  }
  calls_.read(call, WindowCalls::Way::kInline);
  if (call.collective == Collective::kAllToAll) require_counts_fit();
  parts_.do_part(call, rank());
}

void WindowEngine::run_in_place(const CollectiveCall& call, TimePoint deadline) {
  group_.begin_parts();
  if (call.collective == Collective::kAllToAll) require_counts_fit();
  if (group_.shares_parts() && call.collective != Collective::kAllToAll) {
    for (int part = group_.take_part(); part >= 0; part = group_.take_part()) {
      parts_.do_part(call, part);
      group_.finish_part();
    }
  } else {
    group_.take_own_part();
    parts_.do_part(call, rank());
    group_.finish_part();
  }
  group_.leave(deadline);
}

}  // namespace

std::unique_ptr<CollectiveEngine> window_engine(std::shared_ptr<Transport> transport,
                                                std::string_view name) {
  const std::string_view literal = name == "auto" ? "auto" : "canonical";
  RankLink link = link_all(transport);
  return std::make_unique<WindowEngine>(literal, std::move(link),
                                        message_engine(std::move(transport), "canonical"));
}

}  // namespace tutti::internal
