// Variables: handles, construction through the current creator, recorded reads, and access to the
// buffers of a variable's components.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/variable.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "autograd/recording.h"
#include "core/call_site.h"
#include "core/hash.h"
#include "core/names.h"
#include "tensor/device_backend.h"
#include "tensor/gpu_device.h"
#include "tensor/kernel_table.h"
#include "tensor/step_hooks.h"
#include "tensor/sum_of_squares.h"
#include "tutti/autograd/recompute.h"
#include "tutti/autograd/variable_storage.h"
#include "tutti/autograd/variable_store.h"
#include "tutti/core/logging.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace {

class LocalVariableCreator final : public VariableCreator {
 public:
  std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                          const RandomKey& key, VariableOptions options) override {
    const Device device = current_device();
    return make_local_storage(initializer({device, key}), device, std::move(options));
  }
};

VariableCreator*& current_creator() {
  static LocalVariableCreator local;
  thread_local VariableCreator* creator = &local;
  return creator;
}

bool& aggregate_on_read() {
  thread_local bool active = false;
  return active;
}

std::shared_ptr<VariableStorage> create_storage(const Variable::Initializer& initializer,
                                                VariableOptions options) {
  const std::uint64_t number = next_variable_number();
  if (options.name.empty()) options.name = concat("variable_", number);
  RandomKey key;
  key.seed = random_seed();
  key.purpose = kInitializerPurpose;
  key.a = number;
  return current_creator()->create(initializer, key, std::move(options));
}

}  // namespace

Variable::Variable(const Initializer& initializer, VariableOptions options)
    : storage_(create_storage(initializer, std::move(options))) {}

Variable::Variable(const Tensor& initial_value, VariableOptions options)
    : Variable([&](const InitializerContext& context) { return initial_value.to(context.device); },
               std::move(options)) {}

VariableStorage& Variable::storage() const {
  if (!storage_) {
    fail(ErrorCode::kFailedPrecondition,
         "Variable: this handle does not refer to a variable; construct it with an initial value");
  }
  return *storage_;
}

Tensor Variable::value() const {
  const std::optional<DType> scope = AutocastScope::current();
  const bool is_cast = scope && storage().options().autocast && is_floating(dtype());
  Tensor value = is_cast ? storage().read_as(*scope) : storage().read();
  if (internal::any_tape_records()) {
    value = value.alias();  // gives each read its own identity on tapes
    internal::tapes_see_read(*this, value);
  }
  return is_cast && value.dtype() != *scope ? cast(value, *scope) : value;
}

void Variable::write(AssignOp op, const Tensor& value) {
  if (internal::RepeatScope::active()) return;
  storage().assign(op, value, ValueOrigin::kComputed);
}

void Variable::write(AssignOp op, double value) {
  if (internal::RepeatScope::active()) return;
  // Fills the value on a component's device, so that nothing is copied to a GPU.
  storage().assign(op, Tensor::full(shape(), value, dtype(), storage().devices().front()),
                   ValueOrigin::kPlain);
}

void Variable::scatter(ScatterOp op, const IndexedSlices& slices) {
  if (!internal::RepeatScope::active()) storage().scatter(op, slices);
}

VariableCreator& VariableCreator::current() { return *current_creator(); }

VariableCreatorScope::VariableCreatorScope(VariableCreator& creator)
    : ThreadScope(current_creator, &creator) {}

AggregateOnReadScope::AggregateOnReadScope() : ThreadScope(aggregate_on_read, true) {}
bool AggregateOnReadScope::active() { return aggregate_on_read(); }

static_assert(std::endian::native == std::endian::little,
              "hashes and checkpoints hold little-endian values");

std::string hash_variables(std::span<const Variable> variables, const SourceLocation& where) {
  const CallSite site(where);
  constexpr std::string_view kEnd("\0", 1);
  Hasher hasher;
  for (const Variable& variable : variables) {
    const Tensor value = variable.storage().read().to(Device{});
    hasher.update(variable.name());
    hasher.update(kEnd);
    hasher.update(to_string(value.dtype()));
    hasher.update(kEnd);
    hasher.update(value.shape().to_string());
    hasher.update(kEnd);
    hasher.update(value.bytes());
  }
  return hasher.hex_digest();
}

