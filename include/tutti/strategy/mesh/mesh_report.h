// Cost of one step on a mesh: memory and exchanges of a device.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/tensor/shape.h"

namespace tutti {

/// What one step costs each device of a mesh, as MeshStrategy::explain() finds from shapes. Bytes
/// are those of one device. A value type.
struct MeshReport {
  /// A variable, with the bytes of the parts that the device stores.
  struct VariableCost {
    std::string name;
    Shape shape;         // of the whole
    std::string layout;  // "[-, model]"
    std::uint64_t bytes = 0;
  };
  /// Values that the same line exchanges over the same axes. `bytes`: those that the device sends,
  /// of all `count` values, if P devices exchange a value in a ring: for an all-reduce 2 (P-1)/P of
  /// the value, for an all-gather (P-1)/P of the whole.
  struct CollectiveCost {
    std::string kind;               // "all_reduce", "all_gather", ... as in MeshStrategy::traffic()
    std::vector<std::string> axes;  // names of mesh axes
    std::uint64_t bytes = 0;
    int count = 0;
    std::string where;  // "model.cc:12"; a line of the library for what a layer or a tape does
  };
  /// Bytes of elements. Does not include what kernels and sums need meanwhile, and the rounding of
  /// allocators.
  struct Memory {
    std::uint64_t variables = 0;
    std::uint64_t slots = 0;        // of the optimizer
    std::uint64_t gradients = 0;    // that the optimizer applies
    std::uint64_t activations = 0;  // and all else that the step makes, where memory is largest
    /// Returns the sum of all.
    std::uint64_t total() const { return variables + slots + gradients + activations; }
  };

  std::vector<VariableCost> variables;      // without slots, in order of creation
  std::vector<CollectiveCost> collectives;  // in order of first use
  Memory memory;
  /// Sentences on operations that gather inputs because they cannot compute with parts, on large
  /// variables that no layout covers, and on layouts without a variable.
  std::vector<std::string> warnings;

  /// Returns the sum of CollectiveCost::bytes.
  std::uint64_t bytes_sent() const;
  /// Returns tables for people to read.
  std::string to_string() const;
};

}  // namespace tutti
