// What a session says of tasks that died, and what it leaves for the next one.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>

#include "tutti/core/logging.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"
#include "tutti/strategy/parameter_server/session/session_core.h"

namespace tutti::internal {
namespace {

/// For the answer of a task that lives.
constexpr Duration kProbe = std::chrono::seconds(1);

bool may_be_loss(ErrorCode code) {
  return code == ErrorCode::kUnavailable || code == ErrorCode::kAborted ||
         code == ErrorCode::kDeadlineExceeded;
}

}  // namespace

/// Nothing: it lives, and knows the session (or does not answer, which says nothing).
std::optional<std::string> SessionCore::why_lost(const Task& task, const Link& link) const {
  const std::string who = concat(task, " (", cluster_.task_address(task.type, task.index), ")");
  if (const auto away = link.client->why_away()) return concat(who, " is gone (", *away, ")");
  try {
    const Packet request = encode(TaskRequest{TaskRequestKind::kTransfers, session_});
    (void)link.client->call(request, deadline_after(Clock::system().now(), kProbe));
    return std::nullopt;
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kAborted) return concat(who, " was started again");
    if (error.code() == ErrorCode::kUnavailable) return concat(who, " is gone");
    return std::nullopt;
  }
}

/// An error of a step looks like one of a connection: who is lost is asked, not guessed.
Error SessionCore::explained(const Error& error) {
  if (!may_be_loss(error.code())) return error;
  std::vector<std::string> losses;
  for (const auto& [task, link] : links_) {
    const auto why = why_lost(task, link);
    if (!why) continue;
    std::vector<std::string> names;
    const MutexLock lock(mutex_);
    has_lost_a_task_ = true;
    for (const auto& [name, place] : variables_) {
      if (place == task) names.push_back(concat("'", name, "'"));
    }
    losses.push_back(concat(
        *why, ", and with it ",
        names.empty() ? "its values" : concat("its values and the variables ", join(names))));
  }
  if (losses.empty()) return error;
  return Error(
      error.code(),
      concat(error.message(), "; Session: ", join(losses, "; "),
             "; what other tasks have lives on: try a new Session when all tasks are there, ",
             "and restore from a checkpoint what is gone"));
}

/// Servers end with their last session, unless they hear that another one comes.
void SessionCore::announce_return() noexcept {
  {
    const MutexLock lock(mutex_);
    if (!has_lost_a_task_) return;
  }
  const auto time = std::max<std::int64_t>(1, options_.timeout.count());
  for (const auto& [task, link] : links_) {
    if (link.client->why_away()) continue;
    try {
      const NoDeviceScope here;
      TaskRequest request{TaskRequestKind::kStay, session_};
      request.details = nest_of_integer(time);
      (void)link.client->call(encode(request), deadline_after(Clock::system().now(), kProbe));
    } catch (const std::exception&) {  // it is lost, or does not answer
    }
  }
}

}  // namespace tutti::internal