namespace {

std::optional<DType>& current_type() {
  thread_local std::optional<DType> dtype;
  return dtype;
}

}  // namespace

AutocastScope::AutocastScope(std::optional<DType> dtype) : ThreadScope(current_type, dtype) {}
std::optional<DType> AutocastScope::current() { return current_type(); }

Variable VariableStore::get(const std::string& name, const Shape& shape,
                            const Variable::Initializer& initializer, VariableOptions options) {
  const auto found = std::ranges::find_if(
      variables_, [&](const Variable& variable) { return variable.name() == name; });
  if (!reuses_) {
    if (found != variables_.end()) {
      fail(ErrorCode::kAlreadyExists, "VariableStore: variable '", name,
           "' already exists; expected a new name; call reuse_variables() to share the variable");
    }
    options.name = name;
    Variable variable(initializer, std::move(options));
    internal::require(variable.shape() == shape, "VariableStore: variable '", name,
                      "': expected shape ", shape, ", got ", variable.shape(),
                      " from its initializer");
    variables_.push_back(variable);
    return variable;
  }
  if (found == variables_.end()) {
    fail(ErrorCode::kNotFound, "VariableStore: there is no variable '", name,
         "' to reuse; expected one of [", join(internal::names_of(variables_, &Variable::name)),
         "]; create the variable before reuse_variables()");
  }
  internal::require(found->shape() == shape, "VariableStore: variable '", name,
                    "' is reused with shape ", shape, "; expected the shape it was created with, ",
                    found->shape());
  return *found;
}

std::vector<Variable> VariableStore::trainable_variables() const {
  std::vector<Variable> trainable;
  std::ranges::copy_if(variables_, std::back_inserter(trainable),
                       [](const Variable& variable) { return variable.trainable(); });
  return trainable;
}

}  // namespace tutti

// One buffer of a variable, with assignments, scatter operations and optimizer updates in place.
//
// Copy-on-write: read() shares the buffer with the tensors that it returns. Writes in place first
// call VariableMemory::writable(), which copies the buffer if such a tensor still exists.

