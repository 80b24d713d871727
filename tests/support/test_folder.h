// Temporary folder of the running test.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

namespace tutti::thrown {

/// Creates an empty folder for the running test and returns its path. A test that needs several
/// folders passes different suffixes.
inline std::string empty_folder(const std::string& suffix = "") {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::string name = std::string("tutti_") + test->test_suite_name() + "_" + test->name() + suffix;
  for (char& c : name) c = c == '/' ? '_' : c;
  const auto path = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path.string();
}

}  // namespace tutti::thrown
