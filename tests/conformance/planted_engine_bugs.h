// Engines with bugs in how ranks synchronise, which one object for all replicas cannot have.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "cross_device_ops/collective_engine.h"
#include "tests/conformance/planted_bugs.h"
#include "tutti/core/clock.h"
#include "tutti/core/sync.h"

namespace tutti::planted_bugs {

/// Engines that were destroyed without their peers' knowledge.
struct Graveyard {
  Mutex mutex;
  std::vector<std::unique_ptr<internal::CollectiveEngine>> engines TUTTI_GUARDED_BY(mutex);
};

/// Wraps an engine and adds a bug.
class BuggyEngine final : public internal::CollectiveEngine {
 public:
  BuggyEngine(std::unique_ptr<internal::CollectiveEngine> engine, std::string_view name,
              std::shared_ptr<Graveyard> graveyard)
      : engine_(std::move(engine)), bug_(bug(name)), graveyard_(std::move(graveyard)) {}
  ~BuggyEngine() override {
    if (bug_ != "PeersStayForever"_bug) return;
    MutexLock lock(graveyard_->mutex);
    graveyard_->engines.push_back(std::move(engine_));
  }

  int rank() const override { return engine_->rank(); }
  int size() const override { return engine_->size(); }
  std::string_view name() const override { return engine_->name(); }
  bool supports(Collective collective, ReduceOp op, DType dtype) const override {
    return engine_->supports(collective, op, dtype);
  }
  Determinism determinism() const override { return engine_->determinism(); }

  void run(const CollectiveCall& call, const internal::CollectiveHeader& header,
           TimePoint deadline) override;

  void abort(const Error& reason) noexcept override {
    if (bug_ == "IgnoresAbort"_bug) return;
    if (bug_ == "LosesReason"_bug) {
      return engine_->abort(Error(ErrorCode::kAborted, "stopped"));
    }
    engine_->abort(reason);
  }

  std::unique_ptr<internal::CollectiveEngine> subgroup(const std::vector<int>& ranks,
                                                       std::uint32_t number) override {
    return engine_->subgroup(ranks, number);
  }
  void tend(const std::function<std::string()>& own_state) override {
    // The state is destroyed with the communicator, but the engine is not.
    if (bug_ != "PeersStayForever"_bug) engine_->tend(own_state);
  }
  std::vector<std::string> whereabouts(TimePoint deadline) override {
    return engine_->whereabouts(deadline);
  }

 private:
  std::unique_ptr<internal::CollectiveEngine> engine_;
  const std::uint64_t bug_;
  const std::shared_ptr<Graveyard> graveyard_;
};

inline void BuggyEngine::run(const CollectiveCall& call, const internal::CollectiveHeader& header,
                             TimePoint deadline) {
  CollectiveCall own_call = call;
  internal::CollectiveHeader own_header = header;
  if (bug_ == "IgnoresDeadline"_bug) deadline += std::chrono::seconds(4);
  if (bug_ == "GivesUpEarly"_bug) deadline -= std::chrono::milliseconds(140);
  if (bug_ == "ComparesNoNames"_bug) {
    own_header.name_hash = 0;
    own_header.name = {};
  }
  if (bug_ == "ComparesNoShapes"_bug) own_header.shape_hash = 0;
  if (bug_ == "BroadcastsFromZero"_bug && call.collective == Collective::kBroadcast) {
    own_call.root = 0;
  }
  try {
    engine_->run(own_call, own_header, deadline);
  } catch (const Error& error) {
    const bool keeps = bug_ == "KeepsErrorsFromRankZero"_bug && rank() == 0;
    if (!keeps || error.code() != ErrorCode::kInvalidArgument) throw;
  }
  if (bug_ == "LastRankGetsNothing"_bug && rank() == size() - 1 && rank() > 0) {
    for (const Elements& output : call.outputs) {
      if (output.count > 0) output.data[0] ^= std::byte{0x40};
    }
  }
}

inline constexpr Planted kPlantedEngines[] = {
    {"IgnoresDeadline", "/deadline/"},     {"GivesUpEarly", "/deadline/"},
    {"IgnoresAbort", "/abort/"},           {"LosesReason", "/abort/"},
    {"PeersStayForever", "/peer_gone/"},   {"KeepsErrorsFromRankZero", "/mismatch/"},
    {"ComparesNoNames", "/mismatch/"},     {"ComparesNoShapes", "/mismatch/"},
    {"BroadcastsFromZero", "/broadcast/"}, {"LastRankGetsNothing", "/values/"},
};

}  // namespace tutti::planted_bugs