namespace tutti::internal {

namespace {

/// Returns the address from which kernels read the rule's constants in each replay of a captured
/// step; null if no step is being captured. Updates with equal constants share the address, so that
/// one kernel launch applies them.
const double* numbers_of_each_step(Device device, const UpdateRule& rule,
                                   const UpdateScalars& scalars) {
  StepRecorder* const recorder = StepRecorder::current();
  if (!recorder || !scalars.live) return nullptr;
  const StepRecorder::Identity identity = {reinterpret_cast<std::uintptr_t>(&rule),
                                           reinterpret_cast<std::uintptr_t>(scalars.live),
                                           std::bit_cast<std::uint64_t>(scalars.weight_decay), 1};
  const auto write = [&rule, live = scalars.live,
                      weight_decay = scalars.weight_decay](std::byte* place) {
    UpdateScalars now = *live;
    now.weight_decay = weight_decay;
    const DeviceRule numbers = *rule.device_rule(now);
    std::memcpy(place, numbers.constants.data(), sizeof(numbers.constants));
  };
  return static_cast<const double*>(
      recorder->reserve(device, sizeof(DeviceRule::constants), write, identity));
}

// The functions below do not wait for the GPU.

/// Computes value += operand (kAdd) or value -= operand with an operation on the variable's device,
/// which also holds the operand. No tape records the operation.
void accumulate_by_operation(VariableMemory& value, AssignOp op, const Tensor& operand) {
  Tensor result;
  {
    OpCall call;
    call.op = op == AssignOp::kAdd ? OpId::kAdd : OpId::kSubtract;
    call.inputs = {value.read(), operand};
    call.outputs = {{value.shape(), value.dtype()}};
    result = compute(call).front();
  }
  value.assign(result);
}

/// Scatters the slices in position order; ignores out-of-range indices. The slices may be on any
/// device.
void scatter_on_gpu(VariableMemory& value, ScatterOp op, const IndexedSlices& slices) {
  const Tensor values = slices.values.to(value.device()), rows = slices.indices.to(value.device());
  if (values.num_elements() == 0) return;
  const auto view = [](const auto& tensor) {
    return DeviceTensor{const_cast<void*>(tensor.address()), tensor.shape(), tensor.dtype()};
  };
  const DeviceScatter scatter{op, view(value.writable()), view(rows), view(values)};
  GpuDevice::of(value.device()).with_context([&](DeviceContext& context) {
    context.scatter(scatter);
  });
}

/// Applies the rule with its kernel; `values` are the weights and then the rule's slots. Returns
/// false and changes nothing if the rule has no kernel for these weights.
bool update_on_gpu(std::span<VariableMemory* const> values, const UpdateRule& rule,
                   const Tensor& gradient, const UpdateScalars& scalars) {
  const std::optional<DeviceRule> kernel = rule.device_rule(scalars);
  const std::size_t most_slots = DeviceUpdateItem::kMaxSlots - (rule.uses_norms() ? 1 : 0);
  if (!kernel || values.size() > most_slots + 1) return false;
  const Device device = values.front()->device();
  const DType dtype = values.front()->dtype();
  std::vector<void*> places;
  for (VariableMemory* value : values) {
    TUTTI_CHECK(value->shape() == gradient.shape() && value->dtype() == dtype, rule.name(),
                ": expected a slot that matches the gradient, got a slot of shape ", value->shape(),
                " for a gradient of shape ", gradient.shape());
    places.push_back(value->writable().address());
  }
  DeviceUpdateItem item;
  item.weights = places.front();
  std::copy(places.begin() + 1, places.end(), item.slots.begin());
  item.gradient = gradient.address();
  item.count = static_cast<std::size_t>(gradient.num_elements());
  std::vector<BufferRef> buffers = {gradient.buffer()};
  if (rule.uses_norms()) {
    const std::size_t bytes = DeviceUpdateItem::num_sums(item.count) * sizeof(double);
    item.slots.back() = buffers.emplace_back(BufferRef::allocate(bytes, device))->data();
  }
  GpuDevice::of(device).update_later(dtype, *kernel, item, std::move(buffers),
                                     numbers_of_each_step(device, rule, scalars));
  return true;
}

/// Returns true if the value belongs to a traced step or to another task.
bool is_of_step(const Tensor& value) {
  const StepTracer* const tracer = StepTracer::current();
  return (tracer && tracer->holds(value)) || remote_device_of(value);
}

/// Copies `value` if it is part of a larger buffer and belongs to a traced step or another task.
/// Uses an operation, because the host does not have the elements.
Tensor with_own_buffer(const Tensor& value) {
  if (value.buffer()->size() == value.num_bytes() || !is_of_step(value)) return value;
  OpCall call;
  call.op = OpId::kReshape;
  call.inputs = {value};
  call.outputs = {{value.shape(), value.dtype()}};
  return compute(call).front();
}

/// Adds the rule to the traced step; `values` are the weights, followed by the rule's slots.
void update_in_trace(StepTracer& tracer, std::span<VariableMemory* const> values,
                     const UpdateRule& rule, const Tensor& gradient, const UpdateScalars& scalars) {
  const std::optional<DeviceRule> numbers = rule.device_rule(scalars);
  if (!numbers) {
    fail(ErrorCode::kUnimplemented, "the optimizer '", rule.name(),
         "' cannot be part of a step that XLA compiles; expected a built-in rule; "
         "use Sgd or Adam");
  }
  std::vector<Tensor> before;
  for (const VariableMemory* value : values) before.push_back(value->read());
  const std::vector<Tensor> after = tracer.update(*numbers, before, gradient);
  for (std::size_t i = 0; i < values.size(); ++i) values[i]->assign(after[i]);
}

/// Logs the warning once per rule.
void warn_of_update_by_host(const UpdateRule& rule) {
  log_warning_once(concat("the optimizer '", rule.name(),
                          "' has no GPU kernel, so each of its updates runs on the host, "
                          "which is slow"));
}

}  // namespace
}  // namespace tutti::internal

namespace tutti {
namespace {

[[noreturn]] void fail_bool(const char* what) {
  fail(ErrorCode::kInvalidArgument, what,
       ": expected a variable of a numeric type, got one of type bool; call assign()");
}

template <class T>
void accumulate(std::span<T> into, std::span<const T> value, AssignOp op) {
  if (op == AssignOp::kAdd) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = static_cast<T>(into[i] + value[i]);
  } else {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = static_cast<T>(into[i] - value[i]);
  }
}

void check_index_type(const Tensor& indices, const std::string& who) {
  internal::require(indices.dtype() == DType::kInt64 || indices.dtype() == DType::kInt32, who,
                    ": expected int32 or int64 indices, got ", indices.dtype());
}

}  // namespace

