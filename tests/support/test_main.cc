// The main function of every test program.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tests/support/process_function.h"

int main(int argc, char** argv) {
  // This program may have been started by one of its own tests.
  if (const std::optional<int> code = tutti::testing::run_process_function()) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
