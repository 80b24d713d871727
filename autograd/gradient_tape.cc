// Implements GradientTape and the backward pass over a recording.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/gradient_tape.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "autograd/gradients.h"
#include "autograd/recording.h"
#include "core/names.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/op.h"

namespace tutti {

struct GradientTape::Impl {
  explicit Impl(const TapeOptions& tape_options) : options(tape_options), recording(options) {}

  /// Checks the arguments, ends the recording of a non-persistent tape and runs the backward pass.
  std::vector<Gradient> gradient(const Tensor& target, const Tensor& output_gradient,
                                 std::vector<int> sources, const OnReady& on_ready) {
    check_target(target, output_gradient);
    if (used) {
      fail(ErrorCode::kFailedPrecondition,
           "GradientTape::gradient: expected one call on a tape that is not persistent, got a "
           "second; use TapeOptions{.persistent = true}");
    }
    if (!options.persistent) {
      used = true;
      recording.end();
    }
    note_target(target);
    const Tensor initial = output_gradient.defined()
                               ? output_gradient
                               : Tensor::ones(target.shape(), target.dtype(), target.device());
    return internal::walk_back(
        recording, std::move(sources),
        options.persistent ? internal::NodeLifetime::kKeep : internal::NodeLifetime::kRelease,
        recording.slot_of(target), initial, on_ready);
  }

  void note_target(const Tensor& target) const {
    ReplicaGroup* const group = ReplicaGroup::find_current();
    if (!group || group->num_replicas() == 1) return;
    group->note_target(recording.mean_of_rows(recording.slot_of(target)));
  }

  static void check_target(const Tensor& target, const Tensor& output_gradient) {
    internal::require(target.defined() && is_floating(target.dtype()),
                      "GradientTape::gradient: expected a floating-point target, got ",
                      target.defined() ? to_string(target.dtype()) : "an undefined tensor");
    if (!output_gradient.defined()) return;
    internal::require(
        output_gradient.shape() == target.shape() && output_gradient.dtype() == target.dtype(),
        "GradientTape::gradient_with: the output gradient does not match the target; expected ",
        target.shape(), " of ", target.dtype(), ", got ", output_gradient.shape(), " of ",
        output_gradient.dtype());
  }

  template <class Source>
  std::vector<int> slots(std::span<const Source> sources) const {
    std::vector<int> result;
    for (const Source& source : sources) result.push_back(recording.slot_of(source));
    return result;
  }

  TapeOptions options;
  internal::Recording recording;
  bool used = false;
};

GradientTape::GradientTape(TapeOptions options) : impl_(std::make_unique<Impl>(options)) {}
GradientTape::~GradientTape() = default;

void GradientTape::watch(const Tensor& value) { impl_->recording.watch(value); }
void GradientTape::watch(const Variable& variable) { impl_->recording.watch(variable); }

std::vector<Gradient> GradientTape::gradient(const Tensor& target,
                                             std::span<const Variable> sources,
                                             const OnReady& on_ready) {
  return impl_->gradient(target, Tensor(), impl_->slots(sources), on_ready);
}

std::vector<Gradient> GradientTape::gradient(const Tensor& target,
                                             std::span<const Tensor> sources) {
  return impl_->gradient(target, Tensor(), impl_->slots(sources), {});
}

Gradient GradientTape::gradient(const Tensor& target, const Variable& source) {
  return gradient(target, std::span(&source, 1)).front();
}

Gradient GradientTape::gradient(const Tensor& target, const Tensor& source) {
  return gradient(target, std::span(&source, 1)).front();
}

std::vector<Gradient> GradientTape::gradient_with(const Tensor& target,
                                                  const Tensor& output_gradient,
                                                  std::span<const Variable> sources) {
  return gradient_with(target, output_gradient, sources, {});
}

std::vector<Gradient> GradientTape::gradient_with(const Tensor& target,
                                                  const Tensor& output_gradient,
                                                  std::span<const Variable> variables,
                                                  std::span<const Tensor> values) {
  internal::require(output_gradient.defined(),
                    "GradientTape::gradient_with: expected a defined output gradient, got an "
                    "undefined tensor; for ones, call gradient()");
  std::vector<int> slots = impl_->slots(variables);
  for (const int slot : impl_->slots(values)) slots.push_back(slot);
  return impl_->gradient(target, output_gradient, std::move(slots), {});
}

void GradientTape::stop() { impl_->recording.end(); }

std::vector<Variable> GradientTape::watched_variables() const {
  return impl_->recording.variables();
}

GradientTape::StopRecording::StopRecording() : ThreadScope(internal::recording_stopped, true) {}

void record_custom_gradient(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                            BackwardFunction backward) {
  for (const Tensor& output : outputs) {
    for (const Tensor& input : inputs) {
      internal::require(
          output.id() != input.id(),
          "record_custom_gradient: an output is one of the inputs; return output.alias()");
    }
  }
  const BackwardFunction in_this_scope =
      [scope = current_device_scope(),
       backward = std::move(backward)](std::span<const Tensor> output_gradients) {
        const DeviceScope where_it_was_recorded(scope);
        return backward(output_gradients);
      };
  internal::for_each_recording(
      [&](internal::Recording& recording) { recording.on_custom(inputs, outputs, in_this_scope); });
}

}  // namespace tutti

