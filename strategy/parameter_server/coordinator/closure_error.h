// Errors of closures: what failed, and whose fault it was.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {

/// Where an error came from. Typed: nothing reads the words of a message.
enum class ErrorOrigin : std::uint8_t {
  kUser = 1,  // the step threw
  kInput,     // an argument could not be made: a per-worker resource, a dataset, a conversion
  kWorker,    // infrastructure: a worker, or the way to it
  kServer,    // infrastructure: a parameter server
};
/// "user", "input", "worker", "ps".
std::string_view to_string(ErrorOrigin origin);

/// An error that knows its origin, where that is not what the place of the throw says: what a step
/// throws counts as the user's, unless it is one of these.
class OriginError : public Error {
 public:
  OriginError(ErrorOrigin origin, ErrorCode code, std::string message)
      : Error(code, std::move(message)), origin_(origin) {}
  ErrorOrigin origin() const { return origin_; }

 private:
  ErrorOrigin origin_;
};

/// How one closure failed. A value.
struct ClosureFailure {
  std::uint64_t closure = 0;
  int attempt = 0;
  int worker = -1;
  ErrorOrigin origin = ErrorOrigin::kUser;
  ErrorCode code = ErrorCode::kInternal;
  std::string text = {};
  /// "closure 7 on worker 1, attempt 2, user error: ..."
  std::string to_string() const;
  bool operator==(const ClosureFailure&) const = default;
};

/// What schedule(), join(), done() and fetch() throw for a closure that failed. The code and the
/// message are those of the first failure; the others follow in the message, one per line.
class ClosureError : public Error {
 public:
  /// `failures`: at least one, in the order in which they came.
  explicit ClosureError(std::vector<ClosureFailure> failures);

  ErrorOrigin origin() const { return failures_.front().origin; }
  /// -1: none.
  int worker() const { return failures_.front().worker; }
  std::uint64_t closure() const { return failures_.front().closure; }
  const std::vector<ClosureFailure>& failures() const { return failures_; }

 private:
  std::vector<ClosureFailure> failures_;
};

}  // namespace tutti
