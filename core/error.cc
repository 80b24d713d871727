// Names of error codes, and construction of errors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/error.h"

#include <iterator>
#include <utility>

namespace tutti {

std::string_view to_string(ErrorCode code) {
  // Codes 2 and 7 exist in gRPC, but tutti does not use them.
  constexpr std::string_view kNames[] = {
      "OK",        "CANCELLED",      "UNKNOWN",       "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "UNKNOWN",       "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED", "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS"};
  const auto index = static_cast<std::size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

Error::Error(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {}

Error Error::with_context(std::string_view context) const {
  return Error(code_, concat(context, ": ", message_));
}

namespace internal {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  fail(ErrorCode::kInternal, file, ":", line, ": broken invariant: ", condition,
       message.empty() ? "" : "; ", message);
}

}  // namespace internal
}  // namespace tutti