// The backward pass over a recording.
//
// Nodes are processed in reverse order of recording. So every node that used a value is processed
// before the node that computed the value, and gradients are added in an order that depends only on
// the program. The gradient of a source is final when the earliest active node that used the source
// (for a variable: any read of the variable) has been processed.

namespace tutti::internal {
namespace {

constexpr std::size_t kNoUse = std::numeric_limits<std::size_t>::max();

std::string name_of(const Node& node) {
  return node.backward ? "record_custom_gradient" : concat("gradient of ", to_string(node.call.op));
}

void check_gradients(const Node& node, std::span<const Gradient> gradients) {
  if (gradients.size() != node.input_specs.size()) {
    fail(ErrorCode::kInvalidArgument, name_of(node), ": expected ", node.input_specs.size(),
         " gradients, one per input, got ", gradients.size());
  }
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].is_none()) continue;
    const Shape& shape =
        gradients[i].is_dense() ? gradients[i].dense().shape() : gradients[i].slices().dense_shape;
    if (shape != node.input_specs[i].shape) {
      fail(ErrorCode::kInvalidArgument, name_of(node), ": the gradient of input ", i,
           " has the wrong shape; expected ", node.input_specs[i].shape, ", got ", shape);
    }
  }
}

/// One backward pass; an object serves one pass only. A node is *active* if it depends on a source
/// and the target depends on it. Only active nodes run their gradient functions.
class BackwardPass {
 public:
  BackwardPass(Recording& recording, std::vector<int> source_slots, NodeLifetime lifetime)
      : recording_(recording),
        source_slots_(std::move(source_slots)),
        lifetime_(lifetime),
        num_nodes_(recording.num_nodes()),
        wanted_(recording.num_slots()),
        depends_(recording.num_slots()),
        active_(num_nodes_),
        first_use_(recording.num_slots(), kNoUse),
        sums_(recording.num_slots()),
        results_(source_slots_.size()) {}

  std::vector<Gradient> run(int target_slot, const Tensor& initial,
                            const GradientTape::OnReady& on_ready) {
    const NoDeviceScope where_the_operations_were;
    mark_dependents();
    mark_active({&target_slot, 1});
    order_sources();
    if (target_slot != kNoSlot) accumulate(target_slot, Gradient(initial));
    walk(on_ready);
    report_missing(on_ready);
    return std::move(results_);
  }

 private:
  void walk(const GradientTape::OnReady& on_ready) {
    report_ready(kNoUse, on_ready);
    for (std::size_t i = num_nodes_; i-- > 0;) {
      if (lifetime_ == NodeLifetime::kRelease) {
        Node node = std::exchange(recording_.node(i), Node());
        if (active_[i]) process(node);
      } else if (active_[i]) {
        process(recording_.node(i));
      }
      report_ready(i, on_ready);
    }
  }

  void mark_dependents() {
    for (const int slot : source_slots_) {
      if (slot != kNoSlot) wanted_[index_of(slot)] = 1;
    }
    for (std::size_t slot = 0; slot < depends_.size(); ++slot) {
      const int variable = recording_.variable_slot(static_cast<int>(slot));
      depends_[slot] = wanted_[slot] || (variable != kNoSlot && wanted_[index_of(variable)]);
    }
    for (std::size_t i = 0; i < num_nodes_; ++i) {
      const Node& node = recording_.node(i);
      if (!std::ranges::any_of(node.input_slots, [&](int slot) { return depends(slot); })) continue;
      for (const int slot : node.output_slots) {
        if (slot != kNoSlot) depends_[index_of(slot)] = 1;
      }
    }
  }

