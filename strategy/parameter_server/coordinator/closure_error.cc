// Failures as messages, the first one in front.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/coordinator/closure_error.h"

#include <utility>

namespace tutti {
namespace {

std::string message_of(const std::vector<ClosureFailure>& failures) {
  TUTTI_CHECK(!failures.empty(), "an error without a failure");
  constexpr std::size_t kMostLines = 16;
  std::string message = failures.front().to_string();
  for (std::size_t i = 1; i < failures.size() && i < kMostLines; ++i) {
    message += concat("\n  also ", failures[i].to_string());
  }
  if (failures.size() > kMostLines) {
    message += concat("\n  and ", failures.size() - kMostLines, " more");
  }
  return message;
}

}  // namespace

std::string_view to_string(ErrorOrigin origin) {
  switch (origin) {
    case ErrorOrigin::kUser:
      return "user";
    case ErrorOrigin::kInput:
      return "input";
    case ErrorOrigin::kWorker:
      return "worker";
    case ErrorOrigin::kServer:
      return "ps";
  }
  return "unknown";
}

std::string ClosureFailure::to_string() const {
  std::string who = concat("closure ", closure);
  if (worker >= 0) who += concat(" on worker ", worker, ", attempt ", attempt);
  return concat(who, ", ", tutti::to_string(origin), " error: ", text);
}

ClosureError::ClosureError(std::vector<ClosureFailure> failures)
    : Error(failures.empty() ? ErrorCode::kInternal : failures.front().code, message_of(failures)),
      failures_(std::move(failures)) {}

}  // namespace tutti
