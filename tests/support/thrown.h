// Expectations on thrown errors, for tests.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "tutti/core/error.h"

namespace tutti::thrown {

/// Expects that `body` throws an Error with code `code` whose message contains each of `parts`.
template <class Body>
void expect_error(ErrorCode code, const std::vector<std::string>& parts, const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    for (const std::string& part : parts) {
      EXPECT_NE(error.message().find(part), std::string::npos)
          << "expected '" << part << "' in: " << error.what();
    }
    return;
  }
  ADD_FAILURE() << "expected an error with '" << (parts.empty() ? "" : parts[0]) << "'";
}

/// Expects that the statement throws an Error whose code is `code`, a name of ErrorCode, and whose
/// message contains each of the following strings. Example: EXPECT_ERROR(Dropout(1.0),
/// kInvalidArgument, "[0, 1)", "got 1").
#define EXPECT_ERROR(statement, code, ...)                                                      \
  do {                                                                                          \
    SCOPED_TRACE(#statement);                                                                   \
    ::tutti::thrown::expect_error(::tutti::ErrorCode::code, {__VA_ARGS__}, [&] { statement; }); \
  } while (false)
/// Same as EXPECT_ERROR(statement, kInvalidArgument, ...).
#define EXPECT_INVALID(statement, ...) EXPECT_ERROR(statement, kInvalidArgument, __VA_ARGS__)

/// Returns the message of the Error that `action` throws, and fails the test if none is thrown.
/// With `with_code`, the code precedes the message: "NOT_FOUND: the message".
inline std::string error_of(const std::function<void()>& action, bool with_code = false) {
  try {
    action();
  } catch (const Error& error) {
    return with_code ? concat(to_string(error.code()), ": ", error.message()) : error.message();
  }
  ADD_FAILURE() << "error_of: expected an Error, but none was thrown";
  return "";
}
/// Same as error_of(), but the code precedes the message.
inline std::string coded_error_of(const std::function<void()>& action) {
  return error_of(action, true);
}

}  // namespace tutti::thrown

/// Namespace of test files, in which GoogleTest's names and the helpers in tests/support are
/// visible.
namespace tutti::testing {
using namespace ::testing;
using namespace thrown;
}  // namespace tutti::testing