  void mark_active(std::span<const int> target_slots) {
    std::vector<char> leads(depends_.size());  // by slot: nonzero if a target depends on the slot
    for (const int slot : target_slots) {
      if (slot != kNoSlot) leads[index_of(slot)] = 1;
    }
    for (std::size_t i = num_nodes_; i-- > 0;) {
      const Node& node = recording_.node(i);
      const auto reaches = [&](int slot) { return slot != kNoSlot && leads[index_of(slot)]; };
      if (!std::ranges::any_of(node.output_slots, reaches)) continue;
      for (const int slot : node.input_slots) {
        if (!depends(slot)) continue;
        active_[i] = 1;
        leads[index_of(slot)] = 1;
        first_use_[index_of(slot)] = i;
        const int variable = recording_.variable_slot(slot);
        if (variable != kNoSlot) first_use_[index_of(variable)] = i;
      }
    }
  }

  void order_sources() {
    report_order_.resize(source_slots_.size());
    std::iota(report_order_.begin(), report_order_.end(), std::size_t{0});
    // If several sources become final at the same node, the last one is reported first.
    std::ranges::reverse(report_order_);
    std::ranges::stable_sort(report_order_, std::greater<>(), [&](std::size_t source) {
      const int slot = source_slots_[source];
      return slot == kNoSlot ? kNoUse : first_use_[index_of(slot)];
    });
  }

  void process(Node& node) {
    std::vector<Tensor> gradients;
    bool any = false;
    for (const int slot : node.output_slots) {
      gradients.push_back(slot == kNoSlot ? Tensor() : sums_[index_of(slot)].dense_total());
      any = any || gradients.back().defined();
      if (slot != kNoSlot) sums_[index_of(slot)].clear();
    }
    if (!any) return;
    if (node.recomputation) return process_again(node, gradients);
    if (!node.backward && node.call.op == OpId::kSlice) {
      // Padding each slice to the full shape would take time quadratic in the number of slices.
      accumulate(node.input_slots[0],
                 slice_block({node.call, node.input_specs, node.outputs, gradients, {}}));
      return;
    }
    const std::vector<Gradient> inputs = gradients_where_it_was(node, gradients);
    check_gradients(node, inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (depends(node.input_slots[i])) accumulate(node.input_slots[i], inputs[i]);
    }
  }

  /// Runs the node's function again and continues the backward pass through the new recording. Adds
  /// to the existing sums, so that the order of additions is the same as without recomputation.
  void process_again(const Node& node, std::span<const Tensor> gradients) {
    const Recomputation& again = *node.recomputation;
    std::optional<SeparateTapes> alone;  // if recording is stopped, detaches the outer tapes
    if (recording_stopped()) alone.emplace();
    Recording recording({.watch_accessed_variables = false});
    std::vector<int> sources, own_slots;  // slots in the new recording and in this one
    const auto add_source = [&](std::size_t input, const auto& value) {
      const int slot = node.input_slots[input];
      if (!depends(slot)) return;
      const int variable = recording_.variable_slot(slot);
      if (variable != kNoSlot && wanted_[index_of(slot)]) {
        fail(ErrorCode::kUnimplemented,
             "recompute_grad: an input that was read from a variable is also a source of the "
             "gradient; use the variable as the source, or watch input.alias()");
      }
      recording.watch(value);
      own_slots.push_back(variable == kNoSlot ? slot : variable);
      sources.push_back(recording.slot_of(value));
      if (std::ranges::count(sources, sources.back()) == 1) return;
      sources.pop_back();  // duplicate
      own_slots.pop_back();
    };
    const std::size_t num_inputs = again.inputs.size();
    for (std::size_t i = 0; i < num_inputs; ++i) add_source(i, again.inputs[i]);
    for (std::size_t v = 0; v < again.variables.size(); ++v) {
      add_source(num_inputs + v, again.variables[v]);
    }
    const std::vector<Tensor> outputs = again.function(again.inputs);
    recording.end();
    BackwardPass pass(recording, sources, NodeLifetime::kRelease);
    for (std::size_t s = 0; s < sources.size(); ++s) {
      pass.sums_[index_of(sources[s])] =
          std::exchange(sums_[index_of(own_slots[s])], GradientSum());
    }
    std::vector<int> targets;
    for (const Tensor& output : outputs) targets.push_back(recording.slot_of(output));
    pass.mark_dependents();
    pass.mark_active(targets);
    pass.order_sources();
    for (std::size_t i = 0; i < targets.size(); ++i) {
      if (targets[i] == kNoSlot || !gradients[i].defined()) continue;
      pass.accumulate(targets[i], Gradient(gradients[i]));
    }
    // Mark all sources as reported, because the outer pass still adds to their sums.
    pass.num_reported_ = pass.report_order_.size();
    pass.walk({});
    for (std::size_t s = 0; s < sources.size(); ++s) {
      sums_[index_of(own_slots[s])] = std::move(pass.sums_[index_of(sources[s])]);
    }
  }

