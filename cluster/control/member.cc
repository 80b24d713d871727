// Members and verdicts as text.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/member.h"

#include "core/process_probe.h"

namespace tutti {

std::string MemberTask::to_string() const { return concat(job, " ", index); }

std::string Member::to_string() const {
  std::string text = task.to_string();
  const bool is_elsewhere = !host.empty() && host != internal::this_process().host;
  std::string details = task.address;
  const auto add = [&details](const std::string& part) {
    details += concat(details.empty() ? "" : ", ", part);
  };
  if (is_elsewhere) add(concat("on ", host));
  if (pid != 0) add(concat("pid ", pid));
  return details.empty() ? text : concat(text, " (", details, ")");
}

std::string_view to_string(VerdictKind kind) {
  switch (kind) {
    case VerdictKind::kDead:
      return "dead";
    case VerdictKind::kStopped:
      return "stopped";
    case VerdictKind::kStuck:
      return "stuck";
    case VerdictKind::kFailed:
      return "failed";
    case VerdictKind::kLeft:
      return "left";
    case VerdictKind::kJoined:
      return "joined";
    case VerdictKind::kDisconnected:
      return "disconnected";
  }
  return "unknown";
}

Error to_error(const Verdict& verdict) { return Error(verdict.code, verdict.message); }

}  // namespace tutti
