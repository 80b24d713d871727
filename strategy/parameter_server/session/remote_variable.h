// Variables of a session, stored on the task of the device scope in which they were created.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strategy/parameter_server/session/session_recorder.h"
#include "tutti/autograd/variable.h"

namespace tutti::internal {

/// Variable whose reads and writes are recorded as operations of its task; outside Session::run(),
/// each read or write is a separate step. Works on threads with or without a session scope.
class RemoteStorage final : public VariableStorage {
 public:
  /// Creates the variable, or finds the one with this name that another session created. `initial`
  /// is the value of the variable, or a number to fill it with. Throws kAlreadyExists for a
  /// duplicate name in this session, and kInvalidArgument if the existing variable has another
  /// shape or type.
  RemoteStorage(std::shared_ptr<SessionCore> core, std::shared_ptr<const TaskPlace> place,
                const TensorSpec& spec, const std::variant<Tensor, double>& initial,
                VariableOptions options);
  ~RemoteStorage() override { core_->remove_variable(name()); }

  Tensor read() const override;
  std::vector<Tensor> local_components() const override { return {read()}; }
  std::vector<Device> devices() const override { return {Device{}}; }
  void assign(AssignOp op, const Tensor& value, ValueOrigin) override {
    assign_replicated(op, value);
  }
  void assign_replicated(AssignOp op, const Tensor& value) override;
  void scatter(ScatterOp op, const IndexedSlices& slices) override;
  Variable create_slot(const std::string& slot_name, double initial_value) override;
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override;
  std::vector<NamedTensor> save() const override { return {{name(), read()}}; }
  void restore(const TensorLookup& lookup) override;

 private:
  class Recorder;
  void record(TaskProgram::Kind kind, int op, std::span<const Tensor> inputs,
              ProgramOperation operation = {}, const std::vector<TensorSpec>& specs = {}) const;
  const std::string& description_of(const UpdateRule& rule);

  const std::shared_ptr<SessionCore> core_;
  const std::shared_ptr<const TaskPlace> place_;
  std::uint64_t rule_ = 0;   // UpdateRule::number() of the last update's rule
  std::string description_;  // description of rule number rule_
};

/// Creator of the variables in device scopes of other tasks. In all other scopes, it delegates to
/// the previous creator.
class RemoteVariableCreator final : public VariableCreator {
 public:
  explicit RemoteVariableCreator(std::shared_ptr<SessionCore> core)
      : core_(std::move(core)), here_(VariableCreator::current()) {}
  std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                          const RandomKey& key, VariableOptions options) override;

 private:
  const std::shared_ptr<SessionCore> core_;
  VariableCreator& here_;
};

}  // namespace tutti::internal