std::vector<std::int64_t> internal::checked_rows(const Tensor& indices, std::int64_t num_rows,
                                                 const std::string& who) {
  check_index_type(indices, who);
  std::vector<std::int64_t> rows(static_cast<std::size_t>(indices.num_elements()));
  if (indices.dtype() == DType::kInt64) {
    std::ranges::copy(indices.host_span<std::int64_t>(), rows.begin());
  } else {
    std::ranges::copy(indices.host_span<std::int32_t>(), rows.begin());
  }
  for (std::size_t i = 0; i < rows.size(); ++i) {
    internal::require(rows[i] >= 0 && rows[i] < num_rows, who,
                      ": index out of range; expected 0 .. ", num_rows - 1, ", got ", rows[i],
                      " at position ", i);
  }
  return rows;
}

void internal::check_slices(const IndexedSlices& slices, const Shape& shape, DType dtype,
                            const std::string& who) {
  internal::require(slices.values.defined() && slices.indices.defined(), who,
                    ": expected defined values and indices, got undefined ones");
  internal::require(shape.rank() > 0, who,
                    ": a scalar has no rows; expected a variable of rank 1 "
                    "or more; call assign()");
  const Shape expected = shape.with_dim(0, slices.indices.num_elements());
  internal::require(slices.indices.rank() == 1 && slices.values.shape() == expected, who,
                    ": the slices do not match the shape ", shape,
                    "; expected indices [n] and values [n", shape.rank() > 1 ? ", ...]" : "]",
                    ", got indices ", slices.indices.shape(), " and values ",
                    slices.values.shape());
  internal::require(slices.values.dtype() == dtype, who, ": expected values of ", dtype, ", got ",
                    slices.values.dtype(), "; call cast()");
}

namespace {

using internal::check_slices;
using internal::checked_rows;

bool is_on_gpu(const Tensor& tensor) { return tensor.device().type != DeviceType::kCpu; }

void check_divisors(const Tensor& values, const std::string& who) {
  visit_dtype(values.dtype(), [&]<class T>() {
    if constexpr (std::is_integral_v<T>) {
      if (std::ranges::count(values.host_span<T>(), T{0}) == 0) return;
      fail(ErrorCode::kInvalidArgument, who, ": cannot divide an integer variable by zero");
    }
  });
}

/// Distinct rows of `slices`, ascending, and the sum of each row's values, added in position order.
struct SummedRows {
  std::vector<std::int64_t> rows;
  Tensor values;  // shape [rows.size(), ...]
};

SummedRows sum_duplicates(const IndexedSlices& slices, const std::vector<std::int64_t>& rows) {
  std::vector<std::size_t> order(rows.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return rows[i]; });
  SummedRows result;
  for (const std::size_t i : order) {
    if (result.rows.empty() || result.rows.back() != rows[i]) result.rows.push_back(rows[i]);
  }
  const auto num_rows = static_cast<std::int64_t>(result.rows.size());
  MutableTensor sums(slices.values.shape().with_dim(0, num_rows), slices.values.dtype(),
                     slices.values.device());
  visit_floating(slices.values.dtype(), "VariableComponent::update", [&]<class T>() {
    const auto values = slices.values.host_span<T>();
    const std::size_t row_size = rows.empty() ? 0 : values.size() / rows.size();
    T* out = sums.span<T>().data();
    std::int64_t previous = -1;
    for (const std::size_t i : order) {
      const T* in = values.data() + i * row_size;
      if (rows[i] != previous) {
        if (previous >= 0) out += row_size;
        std::copy_n(in, row_size, out);
      } else {
        for (std::size_t k = 0; k < row_size; ++k) out[k] += in[k];
      }
      previous = rows[i];
    }
  });
  result.values = sums.freeze();
  return result;
}

/// Returns the beginning of an error message. Dense updates on CPUs build it only for errors,
/// because building it takes as long as updating a small variable.
std::string who_updates(const UpdateRule& rule) {
  return concat("VariableComponent::update (", rule.name(), ")");
}

