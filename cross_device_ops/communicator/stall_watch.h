// The watch over stalled calls of one rank.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "cross_device_ops/collective_engine.h"
#include "cross_device_ops/communicator/call_recorder.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::internal {

/// Says who is missing when a collective has waited for long, and answers ranks that ask: a thread
/// that looks at one rank's calls about ten times a second, for as long as it lives.
class StallWatch {
 public:
  /// `tend`: what else is to be looked after as often.
  StallWatch(CollectiveEngine& engine, const CallRecorder& recorder, Duration stall_after,
             std::function<void()> tend);
  ~StallWatch();

  /// "waits in all_reduce(...) #3 at a.cc:7 since 10.2 s" or "is in no collective; its last one
  /// was ...".
  static std::string state_of(const CallRecorder& recorder);
  /// "rank 1 waits in ...; rank 2 does not answer": of all ranks but `own`.
  static std::string states_of_others(CollectiveEngine& engine);

 private:
  void watch();
  void look();

  CollectiveEngine& engine_;
  const CallRecorder& recorder_;
  const Duration stall_after_;
  const std::function<void()> tend_;
  std::optional<std::uint64_t> reported_;  // sequence number of a call that stalled
  Event stop_;
  std::unique_ptr<Thread> thread_;
};

}  // namespace tutti::internal
