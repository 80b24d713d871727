// How a coordinator's run ended for one of its workers or servers.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tutti/cluster/control/verdict.h"

namespace tutti::internal {

/// The exit code of this process, and why where it is not 0.
struct RunEnd {
  int code = 0;
  std::string text = {};
  bool operator==(const RunEnd&) const = default;
};

/// Hears the job's verdicts one after the other and knows when this task has nothing to do any
/// more: the chief has left, is lost or failed; this process was given up; nobody watches over the
/// job. A task that was started again hears what was before it, which ends nothing. A value.
class RunVerdicts {
 public:
  /// `self`: task, incarnation and pid.
  explicit RunVerdicts(Member self) : self_(std::move(self)) {}

  void take(const Verdict& verdict);
  const std::optional<RunEnd>& end() const { return end_; }
  bool chief_is_here() const { return chief_is_here_; }
  /// Whether what this process hears now is news.
  bool is_present() const { return is_present_; }

 private:
  void take_of_chief(const Verdict& verdict);
  void end(const std::string& why);

  Member self_;
  bool is_present_ = false;
  bool chief_is_here_ = false;
  std::optional<RunEnd> end_;
};

}  // namespace tutti::internal
