// What each verdict means to a task that serves.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/run_end.h"

namespace tutti::internal {

void RunVerdicts::take(const Verdict& verdict) {
  if (verdict.number == 0) return end(concat(verdict.message, "; nobody watches over the job"));
  const bool is_self = verdict.who.task.same_task(self_.task) && verdict.who.pid == self_.pid &&
                       verdict.who.incarnation == self_.incarnation;
  const bool is_loss = verdict.kind == VerdictKind::kDead || verdict.kind == VerdictKind::kStopped;
  if (is_self && verdict.kind == VerdictKind::kJoined) is_present_ = true;
  if (is_self && is_loss) end(concat("the job gave this process up: ", verdict.message));
  if (verdict.who.task.job == "chief") take_of_chief(verdict);
}

void RunVerdicts::take_of_chief(const Verdict& verdict) {
  switch (verdict.kind) {
    case VerdictKind::kJoined:
      chief_is_here_ = true;
      return;
    case VerdictKind::kLeft:
      chief_is_here_ = false;
      if (is_present_ && !end_) end_ = RunEnd{};
      return;
    case VerdictKind::kDead:
    case VerdictKind::kStopped:
    case VerdictKind::kFailed:
      chief_is_here_ = false;
      end(concat("the coordinator is lost: ", verdict.message));
      return;
    case VerdictKind::kStuck:
      return;
  }
}

void RunVerdicts::end(const std::string& why) {
  if (is_present_ && !end_) end_ = RunEnd{1, why};
}

}  // namespace tutti::internal
