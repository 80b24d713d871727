// Implements Recording and recompute_grad().
// SPDX-License-Identifier: Apache-2.0
#include "autograd/recording.h"

#include <algorithm>
#include <utility>

#include "autograd/gradients.h"
#include "core/names.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/recompute.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::internal {
namespace {

/// Returns the tensors whose bit is set, with undefined tensors in place of the others, or an empty
/// list if no bit is set.
std::vector<Tensor> selected(std::span<const Tensor> tensors, std::uint32_t bits) {
  if (bits == 0) return {};
  std::vector<Tensor> result(tensors.size());
  for (std::size_t i = 0; i < tensors.size() && i < 32; ++i) {
    if (bits >> i & 1u) result[i] = tensors[i];
  }
  return result;
}

/// Returns a function that reads `variable` again; null if tapes keep the value.
ReadAgain read_again_of(const Variable& variable, const Tensor& value) {
  const std::optional<std::uint64_t> version = variable.storage().released_version();
  if (!version) return {};
  return [variable, version, dtype = value.dtype(), device = value.device()] {
    if (variable.storage().released_version() != version) {
      fail(ErrorCode::kFailedPrecondition, "GradientTape::gradient: Variable '", variable.name(),
           "' was written after the step read it, and the old value was not kept; expected no "
           "write between the read and gradient(); write earlier or later, or set "
           "reshard_after_forward = false");
    }
    const Tensor again = variable.storage().read_as(dtype).to(device).alias();
    tapes_see_read(variable, again);
    return again;
  };
}

}  // namespace

Recording::Recording(const TapeOptions& options)
    : watch_accessed_variables_(options.watch_accessed_variables) {
  observer_.emplace(*this);
  attach(*this);
  attached_ = true;
}

Recording::~Recording() { end(); }

void Recording::end() {
  if (!attached_) return;
  attached_ = false;
  detach(*this);
  observer_.reset();
}

int Recording::new_slot(int variable_slot) {
  variable_slot_.push_back(variable_slot);
  return static_cast<int>(variable_slot_.size()) - 1;
}

void Recording::watch(const Tensor& value) {
  internal::require(value.defined() && is_floating(value.dtype()),
                    "GradientTape::watch: expected a floating-point tensor, got ",
                    value.defined() ? to_string(value.dtype()) : "an undefined one",
                    "; call cast()");
  if (slot_of(value) == kNoSlot) tensor_slots_.emplace(value.id(), new_slot());
}

void Recording::watch(const Variable& variable) {
  internal::require(is_floating(variable.dtype()),
                    "GradientTape::watch: expected a floating-point variable, got '",
                    variable.name(), "' of ", variable.dtype());
  if (slot_of(variable) == kNoSlot) track(variable);
}

int Recording::track(const Variable& variable) {
  const int slot = new_slot();
  variable_slots_.emplace(variable.storage().id(), slot);
  variables_.push_back(variable);
  return slot;
}

/// Returns the slot of the variable, creating it if the tape should watch the variable; kNoSlot if
/// the tape does not watch it.
int Recording::slot_for_read(const Variable& variable) {
  const int slot = slot_of(variable);
  const bool is_watched = slot != kNoSlot || (watch_accessed_variables_ && variable.trainable() &&
                                              is_floating(variable.dtype()));
  internal::require(!is_watched || closed_by_.empty(), closed_by_, ": the function reads the ",
                    "variable '", variable.name(), "'; pass the variable's value as an input");
  return slot == kNoSlot && is_watched ? track(variable) : slot;
}

void Recording::on_read(const Variable& variable, const Tensor& value) {
  const int slot = slot_for_read(variable);
  if (slot == kNoSlot) return;
  const int read_slot = new_slot(slot);
  if (value.dtype() == variable.dtype()) {
    tensor_slots_.emplace(value.id(), read_slot);
  } else {
    add_cast(read_slot, variable, value);
  }
  if (ReadAgain again = read_again_of(variable, value)) {
    read_again_.emplace(slot_of(value), std::move(again));
  }
}

void Recording::add_cast(int read_slot, const Variable& variable, const Tensor& value) {
  Node node;
  node.input_slots = {read_slot};
  node.call.op = OpId::kCast;
  node.call.attributes = CastAttributes{value.dtype()};
  add(std::move(node), {}, {&value, 1});
  nodes_.back().input_specs = {{variable.shape(), variable.dtype()}};
}

void Recording::release_inputs(Node& node) const {
  if (read_again_.empty()) return;
  for (std::size_t i = 0; i < node.call.inputs.size(); ++i) {
    if (!node.call.inputs[i].defined()) continue;
    const auto found = read_again_.find(node.input_slots[i]);
    if (found == read_again_.end()) continue;
    node.read_again.emplace_back(i, found->second);
    node.call.inputs[i] = Tensor();
  }
}

