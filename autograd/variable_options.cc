// Names of the options of variables, as tf spells them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/variable_options.h"

#include "tutti/core/error.h"

namespace tutti {

std::ostream& operator<<(std::ostream& out, VariableSynchronization synchronization) {
  switch (synchronization) {
    case VariableSynchronization::kAuto:
      return out << "AUTO";
    case VariableSynchronization::kNone:
      return out << "NONE";
    case VariableSynchronization::kOnWrite:
      return out << "ON_WRITE";
    case VariableSynchronization::kOnRead:
      return out << "ON_READ";
  }
  fail(ErrorCode::kInternal,
       "VariableSynchronization: no such value: ", static_cast<int>(synchronization));
}

std::ostream& operator<<(std::ostream& out, VariableAggregation aggregation) {
  switch (aggregation) {
    case VariableAggregation::kNone:
      return out << "NONE";
    case VariableAggregation::kSum:
      return out << "SUM";
    case VariableAggregation::kMean:
      return out << "MEAN";
    case VariableAggregation::kOnlyFirstReplica:
      return out << "ONLY_FIRST_REPLICA";
  }
  fail(ErrorCode::kInternal, "VariableAggregation: no such value: ", static_cast<int>(aggregation));
}

}  // namespace tutti
