// Recording: the graph of operations on one tape, and the backward pass over it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "autograd/gradients.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/recompute.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/tensor/dispatch.h"

namespace tutti::internal {

/// A *slot* is one tracked value: a watched tensor, a variable, a read of a variable, or an output
/// of a recorded operation. Slots are numbered consecutively, so that the backward pass needs no
/// hash tables.
inline constexpr int kNoSlot = -1;

/// Function that reads a variable's value again, so that no tape has to keep the value.
using ReadAgain = std::function<Tensor()>;

/// Arguments of recompute_grad().
struct Recomputation {
  RecomputedFunction function;
  std::vector<Tensor> inputs;
  std::vector<Variable> variables;
};

/// One recorded operation; or one custom gradient (`backward` is set and `call` is empty); or one
/// recomputation (`recomputation` is set; input slots are inputs, then variables).
struct Node {
  OpCall call;  // only the inputs that the gradient uses; others are undefined
  std::vector<std::pair<std::size_t, ReadAgain>>
      read_again;  // indices of inputs that are not kept, with functions that read them
  std::vector<TensorSpec> input_specs;
  std::vector<Tensor> outputs;   // only the outputs that the gradient uses
  std::vector<int> input_slots;  // kNoSlot for an input that is not tracked
  std::vector<int> output_slots;
  BackwardFunction backward;
  std::shared_ptr<const Recomputation> recomputation;
  std::shared_ptr<const DeviceSpec> remote_device;  // device of the outputs; null if it is local
};

/// Graph of the operations that run while it is attached. Only operations with a tracked input
/// become nodes.
class Recording final : public OpObserver {
 public:
  explicit Recording(const TapeOptions& options);
  ~Recording();
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  /// Stops recording permanently.
  void end();

  void watch(const Tensor& value);
  void watch(const Variable& variable);
  void on_read(const Variable& variable, const Tensor& value);
  void on_read_of_rows(const Variable& variable, const Tensor& rows,
                       const BackwardFunction& backward);
  void on_op(const OpCall& call, std::span<const Tensor> outputs) override;
  void on_transfer(const Tensor& from, const Tensor& to, const SourceLocation& where) override;
  void on_custom(std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                 const BackwardFunction& backward);
  void on_recomputed(const std::shared_ptr<const Recomputation>& recomputation,
                     std::span<const Tensor> outputs);

  int slot_of(const Tensor& value) const;
  int slot_of(const Variable& variable) const;
  /// Returns the slot of the variable if `slot` is a value read from a variable, otherwise kNoSlot.
  int variable_slot(int slot) const { return variable_slot_[static_cast<std::size_t>(slot)]; }

  /// If `slot`, or a term of the sum in `slot`, is the result of a mean over the first axis,
  /// returns that mean; otherwise nullopt. Requires: no backward pass has released the nodes.
  std::optional<MeanOfRows> mean_of_rows(int slot) const;

  std::size_t num_slots() const { return variable_slot_.size(); }
  std::size_t num_nodes() const { return nodes_.size(); }
  /// References stay valid while more nodes are recorded.
  Node& node(std::size_t index) { return nodes_[index]; }
  const std::vector<Variable>& variables() const { return variables_; }

  Recording* outer = nullptr;  // next outer recording of this thread
  /// Used by TapeBoundary. After close(who), use of a variable, or of a tensor that was recorded
  /// before mark(), is an error that names `who`; an empty `who` permits such uses again.
  void mark() { first_inner_slot_ = num_slots(); }
  void close(std::string_view who) { closed_by_ = who; }

 private:
  int new_slot(int variable_slot = kNoSlot);
  int track(const Variable& variable);
  int slot_for_read(const Variable& variable);
  /// Records the cast of a value that was read from a variable.
  void add_cast(int read_slot, const Variable& variable, const Tensor& value);
  /// Releases the node's inputs that can be read again.
  void release_inputs(Node& node) const;
  /// If `node` creates a view of a value that can be read again, records how to re-create the view.
  void note_view(const Node& node, const OpCall& call);
  /// Returns the slots of `inputs`; empty if none is tracked.
  std::vector<int> tracked(std::span<const Tensor> inputs) const;
  void add(Node node, std::span<const Tensor> inputs, std::span<const Tensor> outputs);
  /// Returns the node whose output is `slot`; null for a source or a variable read.
  const Node* node_that_makes(int slot) const;

  bool watch_accessed_variables_;
  bool attached_ = false;
  std::string_view closed_by_;        // `who` of the closed TapeBoundary; empty if there is none
  std::size_t first_inner_slot_ = 0;  // first slot created inside the boundary
  std::optional<ObserverScope> observer_;
  std::deque<Node> nodes_;
  std::vector<int> variable_slot_;                         // indexed by slot
  std::unordered_map<std::uint64_t, int> tensor_slots_;    // keyed by Tensor::id()
  std::unordered_map<std::uint64_t, int> variable_slots_;  // keyed by VariableStorage::id()
  std::unordered_map<int, ReadAgain> read_again_;          // keyed by slot; for values not in nodes
  std::vector<Variable> variables_;
};

/// Returns true if a tape of this thread would record a read or an operation now.
bool any_tape_records();
/// Records on this thread's tapes that `value` was read from `variable`. Requires: no other tensor
/// has the id of `value`.
void tapes_see_read(const Variable& variable, const Tensor& value);

/// Records, on this thread's tapes, that `rows` are rows of the variable; `backward` converts the
/// gradient of `rows` to one of the whole variable.
void tapes_see_rows(const Variable& variable, const Tensor& rows, const BackwardFunction& backward);

/// Returns the flag that is true while a GradientTape::StopRecording exists on this thread.
bool& recording_stopped();

/// Scope in which this thread has no tapes, like a new thread. Recordings that are attached within
/// the scope must be detached before its end.
class SeparateTapes {
 public:
  SeparateTapes();
  ~SeparateTapes();
  SeparateTapes(const SeparateTapes&) = delete;
  SeparateTapes& operator=(const SeparateTapes&) = delete;

 private:
  SeparateObservers no_observers_;
  Recording* innermost_;
  bool stopped_;
};

/// Scope that makes recorded operations independent of earlier values. From close() until
/// destruction, recording an operation on a tape of this thread throws kInvalidArgument, with `who`
/// first in the message, if the operation uses a variable or a value that was recorded before
/// construction. Does not nest.
class TapeBoundary {
 public:
  TapeBoundary();
  ~TapeBoundary() { close({}); }
  TapeBoundary& operator=(TapeBoundary&&) = delete;
  /// `who` must outlive this object.
  void close(std::string_view who);
};

/// Attaches a recording to this thread, or detaches it. Recordings may be detached in any order.
void attach(Recording& recording);
void detach(Recording& recording);
/// Calls `visit` for each attached recording.
void for_each_recording(const std::function<void(Recording&)>& visit);

/// kRelease: the backward pass releases each node's tensors as soon as it has processed the node.
enum class NodeLifetime { kKeep, kRelease };

/// Computes the gradients of one target, whose own gradient is `initial`. `source_slots` may
/// contain kNoSlot (a source that was never recorded) and duplicates.
std::vector<Gradient> walk_back(Recording& recording, std::vector<int> source_slots,
                                NodeLifetime lifetime, int target_slot, const Tensor& initial,
                                const GradientTape::OnReady& on_ready);

}  // namespace tutti::internal
