// Programs as messages: attributes field by field, and what is refused.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/task_program.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <unordered_set>

#include "session.pb.h"
#include "strategy/parameter_server/protocol/message.h"
#include "tutti/autograd/variable_storage.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

template <class... Parts>
[[noreturn]] void refuse_program(const Parts&... parts) {
  fail(ErrorCode::kDataLoss, "program of a session: ", parts...);
}

// The fields of each kind of attributes, in the order in which they travel.

template <class Visit>
void visit_fields(std::monostate&, Visit&&) {}
template <class Visit>
void visit_fields(ClipAttributes& a, Visit&& visit) {
  visit(a.low), visit(a.high);
}
template <class Visit>
void visit_fields(CastAttributes& a, Visit&& visit) {
  visit(a.to);
}
template <class Visit>
void visit_fields(AxesAttributes& a, Visit&& visit) {
  visit(a.axes), visit(a.keep_dims);
}
template <class Visit>
void visit_fields(MatMulAttributes& a, Visit&& visit) {
  visit(a.transpose_a), visit(a.transpose_b), visit(a.activation);
}
template <class Visit>
void visit_fields(Conv2dAttributes& a, Visit&& visit) {
  visit(a.stride_h), visit(a.stride_w), visit(a.pad_top), visit(a.pad_bottom), visit(a.pad_left);
  visit(a.pad_right), visit(a.activation), visit(a.dilation_h), visit(a.dilation_w);
  visit(a.groups);
}
template <class Visit>
void visit_fields(Pool2dAttributes& a, Visit&& visit) {
  visit(a.window_h), visit(a.window_w), visit(a.stride_h), visit(a.stride_w), visit(a.pad_top);
  visit(a.pad_bottom), visit(a.pad_left), visit(a.pad_right);
}
template <class Visit>
void visit_fields(BatchNormAttributes& a, Visit&& visit) {
  visit(a.epsilon);
}
template <class Visit>
void visit_fields(LrnAttributes& a, Visit&& visit) {
  visit(a.depth_radius), visit(a.bias), visit(a.alpha), visit(a.beta);
}
template <class Visit>
void visit_fields(TransposeAttributes& a, Visit&& visit) {
  for (auto& axis : a.permutation) visit(axis);
}
template <class Visit>
void visit_fields(SliceAttributes& a, Visit&& visit) {
  for (auto& begin : a.begin) visit(begin);
}
template <class Visit>
void visit_fields(PadAttributes& a, Visit&& visit) {
  for (auto& before : a.before) visit(before);
  visit(a.value);
}
template <class Visit>
void visit_fields(AxisAttributes& a, Visit&& visit) {
  visit(a.axis);
}
template <class Visit>
void visit_fields(OneHotAttributes& a, Visit&& visit) {
  visit(a.on), visit(a.off);
}
/// The key is an argument of the program: one program for all steps.
template <class Visit>
void visit_fields(DropoutAttributes& a, Visit&& visit) {
  visit(a.rate);
}
template <class Visit>
void visit_fields(GroupNormAttributes& a, Visit&& visit) {
  visit(a.positions), visit(a.groups), visit(a.epsilon);
}
template <class Visit>
void visit_fields(CumulativeSumAttributes& a, Visit&& visit) {
  visit(a.axis), visit(a.exclusive), visit(a.reverse);
}
template <class Visit>
void visit_fields(UpsampleAttributes& a, Visit&& visit) {
  visit(a.factor_h), visit(a.factor_w), visit(a.interpolation);
}
template <class Visit>
void visit_fields(AttentionAttributes& a, Visit&& visit) {
  visit(a.scale), visit(a.is_causal), visit(a.steps_before);
}

/// The largest value of a field that is not a plain number.
template <class T>
constexpr std::int64_t largest() {
  if constexpr (std::is_same_v<T, DType>) {
    return static_cast<std::int64_t>(DType::kFloat16);
  } else if constexpr (std::is_same_v<T, FusedActivation>) {
    return static_cast<std::int64_t>(FusedActivation::kTanh);
  } else if constexpr (std::is_same_v<T, Interpolation>) {
    return static_cast<std::int64_t>(Interpolation::kBilinear);
  } else {
    return std::numeric_limits<T>::max();
  }
}

