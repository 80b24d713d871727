// tutti's only exception type, its codes, and the check for broken invariants.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <string_view>

#include "tutti/core/text.h"

namespace tutti {

/// Kind of failure. The codes are those of gRPC and abseil, so that they survive an RPC.
enum class ErrorCode {
  kOk = 0,
  kCancelled = 1,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
};

/// Returns the name of the code: "INVALID_ARGUMENT" and so on.
std::string_view to_string(ErrorCode code);

/// Exception that tutti's functions throw. Its message has the form *who: what happened; expected
/// X, got Y; do Z*.
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);

  ErrorCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

  /// Returns this error with `context` and ": " in front of its message.
  Error with_context(std::string_view context) const;

 private:
  ErrorCode code_;
  std::string message_;
};

/// Throws Error(code, the arguments joined by concat()).
template <class... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, concat(parts...));
}

namespace internal {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
}  // namespace internal

/// Throws Error(kInternal) naming the file and the line if an invariant of tutti itself is broken.
#define TUTTI_CHECK(condition, ...)                                   \
  do {                                                                \
    if (!(condition)) [[unlikely]]                                    \
      ::tutti::internal::check_failed(__FILE__, __LINE__, #condition, \
                                      ::tutti::concat(__VA_ARGS__));  \
  } while (false)

}  // namespace tutti
