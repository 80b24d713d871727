// Tensors as values of the program, operations as lines of it.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/xla/step_trace.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "tensor/op_checks.h"
#include "tensor/xla/emitters.h"

namespace tutti::internal {

// How a value of a step comes to the host, or why it does not.

std::size_t num_bytes_of(const TensorSpec& spec) {
  return size_of(spec.dtype) * static_cast<std::size_t>(spec.shape.num_elements());
}

std::string StepValue::maker() const { return who(what_, where_); }

std::shared_ptr<PjrtBuffer> StepValue::buffer() const {
  MutexLock lock(mutex_);
  return buffer_;
}

void StepValue::set_buffer(std::shared_ptr<PjrtBuffer> buffer) {
  MutexLock lock(mutex_);
  buffer_ = std::move(buffer);
}

void StepValue::give_up() {
  MutexLock lock(mutex_);
  is_lost_ = !buffer_;
}

void StepValue::bring(std::byte* to) {
  MutexLock lock(mutex_);
  if (is_home_) return;
  if (buffer_) {
    buffer_->to_host(to, num_bytes_of(spec_));
    is_home_ = true;
    return;
  }
  if (is_lost_) {
    fail(ErrorCode::kFailedPrecondition, "the value of ", maker(),
         " was to be computed by a step that failed; expected a step that ran; try restoring the "
         "last checkpoint");
  }
  fail(ErrorCode::kFailedPrecondition, "the value of ", maker(),
       " is read on the host within the step that XLA is to compute, before it is computed; "
       "expected a step that only works with tensors; try returning the tensor and reading it "
       "after run()");
}

namespace {

std::uint64_t next_trace_number() {
  static std::atomic<std::uint64_t> last{0};
  return ++last;
}

/// Values of fewer elements are combined over replicas together.
constexpr std::int64_t kSmallValue = 64 * 1024;

std::shared_ptr<StepValue> step_value(const Tensor& tensor) {
  return std::dynamic_pointer_cast<StepValue>(distant_value(tensor));
}

}  // namespace

std::string Trace::Operation::maker() const { return who(what, where); }

Trace::Trace(int replica, int num_replicas, int xla_device)
    : number_(next_trace_number()),
      replica_(replica),
      num_replicas_(num_replicas),
      xla_device_(xla_device),
      device_{DeviceType::kCpu, xla_device} {}

Trace::~Trace() {
  for (const Made& each : made_) {
    if (const auto value = each.value.lock()) value->give_up();
  }
}

void Trace::begin(std::string_view what, const SourceLocation& where) {
  operations_.push_back({what, callers_line(where), text().size()});
}

bool Trace::holds(const Tensor& value) const { return step_value(value) != nullptr; }

/// So that a variable is the same argument before the first step, on the host, as after it.
void Trace::reads(const Tensor& whole) {
  if (step_value(whole)) return;
  variables_.insert_or_assign(whole.buffer().get(), TensorSpec{whole.shape(), whole.dtype()});
}

Hlo Trace::argument(Argument argument) {
  arguments_.push_back(std::move(argument));
  const TensorSpec& spec = arguments_.back().spec;
  return {&text_, -static_cast<int>(arguments_.size()), spec.shape, hlo_type(spec.dtype)};
}

Hlo Trace::host_argument(const Tensor& tensor) {
  const std::byte* const data = tensor.bytes().data();  // brings it home, or throws
  const BufferRef& buffer = tensor.buffer();
  const auto variable = variables_.find(buffer.get());
  if (variable != variables_.end() && variable->second.dtype == tensor.dtype() &&
      num_bytes_of(variable->second) == buffer->size()) {
    return view(host_argument(buffer, buffer->data(), variable->second), tensor);
  }
  return host_argument(buffer, data, {tensor.shape(), tensor.dtype()});
}

Hlo Trace::host_argument(const BufferRef& buffer, const std::byte* data, const TensorSpec& spec) {
  const auto key = std::tuple(data, spec.shape.to_string(), spec.dtype);
  const auto known = host_arguments_.find(key);
  if (known != host_arguments_.end()) return known->second;
  return host_arguments_.emplace(key, argument({buffer, data, nullptr, spec})).first->second;
}

Hlo Trace::device_argument(const Tensor& tensor, const std::shared_ptr<StepValue>& value) {
  const auto known = device_arguments_.find(value.get());
  if (known != device_arguments_.end()) return view(known->second, tensor);
  const Hlo made = argument({tensor.buffer(), nullptr, value, value->spec()});
  device_arguments_.emplace(value.get(), made);
  return view(made, tensor);
}

/// Views of a buffer are made without an operation: rows of it, other shapes.
Hlo Trace::view(const Hlo& whole, const Tensor& tensor) {
  const std::int64_t count = tensor.num_elements();
  if (count == whole.shape.num_elements()) return text_.reshape(whole, tensor.shape());
  const auto first = static_cast<std::int64_t>(offset_in_buffer(tensor) / size_of(tensor.dtype()));
  const Hlo flat = text_.reshape(whole, {whole.shape.num_elements()});
  return text_.reshape(text_.slice(flat, std::array{first}, {count}), tensor.shape());
}

Hlo Trace::value_of(const Tensor& tensor) {
  const std::shared_ptr<StepValue> value = step_value(tensor);
  if (!value) return host_argument(tensor);
  if (value->trace() == number_) return view(made_[value->index()].hlo, tensor);
  if (value->buffer() && value->device() == xla_device_) return device_argument(tensor, value);
  return host_argument(tensor);  // brings it home, or throws
}

Hlo Trace::widened_value(const Tensor& tensor) {
  const Hlo value = value_of(tensor);
  return is_half(tensor.dtype()) ? text_.convert(value, HloType::kF32) : value;
}

Tensor Trace::result(Hlo value, const TensorSpec& spec) {
  const Operation& operation = operations_.back();
  if (is_half(spec.dtype)) value = text_.convert(value, hlo_type(spec.dtype));
  TUTTI_CHECK(value.shape == spec.shape && value.type == hlo_type(spec.dtype), operation.maker(),
              ": expected ", tensor_type(spec.shape, hlo_type(spec.dtype)), ", got ",
              tensor_type(value.shape, value.type));
  const auto made = std::make_shared<StepValue>(number_, made_.size(), xla_device_, spec,
                                                operation.what, operation.where);
  made_.push_back({value, made});
  return distant_tensor(spec, device_, made);
}

std::vector<Tensor> Trace::run(const OpCall& call) {
  const HloEmitter emit = find_emitter(call.op);
  if (!emit) {
    fail(ErrorCode::kUnimplemented, who(call.op, call.where),
         ": cannot be a part of a step that XLA compiles; expected another operation; try it "
         "outside run(), or another strategy");
  }
  begin(to_string(call.op), call.where);
  std::vector<Hlo> inputs;
  for (const Tensor& input : call.inputs) inputs.push_back(widened_value(input));
  if (call.op == OpId::kDropout) {
    const auto words = words_of_key(call.attributes_as<DropoutAttributes>().key);
    inputs.push_back(host_argument(
        Tensor::from<std::int64_t>({4}, std::span<const std::int64_t>(words), device_)));
  }
  const std::vector<Hlo> values = emit(text_, call, inputs);
  TUTTI_CHECK(values.size() == call.outputs.size(), to_string(call.op), ": ", values.size(),
              " outputs of ", call.outputs.size());
  std::vector<Tensor> outputs;
  for (std::size_t i = 0; i < values.size(); ++i)
    outputs.push_back(result(values[i], call.outputs[i]));
  return outputs;
}

/// Rules of one step mostly have the same numbers: one argument for all of them.
Hlo Trace::constants_of(const DeviceRule& rule, DType dtype) {
  for (const auto& [numbers, type, known] : constants_) {
    if (numbers == rule.constants && type == dtype) return known;
  }
  constexpr auto kCount = static_cast<std::int64_t>(DeviceRule::kNumConstants);
  const std::vector<float> narrow(rule.constants.begin(), rule.constants.end());
  const Tensor tensor =
      dtype == DType::kFloat64
          ? Tensor::from<double>({kCount}, std::span<const double>(rule.constants), device_)
          : Tensor::from<float>({kCount}, narrow, device_);
  return std::get<2>(constants_.emplace_back(rule.constants, dtype, host_argument(tensor)));
}

std::vector<Tensor> Trace::update(const DeviceRule& rule, std::span<const Tensor> values,
                                  const Tensor& gradient) {
  begin("update", SourceLocation());
  const DType dtype = values.front().dtype();
  std::vector<Hlo> before;
  for (const Tensor& value : values) before.push_back(value_of(value));
  const std::vector<Hlo> after =
      emit_update(rule, before, value_of(gradient), constants_of(rule, dtype));
  std::vector<Tensor> results;
  for (std::size_t i = 0; i < after.size(); ++i)
    results.push_back(result(after[i], {values[i].shape(), values[i].dtype()}));
  return results;
}

Hlo Trace::combined(ReduceOp op, const Hlo& value) {
  const Hlo all = text_.all_reduce(hlo_name(op), value, num_replicas_);
  return op == ReduceOp::kMean ? all / static_cast<double>(num_replicas_) : all;
}

Tensor Trace::sum_of_one(ReduceOp op, const Tensor& value) {
  return result(combined(op, widened_value(value)), {value.shape(), value.dtype()});
}

std::vector<Tensor> Trace::sums_of_many(ReduceOp op, std::span<const Tensor> values) {
  std::vector<Hlo> parts;
  std::int64_t total = 0;
  for (const Tensor& value : values) {
    parts.push_back(text_.reshape(widened_value(value), {value.num_elements()}));
    total += value.num_elements();
  }
  const Hlo all = combined(op, text_.concatenate(parts, 0));
  std::vector<Tensor> results;
  std::int64_t first = 0;
  for (const Tensor& value : values) {
    const Hlo part = total == value.num_elements()
                         ? all
                         : text_.slice(all, std::array{first}, {value.num_elements()});
    results.push_back(result(text_.reshape(part, value.shape()), {value.shape(), value.dtype()}));
    first += value.num_elements();
  }
  return results;
}

std::vector<Tensor> Trace::all_reduce(ReduceOp op, std::span<const Tensor> values,
                                      const SourceLocation& where) {
  begin("all_reduce", where);
  std::vector<Tensor> results(values.size());
  std::map<DType, std::vector<std::size_t>> small;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (op == ReduceOp::kMean && !is_floating(values[i].dtype())) {
      fail(ErrorCode::kInvalidArgument, operations_.back().maker(), ": MEAN of ", values[i].dtype(),
           "; expected a floating type; try cast()");
    }
    if (num_replicas_ == 1) {
      results[i] = values[i].alias();
    } else if (values[i].num_elements() < kSmallValue) {
      small[values[i].dtype()].push_back(i);
    } else {
      results[i] = sum_of_one(op, values[i]);
    }
  }
  for (const auto& [dtype, places] : small) {
    std::vector<Tensor> together;
    for (const std::size_t i : places) together.push_back(values[i]);
    const std::vector<Tensor> sums = sums_of_many(op, together);
    for (std::size_t i = 0; i < places.size(); ++i) results[places[i]] = sums[i];
  }
  return results;
}

Tensor Trace::all_gather(const Tensor& value, int axis, const SourceLocation& where) {
  begin("all_gather", where);
  if (num_replicas_ == 1) return value.alias();
  const Hlo all = text_.all_gather(value_of(value), axis, num_replicas_);
  const int placed = value.shape().normalized_axis(axis, "all_gather");
  return result(all, {value.shape().with_dim(placed, value.shape().dim(placed) * num_replicas_),
                      value.dtype()});
}

}  // namespace tutti::internal