void check_dense(const Tensor& gradient, const Shape& shape, DType dtype, const UpdateRule& rule) {
  if (gradient.shape() == shape && gradient.dtype() == dtype) return;
  fail(ErrorCode::kInvalidArgument, who_updates(rule), ": the gradient does not match; expected ",
       shape, " of ", dtype, ", got ", gradient.shape(), " of ", gradient.dtype());
}

void apply_with_norms(const UpdateRule& rule, UpdateArgs args) {
  std::vector<std::byte> direction(args.count * size_of(args.dtype));
  rule.direct(args, direction.data());
  args.scalars.weight_norm = std::sqrt(sum_of_squares(args.dtype, args.weights_data, args.count));
  args.scalars.direction_norm = std::sqrt(sum_of_squares(args.dtype, direction.data(), args.count));
  args.scalars.gradient_scale = 1.0;
  args.gradient_data = direction.data();
  rule.apply(args);
}

}  // namespace

void VariableComponent::assign(AssignOp op, const Tensor& value) {
  if (op == AssignOp::kAssign) {
    memory_->assign(internal::with_own_buffer(value));
    return;
  }
  TUTTI_CHECK(value.shape() == memory_->shape() && value.dtype() == memory_->dtype(),
              "VariableComponent::assign: expected ", memory_->shape(), " of ", memory_->dtype(),
              ", got ", value.shape(), " of ", value.dtype());
  if (value.dtype() == DType::kBool) fail_bool("VariableComponent::assign");
  if (device().type != DeviceType::kCpu) {
    return internal::accumulate_by_operation(*memory_, op, value.to(device()));
  }
  const bool is_recorded = StepTracer::current() || RemoteRecorder::current();
  if (is_recorded && (internal::is_of_step(value) || internal::is_of_step(memory_->read()))) {
    return internal::accumulate_by_operation(*memory_, op, value.to(device()));
  }
  const MutableTensor& own =
      memory_->writable();  // called first: throws if a captured step uses the variable
  const Tensor local = value.to(device());
  visit_dtype(own.dtype(), [&]<class T>() {
    if constexpr (!std::is_same_v<T, bool>) {
      accumulate<T>(own.span<T>(), local.host_span<T>(), op);
    }
  });
}

void VariableComponent::scatter(ScatterOp op, const IndexedSlices& slices,
                                const std::string& name) {
  const std::string who = concat("Variable '", name, "'.", op);
  check_slices(slices, memory_->shape(), memory_->dtype(), who);
  if (memory_->dtype() == DType::kBool && op != ScatterOp::kUpdate) fail_bool(who.c_str());
  const bool on_gpu = device().type != DeviceType::kCpu;
  if (op == ScatterOp::kDivide && !(on_gpu && is_on_gpu(slices.values))) {
    check_divisors(slices.values.to(Device{}), who);
  }
  if (on_gpu && is_on_gpu(slices.indices)) {
    check_index_type(slices.indices, who);
    return internal::scatter_on_gpu(*memory_, op, slices);
  }
  const auto rows = checked_rows(slices.indices.to(Device{}), memory_->shape().dim(0), who);
  if (on_gpu) return internal::scatter_on_gpu(*memory_, op, slices);
  const Tensor local = slices.values.to(device());
  visit_dtype(memory_->dtype(), [&]<class T>() {
    const auto values = local.host_span<T>();
    if (values.empty()) return;
    const std::size_t row_size = values.size() / rows.size();
    T* const out = memory_->writable().span<T>().data();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      T* const row = out + static_cast<std::size_t>(rows[i]) * row_size;
      for (std::size_t k = 0; k < row_size; ++k) {
        row[k] = internal::scattered<T>(op, row[k], values[i * row_size + k]);
      }
    }
  });
}

