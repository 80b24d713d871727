// The handles of a session: values, variables, and the session itself.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/session/session.h"

#include <utility>

#include "strategy/parameter_server/session/session_core.h"

namespace tutti {

std::string TaskValue::device() const { return held_->address.task.device_prefix(); }

TaskValue TaskValue::element(int place) const {
  TaskValue part = *this;
  part.path_.push_back(place);
  return part;
}

Nest TaskValue::fetch() const {
  internal::ValueAddress address = held_->address;
  address.path = path_;
  return core_->fetch(address);
}

TaskValue TaskVariable::read() const { return core_->read(*this); }

void internal::assign_to_task(SessionCore& core, const TaskVariable& variable, AssignOp op,
                              TaskInput value) {
  const NoDeviceScope here;
  core.change(TaskRequestKind::kAssignVariable, variable, {std::move(value)},
              nest_of_integer(static_cast<int>(op)));
}

Session::Session(const std::string& target, SessionOptions options)
    : core_(std::make_shared<internal::SessionCore>(target, std::move(options))) {
  core_->connect();
}

const std::string& Session::target() const { return core_->target(); }
const ClusterSpec& Session::cluster() const { return core_->cluster(); }

std::vector<std::string> Session::list_devices() const {
  std::vector<std::string> devices;
  for (const Task& task : cluster().tasks()) {
    const std::vector<std::string>& own = core_->welcome_of(task).devices;
    devices.insert(devices.end(), own.begin(), own.end());
  }
  return devices;
}

std::string Session::steps_of(const Task& task) const { return core_->welcome_of(task).steps; }

TaskValue Session::put(const TaskInput& value) {
  return core_->post(internal::TaskRequestKind::kPut, core_->place("constant"), "", {value});
}

TaskVariable Session::variable(const std::string& name, const Tensor& initial_value) {
  return core_->make_variable(core_->place("variable"), name, initial_value);
}

TaskValue Session::run_step(std::string_view step, std::vector<TaskInput> inputs) {
  return core_->post(internal::TaskRequestKind::kRun, core_->place("run"), std::string(step),
                     inputs);
}

void Session::wait() { core_->wait(); }
std::vector<SessionTransfer> Session::transfers() const { return core_->transfers(); }

}  // namespace tutti
