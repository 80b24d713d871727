// Headers of meetings: comparing and describing them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/replicas/meeting.h"

#include "tutti/tensor/op.h"

namespace tutti::internal {
namespace {

std::string describe_specs(const ValueSpec& value) {
  return concat(to_string(value.dtype), " ", value.shape, value.sparse ? " (sparse)" : "");
}

std::string describe_specs(const std::vector<ValueSpec>& values) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < values.size() && i < kShown; ++i)
    text += ", " + describe_specs(values[i]);
  if (values.size() > kShown) text += concat(", and ", values.size() - kShown, " more values");
  return text;
}

}  // namespace

ValueSpec spec_of(const Gradient& value) {
  if (value.is_dense()) return {value.dense().dtype(), value.dense().shape(), false};
  if (value.is_slices()) {
    return {value.slices().values.dtype(), value.slices().dense_shape, true};
  }
  fail(ErrorCode::kInvalidArgument,
       "ReplicaContext::all_reduce: a value is none; expected a dense "
       "tensor or IndexedSlices");
}

bool MeetingHeader::matches(const MeetingHeader& other) const {
  const bool same_type = type == other.type || (type && other.type && *type == *other.type);
  return kind == other.kind && op == other.op && axis == other.axis && method == other.method &&
         variable == other.variable && same_type && values == other.values;
}

std::string MeetingHeader::call() const {
  switch (kind) {
    case MeetingKind::kMergeCall:
      return "merge_call";
    case MeetingKind::kAllReduce:
      return "all_reduce";
    case MeetingKind::kAllGather:
      return "all_gather";
    case MeetingKind::kAssign:
      return concat("Variable '", variable->name(), "'.", static_cast<AssignOp>(method));
    case MeetingKind::kScatter:
      return concat("Variable '", variable->name(), "'.", static_cast<ScatterOp>(method));
    case MeetingKind::kAggregateRead:
      return concat("the aggregated read of Variable '", variable->name(), "'");
    case MeetingKind::kFinishGradients:
      return "the reduction of gradients";
    case MeetingKind::kUpdatesDone:
      return "the end of the variables' update";
  }
  fail(ErrorCode::kInternal, "MeetingKind: no such value: ", static_cast<int>(kind));
}

std::string MeetingHeader::signature() const {
  std::string text = call();
  if (kind == MeetingKind::kAllReduce)
    text += concat("(", op, internal::describe_specs(values), ")");
  if (kind == MeetingKind::kAllGather) {
    text += concat("(axis ", axis, internal::describe_specs(values), ")");
  }
  return text;
}

std::string MeetingHeader::describe() const {
  std::string text = signature();
  if (kind == MeetingKind::kMergeCall || kind == MeetingKind::kAllReduce ||
      kind == MeetingKind::kAllGather) {
    text += where.line() ? " at " + to_string(where) : " in a layer, loss or metric";
  }
  return text;
}

}  // namespace tutti::internal
