// Helpers for tests of MeshStrategy.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/hang_watchdog.h"
#include "tutti/strategy/mesh/mesh_strategy.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::mesh_tests {

inline MeshOptions on_mesh(DeviceMesh mesh, LayoutMap layout = {},
                           std::vector<MeshAxis> blocks = {}) {
  MeshOptions options;
  options.mesh = std::move(mesh);
  options.layout = std::move(layout);
  options.blocks = std::move(blocks);
  return options;
}

/// Returns normally distributed numbers determined by the seed.
inline Tensor numbers(const Shape& shape, std::uint64_t seed) {
  return random_normal(shape, {.seed = seed, .purpose = kUserPurpose});
}

/// Returns the message of the error that `body` throws; "" if `body` throws nothing.
template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace tutti::mesh_tests