/// The first integer says which kind of attributes follows.
void put_attributes(Attributes attributes, v1::TaskProgram::Operation& out) {
  out.add_integers(static_cast<std::int64_t>(attributes.index()));
  const auto put = [&]<class T>(T& field) {
    if constexpr (std::is_same_v<T, double>) {
      out.add_numbers(field);
    } else {
      out.add_integers(static_cast<std::int64_t>(field));
    }
  };
  std::visit([&](auto& each) { visit_fields(each, put); }, attributes);
}

template <std::size_t... I>
Attributes attributes_of_kind(std::int64_t kind, std::index_sequence<I...>) {
  Attributes made;
  const bool is_known =
      ((kind == static_cast<std::int64_t>(I) ? (made.emplace<I>(), true) : false) || ...);
  if (!is_known) refuse_program("attributes of kind ", kind, "; expected 0 to ", sizeof...(I) - 1);
  return made;
}

Attributes get_attributes(const v1::TaskProgram::Operation& in) {
  if (in.integers().empty()) refuse_program("an operation without attributes");
  Attributes attributes = attributes_of_kind(
      in.integers(0), std::make_index_sequence<std::variant_size_v<Attributes>>());
  int integer = 1, number = 0;
  const auto get = [&]<class T>(T& field) {
    if constexpr (std::is_same_v<T, double>) {
      if (number >= in.numbers_size()) refuse_program("attributes: a number is missing");
      field = in.numbers(number++);
    } else {
      if (integer >= in.integers_size()) refuse_program("attributes: an integer is missing");
      const std::int64_t value = in.integers(integer++);
      const bool is_signed = std::is_signed_v<T>;
      if ((value < 0 && !is_signed) || value > largest<T>() ||
          (is_signed && value < -largest<T>() - 1)) {
        refuse_program("attributes: ", value, " is out of range");
      }
      field = static_cast<T>(value);
    }
  };
  std::visit([&](auto& each) { visit_fields(each, get); }, attributes);
  if (integer != in.integers_size() || number != in.numbers_size()) {
    refuse_program("attributes: more numbers than the ", integer + number, " of kind ",
                   attributes.index());
  }
  return attributes;
}

// Operations.

using Kind = ProgramOperation::Kind;

void put_operation(const ProgramOperation& operation, v1::TaskProgram::Operation& out) {
  out.set_kind(static_cast<std::uint32_t>(operation.kind));
  out.set_op(operation.op);
  put_attributes(operation.attributes, out);
  out.mutable_inputs()->Add(operation.inputs.begin(), operation.inputs.end());
  for (std::size_t i = 0; i < operation.specs.size(); ++i) {
    v1::TaskProgram::Output& output = *out.add_outputs();
    if (i < operation.outputs.size()) output.set_value(operation.outputs[i]);
    output.mutable_spec()->set_dtype(static_cast<std::uint32_t>(operation.specs[i].dtype));
    for (const std::int64_t dim : operation.specs[i].shape) output.mutable_spec()->add_dims(dim);
  }
  out.set_device(operation.device), out.set_where(operation.where);
  out.set_variable(operation.variable), out.set_rule(operation.rule);
  for (const std::string& slot : operation.slots) out.add_slots(slot);
}

/// Smallest and largest number of inputs and of outputs, and of `op`.
struct KindLimits {
  int fewest_inputs, most_inputs, fewest_specs, most_specs;
  std::uint32_t last_op;
};

KindLimits limits_of(Kind kind) {
  constexpr int kMany = 1 << 20;
  switch (kind) {
    case Kind::kCompute:
      return {1, kMany, 1, 16, static_cast<std::uint32_t>(OpId::kCount) - 1};
    case Kind::kCreate:
      return {0, 1, 1, 1, 0};
    case Kind::kRead:
      return {0, 0, 1, 1, 0};
    case Kind::kAssign:
      return {1, 1, 0, 0, static_cast<std::uint32_t>(AssignOp::kSubtract)};
    case Kind::kScatter:
      return {2, 2, 0, 0, static_cast<std::uint32_t>(ScatterOp::kUpdate)};
    case Kind::kUpdate:
      return {2, 3, 0, 0, 0};
  }
  refuse_program("no such kind");
}

