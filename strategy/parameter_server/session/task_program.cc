// Encodes and decodes programs and requests; checks that programs define values before using them.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/session/task_program.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "strategy/parameter_server/protocol/message.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

template <class... Parts>
[[noreturn]] void refuse_program(const Parts&... parts) {
  fail(ErrorCode::kDataLoss, "program of a session: ", parts...);
}

// Fields of each attribute type, in encoding order. A dropout operation's random key is an argument
// of the program, so that all steps have the same program.

void visit_fields(std::monostate&, auto&&) {}
void visit_fields(ClipAttributes& a, auto&& visit) { visit(a.low, a.high); }
void visit_fields(CastAttributes& a, auto&& visit) { visit(a.to); }
void visit_fields(AxesAttributes& a, auto&& visit) { visit(a.axes, a.keep_dims); }
void visit_fields(MatMulAttributes& a, auto&& visit) {
  visit(a.transpose_a, a.transpose_b, a.activation, a.sum_over_batch);
}
void visit_fields(Conv2dAttributes& a, auto&& visit) {
  visit(a.stride_h, a.stride_w, a.pad_top, a.pad_bottom, a.pad_left, a.pad_right, a.activation,
        a.dilation_h, a.dilation_w, a.groups);
}
void visit_fields(Pool2dAttributes& a, auto&& visit) {
  visit(a.window_h, a.window_w, a.stride_h, a.stride_w, a.pad_top, a.pad_bottom, a.pad_left,
        a.pad_right);
}
void visit_fields(BatchNormAttributes& a, auto&& visit) { visit(a.epsilon); }
void visit_fields(LrnAttributes& a, auto&& visit) {
  visit(a.depth_radius, a.bias, a.alpha, a.beta);
}
void visit_fields(TransposeAttributes& a, auto&& visit) { visit(a.permutation); }
void visit_fields(SliceAttributes& a, auto&& visit) { visit(a.begin); }
void visit_fields(PadAttributes& a, auto&& visit) { visit(a.before, a.value); }
void visit_fields(AxisAttributes& a, auto&& visit) { visit(a.axis); }
void visit_fields(OneHotAttributes& a, auto&& visit) { visit(a.on, a.off); }
void visit_fields(DropoutAttributes& a, auto&& visit) { visit(a.rate); }
void visit_fields(GroupNormAttributes& a, auto&& visit) { visit(a.positions, a.groups, a.epsilon); }
void visit_fields(CumulativeSumAttributes& a, auto&& visit) {
  visit(a.axis, a.exclusive, a.reverse);
}
void visit_fields(UpsampleAttributes& a, auto&& visit) {
  visit(a.factor_h, a.factor_w, a.interpolation);
}
void visit_fields(AttentionAttributes& a, auto&& visit) {
  visit(a.scale, a.is_causal, a.steps_before);
}

struct FieldWriter {
  ProgramOperation& out;

  void operator()(auto&... fields) { (put(fields), ...); }
  void put(double field) { out.add_numbers(field); }
  template <class T>
  void put(T field) {
    out.add_integers(static_cast<std::int64_t>(field));
  }
  template <class T, std::size_t count>
  void put(const std::array<T, count>& fields) {
    for (const T each : fields) put(each);
  }
};

struct FieldReader {
  const ProgramOperation& in;
  int integer = 1, number = 0;  // next indices in the two lists; integer 0 is the kind

  void operator()(auto&... fields) { (get(fields), ...); }
  void get(double& field) {
    if (number >= in.numbers_size()) refuse_program("attributes: a number is missing");
    field = in.numbers(number++);
  }
  template <class T>
  void get(T& field) {
    if (integer >= in.integers_size()) refuse_program("attributes: an integer is missing");
    const std::int64_t value = in.integers(integer++);
    if (!std::in_range<decltype(as_integer(field))>(value) || value > largest(field)) {
      refuse_program("attributes: ", value, " is out of range");
    }
    field = static_cast<T>(value);
  }
  template <class T, std::size_t count>
  void get(std::array<T, count>& fields) {
    for (T& each : fields) get(each);
  }

  template <class T>
  static auto as_integer(T) {
    if constexpr (std::is_enum_v<T>) {
      return std::underlying_type_t<T>{};
    } else if constexpr (std::is_same_v<T, bool>) {
      return std::uint8_t{};
    } else {
      return T{};
    }
  }
  static std::int64_t largest(bool) { return 1; }
  static std::int64_t largest(DType) { return static_cast<std::int64_t>(DType::kFloat16); }
  static std::int64_t largest(FusedActivation) {
    return static_cast<std::int64_t>(FusedActivation::kTanh);
  }
  static std::int64_t largest(Interpolation) {
    return static_cast<std::int64_t>(Interpolation::kBilinear);
  }
  template <class T>
  static std::int64_t largest(T) {
    return std::numeric_limits<T>::max();
  }
};

