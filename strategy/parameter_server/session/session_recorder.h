// Recorder of a session's operations. Each task runs its share of them; results are fetched when
// the host reads them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "strategy/parameter_server/session/session_core.h"
#include "tensor/step_hooks.h"

namespace tutti::internal {

/// Value of a session: recorded, stored on its task, or lost with a failed run. Thread-safe.
class RemoteValue final : public LazyValue {
 public:
  /// Value `number` of the recorded step `step`. `maker`: the operation that computes it, such as
  /// "matmul at train.cc:41".
  RemoteValue(std::shared_ptr<SessionCore> core, std::shared_ptr<const TaskPlace> place,
              std::uint64_t step, ValueNumber number, const TensorSpec& spec, std::string maker)
      : core_(std::move(core)),
        place_(std::move(place)),
        step_(step),
        number_(number),
        spec_(spec),
        maker_(std::move(maker)) {}
  /// Makes the task release the value, if the task has computed it.
  ~RemoteValue() override;

  const std::shared_ptr<SessionCore>& core() const { return core_; }
  const std::shared_ptr<const TaskPlace>& place() const { return place_; }
  std::uint64_t step() const { return step_; }
  ValueNumber number() const { return number_; }
  const TensorSpec& spec() const { return spec_; }
  /// Returns the number of the run that produced this value; 0 if its step has not run.
  std::uint64_t run() const;
  void set_run(std::uint64_t run);
  /// Marks the value as lost unless its step has run.
  void give_up();

  void materialize(std::byte* to) override;

 private:
  const std::shared_ptr<SessionCore> core_;
  const std::shared_ptr<const TaskPlace> place_;
  const std::uint64_t step_;
  const ValueNumber number_;
  const TensorSpec spec_;
  const std::string maker_;
  mutable Mutex mutex_;
  std::uint64_t run_ TUTTI_GUARDED_BY(mutex_) = 0;  // 0: its step has not run
  bool is_materialized_ TUTTI_GUARDED_BY(mutex_) = false;
  bool is_lost_ TUTTI_GUARDED_BY(mutex_) = false;
};

/// Recorder of one thread's operations on values and variables of other tasks. Between begin() and
/// end(), the operations form one step; elsewhere, each operation is a step. Every tensor that the
/// step did not compute is an argument, so that steps that differ only in the values of tensors
/// share one program. Not thread-safe.
class SessionRecorder final : public RemoteRecorder {
 public:
  explicit SessionRecorder(std::shared_ptr<SessionCore> core);
  ~SessionRecorder() override { abandon(); }
  SessionRecorder& operator=(SessionRecorder&&) = delete;
  /// Returns this thread's recorder if it belongs to `core`; else nullptr.
  static SessionRecorder* find(const SessionCore& core);

  const std::shared_ptr<SessionCore>& core() const { return core_; }
  /// Throws kFailedPrecondition if called within another step.
  void begin();
  /// Runs the step. Throws the same errors as SessionCore::run().
  void end();
  /// Drops the step; its values can no longer be read.
  void abandon();

  std::optional<std::vector<Tensor>> run(const OpCall& call) override;
  std::shared_ptr<const DeviceSpec> device_of(const Tensor& value) const override;

  /// Records an operation with these inputs and outputs (for TaskProgram::CREATE, also the
  /// variable's spec); returns its outputs.
  std::vector<Tensor> record(const std::shared_ptr<const TaskPlace>& place,
                             ProgramOperation operation, std::span<const Tensor> inputs,
                             const std::vector<TensorSpec>& specs = {});
  /// Returns the value of a variable at this point in the step.
  Tensor read(const std::shared_ptr<const TaskPlace>& place, const std::string& name,
              const TensorSpec& spec);
  /// Returns the tensor of these scalars; equal scalars within a step share one tensor.
  Tensor scalars(const UpdateScalars& scalars);

 private:
  struct Argument {
    ValueNumber number = 0;
    Tensor tensor = {};                       // keeps the elements or the value alive
    std::shared_ptr<RemoteValue> value = {};  // result of an earlier step; nullptr if from the host
  };
  struct Made {
    std::shared_ptr<const TaskPlace> place = {};
    ValueNumber number = 0;
    std::weak_ptr<RemoteValue> value = {};
    bool is_kept = false;  // kept after the run, because a tensor refers to it
  };
  struct Step {
    std::uint64_t number = 0;
    ValueNumber num_values = 0;
    std::vector<std::pair<Task, ProgramOperation>> operations = {};
    std::vector<Argument> arguments = {};
    std::vector<Made> made = {};
    /// Key: address of the first byte, shape, type.
    std::map<std::tuple<const std::byte*, std::string, DType>, ValueNumber> host_arguments = {};
    std::map<const RemoteValue*, ValueNumber> remote_arguments = {};
    std::map<std::string, Tensor> reads =
        {};  // values that were read and are still valid, by variable
    std::map<std::array<double, 4>, Tensor> scalars = {};
  };
  std::shared_ptr<RemoteValue> own_value(const Tensor& tensor) const;
  ValueNumber number_of(const Tensor& tensor);
  ValueNumber host_argument(const Tensor& tensor);
  ValueNumber remote_argument(const Tensor& tensor, const std::shared_ptr<RemoteValue>& value);
  ValueNumber view(ValueNumber whole, const RemoteValue& value, const Tensor& tensor);
  /// Divides the step among tasks: moves each operation to its task's part.
  static std::map<Task, TaskPart> cut(Step& step);
  void run_step();

  const std::shared_ptr<SessionCore> core_;
  bool is_in_step_ = false;
  Step step_;
};

}  // namespace tutti::internal