ProgramOperation get_operation(const v1::TaskProgram::Operation& in) {
  ProgramOperation operation;
  operation.kind = checked_enum(in.kind(), Kind::kCompute, Kind::kUpdate);
  operation.op = in.op();
  const KindLimits limits = limits_of(operation.kind);
  const auto is_within = [](int count, int fewest, int most) {
    return count >= fewest && count <= most;
  };
  if (!is_within(in.inputs_size(), limits.fewest_inputs, limits.most_inputs) ||
      !is_within(in.outputs_size(), limits.fewest_specs, limits.most_specs) ||
      in.op() > limits.last_op) {
    refuse_program("an operation of kind ", in.kind(), " and number ", in.op(), " with ",
                   in.inputs_size(), " inputs and ", in.outputs_size(), " outputs");
  }
  if ((operation.kind != Kind::kCompute) == in.variable().empty()) {
    refuse_program("expected the name of a variable, and of no other operation's");
  }
  operation.attributes = get_attributes(in);
  operation.inputs.assign(in.inputs().begin(), in.inputs().end());
  for (const v1::TaskProgram::Output& output : in.outputs()) {
    if (operation.kind != Kind::kCreate) operation.outputs.push_back(output.value());
    const auto& dims = output.spec().dims();
    operation.specs.push_back({checked_shape({dims.data(), static_cast<std::size_t>(dims.size())}),
                               checked_dtype(output.spec().dtype())});
  }
  operation.device = in.device(), operation.where = in.where();
  operation.variable = in.variable(), operation.rule = in.rule();
  operation.slots.assign(in.slots().begin(), in.slots().end());
  return operation;
}

void check_values(const TaskProgram& program) {
  std::unordered_set<ValueNumber> made;
  const auto make = [&](ValueNumber value) {
    if (!made.insert(value).second) refuse_program("value ", value, " is made twice");
  };
  const auto take = [&](ValueNumber value) {
    if (!made.contains(value)) refuse_program("value ", value, " is used before it is made");
  };
  std::ranges::for_each(program.arguments, make);
  for (const auto& [value, task] : program.received) make(value);
  for (const ProgramOperation& operation : program.operations) {
    std::ranges::for_each(operation.inputs, take);
    std::ranges::for_each(operation.outputs, make);
  }
  std::ranges::for_each(program.kept, take);
  std::ranges::for_each(program.sent, take);
}

}  // namespace

std::string encode_program(const TaskProgram& program) {
  InArena<v1::TaskProgram> message;
  message->mutable_arguments()->Add(program.arguments.begin(), program.arguments.end());
  for (const auto& [value, task] : program.received) {
    v1::TaskProgram::Received& received = *message->add_received();
    received.set_value(value), received.set_job(task.type), received.set_index(task.index);
  }
  for (const ProgramOperation& each : program.operations) {
    put_operation(each, *message->add_operations());
  }
  message->mutable_kept()->Add(program.kept.begin(), program.kept.end());
  message->mutable_sent()->Add(program.sent.begin(), program.sent.end());
  const std::vector<std::byte> bytes = serialized(*message);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

TaskProgram decode_program(std::span<const std::byte> bytes) {
  InArena<v1::TaskProgram> message;
  parse(bytes, *message);
  TaskProgram program;
  program.arguments.assign(message->arguments().begin(), message->arguments().end());
  for (const v1::TaskProgram::Received& each : message->received()) {
    program.received.emplace_back(each.value(), Task{each.job(), each.index()});
  }
  for (const v1::TaskProgram::Operation& each : message->operations()) {
    program.operations.push_back(get_operation(each));
  }
  program.kept.assign(message->kept().begin(), message->kept().end());
  program.sent.assign(message->sent().begin(), message->sent().end());
  check_values(program);
  return program;
}

std::vector<std::vector<ValueNumber>> last_uses(const TaskProgram& program) {
  std::vector<std::vector<ValueNumber>> uses(program.operations.size());
  std::unordered_set<ValueNumber> seen;
  for (std::size_t i = uses.size(); i-- > 0;) {
    const ProgramOperation& operation = program.operations[i];
    for (const auto* values : {&operation.inputs, &operation.outputs}) {
      for (const ValueNumber value : *values) {
        if (seen.insert(value).second) uses[i].push_back(value);
      }
    }
  }
  return uses;
}

}  // namespace tutti::internal
