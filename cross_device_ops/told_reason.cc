// Reading codes from texts.
// SPDX-License-Identifier: Apache-2.0
#include "cross_device_ops/told_reason.h"

namespace tutti::internal {
namespace {

constexpr std::string_view kMismatch = "collective mismatch (";

}  // namespace

bool is_mismatch(const Error& error) {
  return error.message().find(kMismatch) != std::string::npos;
}

Error as_it_was(const Error& error) {
  if (is_mismatch(error)) {  // what stands before it is who told
    return Error(ErrorCode::kInvalidArgument,
                 error.message().substr(error.message().find(kMismatch)));
  }
  const bool is_missing = error.message().find(kMissing) != std::string::npos;
  if (error.code() == ErrorCode::kAborted && is_missing) {
    return Error(ErrorCode::kDeadlineExceeded, error.message());
  }
  return error;
}

}  // namespace tutti::internal
