// What the tests of checkpoints share.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/thrown.h"
#include "tutti/tensor/tensor.h"

namespace tutti::checkpoint_test_util {

using thrown::expect_error;

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

}  // namespace tutti::checkpoint_test_util
