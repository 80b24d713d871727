// How a variable behaves when there are several replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <ostream>
#include <string>

namespace tutti {

/// When the copies of a variable are brought together: tf.VariableSynchronization. kAuto means
/// kOnWrite.
enum class VariableSynchronization { kAuto = 0, kNone = 1, kOnWrite = 2, kOnRead = 3 };

/// How values that replicas assign become one: tf.VariableAggregation.
enum class VariableAggregation { kNone = 0, kSum = 1, kMean = 2, kOnlyFirstReplica = 3 };

std::ostream& operator<<(std::ostream& out, VariableSynchronization synchronization);
std::ostream& operator<<(std::ostream& out, VariableAggregation aggregation);

/// How a variable is called, trained and kept equal over replicas: the arguments of tf.Variable.
struct VariableOptions {
  std::string name = "";  // empty: "variable_<number>"
  /// Default: true for floating types, except ON_READ variables.
  std::optional<bool> trainable = std::nullopt;
  VariableSynchronization synchronization = VariableSynchronization::kAuto;
  VariableAggregation aggregation = VariableAggregation::kNone;
  /// Permits assigning an ON_WRITE variable with aggregation NONE inside a replica: copies may then
  /// differ.
  bool allow_divergent = false;
  /// Layers of mixed policies read a floating variable in the type they compute in; false: as it
  /// is.
  bool autocast = true;
  /// A number that the host computes with, such as the iteration: on GPU strategies it stays in the
  /// host's memory, so that reading it waits for nothing.
  bool on_host = false;
};

}  // namespace tutti
