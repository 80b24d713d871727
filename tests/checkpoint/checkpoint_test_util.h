// What the tests of checkpoints share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tutti/core/error.h"
#include "tutti/tensor/tensor.h"

namespace tutti::checkpoint_test_util {

/// A folder that is empty at the start of the test.
inline std::string empty_folder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string("tutti_") + test->test_suite_name() + "_" + test->name();
  for (char& c : name) c = c == '/' ? '_' : c;
  const auto path = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path.string();
}

/// Expects that `body` throws Error with `code` and a message that has all of `parts`.
inline void expect_error(ErrorCode code, const std::vector<std::string>& parts,
                         const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown; expected " << to_string(code);
  } catch (const Error& error) {
    EXPECT_EQ(to_string(error.code()), to_string(code)) << error.what();
    for (const std::string& part : parts) EXPECT_THAT(error.message(), testing::HasSubstr(part));
  }
}

}  // namespace tutti::checkpoint_test_util
