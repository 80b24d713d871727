// What a replica says when it arrives at a meeting of all replicas.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <typeinfo>
#include <vector>

#include "tutti/autograd/variable_storage.h"
#include "tutti/core/source_location.h"
#include "tutti/tensor/reduce_op.h"

namespace tutti::internal {

enum class MeetingKind {
  kMergeCall,
  kAllReduce,
  kAllGather,
  kAssign,
  kScatter,
  kAggregateRead,
  kFinishGradients,
  kUpdatesDone,
};

/// Dtype, shape and kind of one value that takes part.
struct ValueSpec {
  DType dtype = DType::kFloat32;
  Shape shape;
  bool sparse = false;
  bool operator==(const ValueSpec&) const = default;
};
ValueSpec spec_of(const Gradient& value);

/// The header of a meeting: equal in all replicas but for the call site, else the meeting is a
/// mismatch.
struct MeetingHeader {
  MeetingKind kind = MeetingKind::kMergeCall;
  ReduceOp op = ReduceOp::kSum;
  int axis = 0;
  int method = 0;                             // AssignOp or ScatterOp
  const VariableStorage* variable = nullptr;  // what is written or read
  const std::type_info* type = nullptr;       // of a merge_call's argument
  std::vector<ValueSpec> values = {};
  SourceLocation where = {};

  bool matches(const MeetingHeader& other) const;
  /// "all_reduce", "Variable 'w'.assign_add".
  std::string call() const;
  /// "all_reduce(SUM, float32 [2, 3])": what workers compare.
  std::string signature() const;
  /// "all_reduce(SUM, float32 [2, 3]) at step.cc:41".
  std::string describe() const;
};

}  // namespace tutti::internal
