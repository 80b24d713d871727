// Says who was refused, not more often than a log can take.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/core/clock.h"

namespace tutti::internal {

/// The first one at once, then one line per pause with the number of the others: strangers must not
/// fill the disk. Threads: one at a time.
class RefusalLog {
 public:
  /// `who` refuses: "control".
  explicit RefusalLog(std::string who, Duration pause = std::chrono::seconds(1));
  void note(std::string_view reason, TimePoint now);

 private:
  const std::string who_;
  const Duration pause_;
  TimePoint next_{};
  std::uint64_t num_unsaid_ = 0;
};

}  // namespace tutti::internal
