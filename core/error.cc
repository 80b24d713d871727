// Names of error codes, and how errors are made.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/core/error.h"

#include <utility>

namespace tutti {

std::string_view to_string(ErrorCode code) {
  switch (code) {
    case ErrorCode::kOk:
      return "OK";
    case ErrorCode::kCancelled:
      return "CANCELLED";
    case ErrorCode::kInvalidArgument:
      return "INVALID_ARGUMENT";
    case ErrorCode::kDeadlineExceeded:
      return "DEADLINE_EXCEEDED";
    case ErrorCode::kNotFound:
      return "NOT_FOUND";
    case ErrorCode::kAlreadyExists:
      return "ALREADY_EXISTS";
    case ErrorCode::kResourceExhausted:
      return "RESOURCE_EXHAUSTED";
    case ErrorCode::kFailedPrecondition:
      return "FAILED_PRECONDITION";
    case ErrorCode::kAborted:
      return "ABORTED";
    case ErrorCode::kOutOfRange:
      return "OUT_OF_RANGE";
    case ErrorCode::kUnimplemented:
      return "UNIMPLEMENTED";
    case ErrorCode::kInternal:
      return "INTERNAL";
    case ErrorCode::kUnavailable:
      return "UNAVAILABLE";
    case ErrorCode::kDataLoss:
      return "DATA_LOSS";
  }
  return "UNKNOWN";
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