template <std::size_t... I>
Attributes attributes_of_kind(std::int64_t kind, std::index_sequence<I...>) {
  Attributes made;
  const auto make = [&]<std::size_t index>(std::integral_constant<std::size_t, index>) {
    if (kind == static_cast<std::int64_t>(index)) made.emplace<index>();
    return kind == static_cast<std::int64_t>(index);
  };
  if ((make(std::integral_constant<std::size_t, I>()) || ...)) return made;
  refuse_program("expected attributes of kind 0 to ", sizeof...(I) - 1, ", got kind ", kind);
}

}  // namespace

void put_attributes(Attributes attributes, ProgramOperation& out) {
  out.add_integers(static_cast<std::int64_t>(attributes.index()));
  std::visit([&](auto& each) { visit_fields(each, FieldWriter{out}); }, attributes);
}

Attributes get_attributes(const ProgramOperation& in) {
  constexpr auto kKinds = std::make_index_sequence<std::variant_size_v<Attributes>>();
  Attributes attributes = attributes_of_kind(in.integers().empty() ? 0 : in.integers(0), kKinds);
  FieldReader reader{in};
  std::visit([&](auto& each) { visit_fields(each, reader); }, attributes);
  if (reader.integer < in.integers_size() || reader.number < in.numbers_size()) {
    refuse_program("attributes: got more numbers than attributes of kind ", attributes.index(),
                   " have");
  }
  return attributes;
}

void put_specs(const std::vector<TensorSpec>& specs, ProgramOperation& out) {
  for (const TensorSpec& spec : specs) put_head(spec, *out.add_specs());
}

std::vector<TensorSpec> get_specs(const ProgramOperation& in) {
  std::vector<TensorSpec> specs;
  for (const v1::TensorHead& head : in.specs()) specs.push_back(spec_of(head));
  return specs;
}

TaskProgram parse_program(const std::string& bytes) {
  TaskProgram program;
  parse(std::as_bytes(std::span(bytes)), program);
  std::unordered_set<ValueNumber> made;
  const auto make = [&](ValueNumber value) {
    if (!made.insert(value).second) refuse_program("value ", value, " is defined twice");
  };
  const auto take = [&](ValueNumber value) {
    if (!made.contains(value)) refuse_program("value ", value, " is used before it is defined");
  };
  std::ranges::for_each(program.arguments(), make);
  for (const auto& each : program.received()) make(each.value());
  for (const ProgramOperation& operation : program.operations()) {
    std::ranges::for_each(operation.inputs(), take);
    std::ranges::for_each(operation.outputs(), make);
  }
  for (const auto& each : program.kept()) take(each.value());
  return program;
}

std::vector<std::vector<ValueNumber>> last_uses(const TaskProgram& program) {
  std::vector<std::vector<ValueNumber>> uses(static_cast<std::size_t>(program.operations_size()));
  std::unordered_set<ValueNumber> seen;
  for (int i = program.operations_size(); i-- > 0;) {
    const ProgramOperation& operation = program.operations(i);
    for (const auto* values : {&operation.inputs(), &operation.outputs()}) {
      for (const ValueNumber value : *values) {
        if (seen.insert(value).second) uses[static_cast<std::size_t>(i)].push_back(value);
      }
    }
  }
  return uses;
}

// Requests.

ValueAddress value_address(const Task& task, std::uint64_t run, ValueNumber value) {
  ValueAddress address;
  address.set_job(task.type), address.set_index(task.index);
  address.set_run(run), address.set_value(value);
  return address;
}

void TaskRequest::add_argument(const Tensor& tensor) {
  put_head({tensor.shape(), tensor.dtype()},
           *message.mutable_run()->add_arguments()->mutable_tensor());
  tensors.push_back(tensor);
}

Packet encode(const TaskRequest& request) {
  PayloadWriter payload;
  for (const Tensor& each : request.tensors) payload.put(each);
  return {serialized(request.message), payload.take()};
}

TaskRequest decode_task_request(const Packet& packet) {
  TaskRequest request;
  parse(packet.head, request.message);
  PayloadReader payload(packet);
  for (const auto& each : request.message.run().arguments()) {
    if (each.has_tensor()) request.tensors.push_back(get_tensor(each.tensor(), payload));
  }
  payload.finish();
  return request;
}

}  // namespace tutti::internal
