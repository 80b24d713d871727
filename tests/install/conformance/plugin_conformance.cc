// Runs the conformance kit on a plugin, as GoogleTest tests. Usage: plugin_conformance LIBRARY
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include "gtest/gtest.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/testing/cross_device_ops/conformance_gtest.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: plugin_conformance LIBRARY\n");
    return 2;
  }
  const std::string name = tutti::load_cross_device_ops_plugin(argv[1]);
  tutti::conformance::register_gtests(name, {.seed = 1, .sample = 1000});
  return RUN_ALL_TESTS();
}