void Recording::note_view(const Node& node, const OpCall& call) {
  if (call.op != OpId::kCast && call.op != OpId::kReshape && call.op != OpId::kTranspose) return;
  const auto found = read_again_.find(node.input_slots.front());
  if (found == read_again_.end()) return;
  OpCall without = call;
  without.inputs.clear();
  read_again_.emplace(node.output_slots.front(), [without, of = found->second] {
    OpCall again = without;
    again.inputs = {of()};
    return dispatch(std::move(again)).front();
  });
}

void Recording::on_read_of_rows(const Variable& variable, const Tensor& rows,
                                const BackwardFunction& backward) {
  const int slot = slot_for_read(variable);
  if (slot == kNoSlot) return;
  Node node;
  node.input_slots = {new_slot(slot)};
  node.backward = backward;
  const Tensor outputs[] = {rows};
  add(std::move(node), {}, outputs);
  nodes_.back().input_specs = {{variable.shape(), variable.dtype()}};
}

int Recording::slot_of(const Tensor& value) const {
  const auto found = tensor_slots_.find(value.id());
  if (found == tensor_slots_.end()) return kNoSlot;
  if (!closed_by_.empty() && std::cmp_less(found->second, first_inner_slot_)) {
    fail(ErrorCode::kInvalidArgument, closed_by_, ": the function uses a tensor ", value.shape(),
         " that a GradientTape recorded outside the function; pass it as an input, or call "
         "stop_gradient() if it is a constant");
  }
  return found->second;
}

int Recording::slot_of(const Variable& variable) const {
  const auto found = variable_slots_.find(variable.storage().id());
  return found == variable_slots_.end() ? kNoSlot : found->second;
}

const Node* Recording::node_that_makes(int slot) const {
  const auto last_slot = [](const Node& node) {
    return node.output_slots.empty() ? kNoSlot : std::ranges::max(node.output_slots);
  };
  const auto found = std::ranges::lower_bound(nodes_, slot, {}, last_slot);
  if (found == nodes_.end() || std::ranges::count(found->output_slots, slot) == 0) return nullptr;
  return &*found;
}

std::optional<MeanOfRows> Recording::mean_of_rows(int slot) const {
  constexpr std::size_t kMostTerms = 32;  // enough, because a loss has only a few terms
  std::vector<int> terms = {slot};
  for (std::size_t i = 0; i < terms.size() && i < kMostTerms; ++i) {
    const Node* const node = terms[i] == kNoSlot ? nullptr : node_that_makes(terms[i]);
    if (!node || node->backward || node->recomputation) continue;
    const OpId op = node->call.op;
    if (op == OpId::kReduceMean) {
      const Shape& shape = node->input_specs[0].shape;
      const bool is_of_rows = node->call.attributes_as<AxesAttributes>().axes & 1u;
      if (shape.rank() > 0 && is_of_rows) return MeanOfRows{shape[0], node->call.where};
    } else if (op == OpId::kAdd || op == OpId::kSubtract || op == OpId::kNegate ||
               op == OpId::kCast) {
      terms.insert(terms.end(), node->input_slots.begin(), node->input_slots.end());
    }
  }
  return std::nullopt;
}

std::vector<int> Recording::tracked(std::span<const Tensor> inputs) const {
  const auto is_tracked = [&](const Tensor& input) { return slot_of(input) != kNoSlot; };
  if (std::ranges::none_of(inputs, is_tracked)) return {};
  std::vector<int> slots;
  slots.reserve(inputs.size());
  for (const Tensor& input : inputs) slots.push_back(slot_of(input));
  return slots;
}

void Recording::on_op(const OpCall& call, std::span<const Tensor> outputs) {
  if (recording_stopped() || is_constant_for_gradients(call.op)) return;
  const auto floats = [](const Tensor& output) { return is_floating(output.dtype()); };
  if (std::ranges::none_of(outputs, floats)) return;
  Node node;
  node.input_slots = tracked(call.inputs);
  if (node.input_slots.empty()) return;
  node.call.op = call.op;
  node.call.attributes = call.attributes;
  node.call.where = call.where;
  node.call.inputs = selected(call.inputs, used_inputs(call));
  node.outputs = selected(outputs, used_outputs(call));
  release_inputs(node);
  add(std::move(node), call.inputs, outputs);
  if (!read_again_.empty()) note_view(nodes_.back(), call);
}

void Recording::on_transfer(const Tensor& from, const Tensor& to, const SourceLocation& where) {
  if (recording_stopped() || slot_of(from) == kNoSlot) return;
  on_custom(std::span(&from, 1), std::span(&to, 1),
            [device = from.device(), where](std::span<const Tensor> dy) {
              return std::vector{Gradient(transfer(Operand(dy[0], where), device))};
            });
}

void Recording::on_custom(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                          const BackwardFunction& backward) {
  Node node;
  node.input_slots = tracked(inputs);
  if (node.input_slots.empty()) return;
  node.backward = backward;
  add(std::move(node), inputs, outputs);
}

