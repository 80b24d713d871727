// Values and variables of a session, where they are: on tasks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/autograd/variable_storage.h"
#include "tutti/cluster/cluster_spec.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"
#include "tutti/tensor/device_scope.h"

namespace tutti {

namespace internal {
class SessionCore;
struct HeldValue;
}  // namespace internal

/// What an operation of a session gives, or will give, on its task. A handle: the task keeps the
/// value as long as a copy lives, or an operation that was asked for uses it. Threads: any.
class TaskValue {
 public:
  /// "/job:worker/replica:0/task:1".
  std::string device() const;
  /// That place of a list (vector, pair, tuple), as a value of its own: when another task needs it
  /// the rest stays where it is.
  TaskValue element(int place) const;

  /// Waits for it. Throws what went wrong, with task and step in front; kDeadlineExceeded;
  /// kInvalidArgument for a value of another type.
  Nest fetch() const;
  template <class T>
  T fetch() const {
    return internal::from_nest<T>(fetch(), "fetch");
  }

 private:
  friend class internal::SessionCore;
  friend class TaskInput;
  std::shared_ptr<internal::SessionCore> core_;
  std::shared_ptr<internal::HeldValue> held_;
  std::vector<int> path_;
};

/// A variable on one task. A handle. Threads: any.
class TaskVariable {
 public:
  const std::string& name() const { return name_; }
  const Shape& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  const Task& task() const { return task_; }
  /// "/job:ps/replica:0/task:0".
  std::string device() const { return task_.device_prefix(); }

  /// The value at this place of the program, whatever is assigned later. Reads without a change
  /// between them are one value.
  TaskValue read() const;
  template <class T>
  void assign(const T& value);
  template <class T>
  void assign_add(const T& value);
  template <class T>
  void assign_sub(const T& value);

 private:
  friend class internal::SessionCore;
  friend class TaskInput;
  std::shared_ptr<internal::SessionCore> core_;
  std::string name_;
  Shape shape_;
  DType dtype_ = DType::kFloat32;
  Task task_;
};

/// An argument of Session::run(): a value, or where one is.
class TaskInput {
 public:
  TaskInput(const TaskValue& value) : held_(value.held_), path_(value.path_) {}
  TaskInput(const TaskVariable& variable) : TaskInput(variable.read()) {}
  template <class T>
  explicit TaskInput(const T& value) {
    const NoDeviceScope here;
    value_ = internal::to_nest<std::decay_t<const T>>(value);
  }

 private:
  friend class internal::SessionCore;
  std::shared_ptr<internal::HeldValue> held_;
  std::vector<int> path_;
  Nest value_;
};

namespace internal {
void assign_to_task(SessionCore& core, const TaskVariable& variable, AssignOp op, TaskInput value);
}  // namespace internal

template <class T>
void TaskVariable::assign(const T& value) {
  internal::assign_to_task(*core_, *this, AssignOp::kAssign, TaskInput(value));
}
template <class T>
void TaskVariable::assign_add(const T& value) {
  internal::assign_to_task(*core_, *this, AssignOp::kAdd, TaskInput(value));
}
template <class T>
void TaskVariable::assign_sub(const T& value) {
  internal::assign_to_task(*core_, *this, AssignOp::kSubtract, TaskInput(value));
}

}  // namespace tutti