void VariableComponent::update(VariableComponent& weights,
                               std::span<VariableComponent* const> slots, const UpdateRule& rule,
                               const Gradient& gradient, const UpdateScalars& scalars) {
  if (gradient.is_none()) return;
  if (weights.device().type != DeviceType::kCpu) {
    return update_on_gpu(weights, slots, rule, gradient, scalars);
  }
  if (StepTracer* const tracer = StepTracer::current()) {
    std::vector<VariableMemory*> values = {weights.memory_.get()};
    for (VariableComponent* slot : slots) values.push_back(slot->memory_.get());
    const Tensor dense = gradient.to_dense().to(weights.device());
    check_dense(dense, weights.memory_->shape(), weights.memory_->dtype(), rule);
    return internal::update_in_trace(*tracer, values, rule, dense, scalars);
  }
  const MutableTensor& value = weights.memory_->writable();
  const std::size_t element_size = size_of(value.dtype());
  std::vector<std::byte*> slot_data;
  for (VariableComponent* slot : slots) {
    const MutableTensor& own = slot->memory_->writable();
    TUTTI_CHECK(own.shape() == value.shape() && own.dtype() == value.dtype(), who_updates(rule),
                ": expected slots shaped like the weights, got a slot of shape ", own.shape(),
                " for weights of shape ", value.shape());
    slot_data.push_back(own.data());
  }
  std::vector<void*> pointers(slots.size());
  const auto apply = [&](std::size_t first, std::size_t count, const std::byte* gradient_data) {
    for (std::size_t s = 0; s < pointers.size(); ++s) {
      pointers[s] = slot_data[s] + first * element_size;
    }
    rule.apply(UpdateArgs{value.dtype(), count, value.data() + first * element_size, pointers,
                          gradient_data, scalars});
  };

  if (gradient.is_slices() && rule.skips_zero_gradient()) {
    const std::string who = who_updates(rule);
    IndexedSlices slices = gradient.slices();
    check_slices(slices, value.shape(), value.dtype(), who);
    slices = {slices.values.to(weights.device()), slices.indices.to(weights.device()),
              slices.dense_shape};
    const auto rows = checked_rows(slices.indices, value.shape().dim(0), who);
    const SummedRows sums = sum_duplicates(slices, rows);
    if (sums.rows.empty() || sums.values.num_elements() == 0) return;
    const std::size_t row_size =
        static_cast<std::size_t>(sums.values.num_elements()) / sums.rows.size();
    const std::byte* gradient_data = sums.values.bytes().data();
    for (std::size_t i = 0; i < sums.rows.size(); ++i) {
      apply(static_cast<std::size_t>(sums.rows[i]) * row_size, row_size,
            gradient_data + i * row_size * element_size);
    }
    return;
  }
  const Tensor dense = gradient.to_dense().to(weights.device());
  check_dense(dense, value.shape(), value.dtype(), rule);
  const auto count = static_cast<std::size_t>(dense.num_elements());
  if (count == 0) return;
  if (!rule.uses_norms()) {
    apply(0, count, dense.bytes().data());
    return;
  }
  for (std::size_t s = 0; s < pointers.size(); ++s) pointers[s] = slot_data[s];
  apply_with_norms(rule, UpdateArgs{value.dtype(), count, value.data(), pointers,
                                    dense.bytes().data(), scalars});
}

void VariableComponent::update_on_gpu(VariableComponent& weights,
                                      std::span<VariableComponent* const> slots,
                                      const UpdateRule& rule, const Gradient& gradient,
                                      const UpdateScalars& scalars) {
  const VariableMemory& own = *weights.memory_;
  if (gradient.is_slices()) {
    check_slices(gradient.slices(), own.shape(), own.dtype(), who_updates(rule));
  }
  const Tensor dense = gradient.to_dense().to(weights.device());
  check_dense(dense, own.shape(), own.dtype(), rule);
  if (dense.num_elements() == 0) return;
  std::vector<VariableMemory*> values = {weights.memory_.get()};
  for (VariableComponent* slot : slots) values.push_back(slot->memory_.get());
  if (internal::update_on_gpu(values, rule, dense, scalars)) return;
  internal::warn_of_update_by_host(rule);
  VariableComponent weights_on_host(weights.read(), Device{});
  std::vector<VariableComponent> slots_on_host;
  for (VariableComponent* slot : slots) slots_on_host.emplace_back(slot->read(), Device{});
  std::vector<VariableComponent*> pointers;
  for (VariableComponent& slot : slots_on_host) pointers.push_back(&slot);
  update(weights_on_host, pointers, rule, dense.to(Device{}), scalars);
  weights.memory_->assign(weights_on_host.read());
  for (std::size_t s = 0; s < slots.size(); ++s) slots[s]->memory_->assign(slots_on_host[s].read());
}

}  // namespace tutti