void Recording::on_recomputed(const std::shared_ptr<const Recomputation>& recomputation,
                              std::span<const Tensor> outputs) {
  Node node;
  for (const Tensor& input : recomputation->inputs) node.input_slots.push_back(slot_of(input));
  for (const Variable& variable : recomputation->variables) {
    const int slot = slot_for_read(variable);
    node.input_slots.push_back(slot == kNoSlot ? kNoSlot : new_slot(slot));
  }
  const auto is_tracked = [](int slot) { return slot != kNoSlot; };
  if (std::ranges::none_of(node.input_slots, is_tracked)) return;
  node.recomputation = recomputation;
  add(std::move(node), recomputation->inputs, outputs);
}

void Recording::add(Node node, std::span<const Tensor> inputs, std::span<const Tensor> outputs) {
  node.input_specs.reserve(inputs.size());
  for (const Tensor& input : inputs) node.input_specs.push_back({input.shape(), input.dtype()});
  node.output_slots.reserve(outputs.size());
  for (const Tensor& output : outputs) {
    node.output_slots.push_back(is_floating(output.dtype()) ? new_slot() : kNoSlot);
    if (node.output_slots.back() != kNoSlot) {
      tensor_slots_.insert_or_assign(output.id(), node.output_slots.back());
    }
  }
  if (!outputs.empty()) node.remote_device = remote_device_of(outputs.front());
  nodes_.push_back(std::move(node));
}

namespace {

/// Returns the innermost recording attached to this thread; Recording::outer links the outer ones.
Recording*& innermost() {
  thread_local Recording* recording = nullptr;
  return recording;
}

}  // namespace

bool& recording_stopped() {
  thread_local bool stopped = false;
  return stopped;
}

SeparateTapes::SeparateTapes()
    : innermost_(std::exchange(innermost(), nullptr)),
      stopped_(std::exchange(recording_stopped(), false)) {}

SeparateTapes::~SeparateTapes() {
  innermost() = innermost_;
  recording_stopped() = stopped_;
}

TapeBoundary::TapeBoundary() {
  for_each_recording([](Recording& recording) { recording.mark(); });
}

void TapeBoundary::close(std::string_view who) {
  for_each_recording([&](Recording& recording) { recording.close(who); });
}

bool any_tape_records() { return innermost() != nullptr && !recording_stopped(); }

void tapes_see_read(const Variable& variable, const Tensor& value) {
  for_each_recording([&](Recording& recording) { recording.on_read(variable, value); });
}

void tapes_see_rows(const Variable& variable, const Tensor& rows,
                    const BackwardFunction& backward) {
  for_each_recording(
      [&](Recording& recording) { recording.on_read_of_rows(variable, rows, backward); });
}

void attach(Recording& recording) {
  recording.outer = innermost();
  innermost() = &recording;
}

void detach(Recording& recording) {
  Recording** link = &innermost();
  while (*link && *link != &recording) link = &(*link)->outer;
  TUTTI_CHECK(*link == &recording,
              "GradientTape: must be used and destroyed on the thread that created it");
  *link = recording.outer;
  recording.outer = nullptr;
}

void for_each_recording(const std::function<void(Recording&)>& visit) {
  if (recording_stopped()) return;
  for (Recording* recording = innermost(); recording; recording = recording->outer) {
    visit(*recording);
  }
}

}  // namespace tutti::internal

namespace tutti {

// Recomputation in the backward pass.

namespace {

bool& repeating() {
  thread_local bool active = false;
  return active;
}

/// Gives each output a separate identity, even if the function returns an input, or the same value
/// twice.
std::vector<Tensor> apart(std::vector<Tensor> outputs) {
  for (Tensor& output : outputs) output = output.alias();
  return outputs;
}

}  // namespace

internal::RepeatScope::RepeatScope() : ThreadScope(repeating, true) {}
bool internal::RepeatScope::active() { return repeating(); }

std::vector<Tensor> recompute_grad(const RecomputedFunction& function,
                                   std::span<const Tensor> inputs,
                                   std::span<const Variable> variables) {
  if (!internal::any_tape_records()) return function(inputs);
  std::vector<Tensor> outputs;
  {
    const GradientTape::StopRecording stop;
    outputs = apart(function(inputs));
  }
  const auto again = std::make_shared<internal::Recomputation>();
  again->inputs.assign(inputs.begin(), inputs.end());
  again->variables.assign(variables.begin(), variables.end());
  again->function = [function, scope = current_device_scope(),
                     type = AutocastScope::current()](std::span<const Tensor> same) {
    const DeviceScope where_it_was(scope);
    const AutocastScope type_of_then(type);
    const internal::RepeatScope repeats;
    return function(same);
  };
  internal::for_each_recording(
      [&](internal::Recording& recording) { recording.on_recomputed(again, outputs); });
  return outputs;
}

}  // namespace tutti