  /// Runs the node's gradient function on the task that ran the operation, regardless of the
  /// gradients' devices.
  std::vector<Gradient> gradients_where_it_was(const Node& node,
                                               std::span<const Tensor> gradients) {
    std::optional<DeviceScope> task;
    if (node.remote_device) task.emplace(*node.remote_device);
    return input_gradients(node, gradients);
  }

  std::vector<Gradient> input_gradients(const Node& node, std::span<const Tensor> gradients) {
    if (node.backward) return node.backward(gradients);
    const GradientFunction function = find_gradient(node.call.op);
    if (!function) {
      fail(ErrorCode::kUnimplemented, "GradientTape::gradient: the operation ",
           to_string(node.call.op), " (called at ", to_string(node.call.where),
           ") has no gradient; try an operation that has one, stop_gradient(), or "
           "record_custom_gradient()");
    }
    std::vector<std::uint8_t> needed;
    for (const int slot : node.input_slots) needed.push_back(depends(slot));
    if (node.read_again.empty()) {
      return function({node.call, node.input_specs, node.outputs, gradients, needed});
    }
    OpCall call = node.call;
    for (const auto& [input, read_again] : node.read_again) call.inputs[input] = read_again();
    return function({call, node.input_specs, node.outputs, gradients, needed});
  }

  /// Adds a Gradient or a GradientBlock to the sum of `slot` or, if `slot` is a read, of its
  /// variable.
  template <class Part>
  void accumulate(int slot, const Part& part) {
    const int variable = recording_.variable_slot(slot);
    if (variable == kNoSlot || wanted_[index_of(slot)]) sums_[index_of(slot)].add(part);
    if (variable != kNoSlot) sums_[index_of(variable)].add(part);
  }

  /// Reports the sources whose first active use is node `index`.
  void report_ready(std::size_t index, const GradientTape::OnReady& on_ready) {
    for (; num_reported_ < report_order_.size(); ++num_reported_) {
      const std::size_t source = report_order_[num_reported_];
      const int slot = source_slots_[source];
      if (slot != kNoSlot && first_use_[index_of(slot)] != index &&
          first_use_[index_of(slot)] != kNoUse) {
        return;
      }
      if (slot != kNoSlot) results_[source] = sums_[index_of(slot)].total();
      if (results_[source].is_none()) {
        missing_.push_back(source);
      } else if (on_ready) {
        sums_[index_of(slot)].clear();  // the receiver becomes the only owner
        on_ready(source, std::exchange(results_[source], Gradient()));
      }
    }
  }

  void report_missing(const GradientTape::OnReady& on_ready) {
    TUTTI_CHECK(num_reported_ == report_order_.size(), "GradientTape: a source was not reported");
    std::ranges::sort(missing_);
    if (!on_ready) return;
    for (const std::size_t source : missing_) on_ready(source, results_[source]);
  }

  bool depends(int slot) const { return slot != kNoSlot && depends_[index_of(slot)]; }
  static std::size_t index_of(int slot) { return static_cast<std::size_t>(slot); }

  Recording& recording_;
  std::vector<int> source_slots_;
  NodeLifetime lifetime_;
  std::size_t num_nodes_;      // node count before the pass, which adds nodes to persistent tapes
  std::vector<char> wanted_;   // indexed by slot; nonzero for a source
  std::vector<char> depends_;  // by slot: nonzero if the slot depends on a source
  std::vector<char> active_;   // by node
  std::vector<std::size_t> first_use_;     // by slot: the earliest active node that uses the slot
  std::vector<std::size_t> report_order_;  // source indices, in the order of reporting
  std::size_t num_reported_ = 0;
  std::vector<GradientSum> sums_;     // by slot
  std::vector<Gradient> results_;     // by source
  std::vector<std::size_t> missing_;  // sources without a gradient
};

}  // namespace

std::vector<Gradient> walk_back(Recording& recording, std::vector<int> source_slots,
                                NodeLifetime lifetime, int target_slot, const Tensor& initial,
                                const GradientTape::OnReady& on_ready) {
  return BackwardPass(recording, std::move(source_slots), lifetime)
      .run(target_slot, initial, on_ready);
}

}  // namespace tutti::internal
