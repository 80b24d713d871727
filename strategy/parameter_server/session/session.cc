// Implements Session, SessionScope and sum_over_replicas().
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/session/session.h"

#include <optional>
#include <utility>

#include "strategy/parameter_server/session/remote_variable.h"
#include "strategy/parameter_server/session/session_core.h"
#include "strategy/parameter_server/session/session_recorder.h"
#include "tutti/core/error.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

struct SessionScope::Impl {
  explicit Impl(const std::shared_ptr<internal::SessionCore>& core)
      : recorder(core), creator(core), records(recorder), creates(creator) {}
  internal::SessionRecorder recorder;
  internal::RemoteVariableCreator creator;
  RemoteRecorderScope records;
  VariableCreatorScope creates;
};

SessionScope::SessionScope(const Session& session) : impl_(std::make_unique<Impl>(session.core_)) {}
SessionScope::~SessionScope() = default;

Session::Session(const std::string& target, SessionOptions options)
    : core_(std::make_shared<internal::SessionCore>(target, std::move(options))) {
  core_->connect();
}

const std::string& Session::target() const { return core_->target(); }
const ClusterSpec& Session::cluster() const { return core_->cluster(); }

std::vector<std::string> Session::list_devices() const {
  std::vector<std::string> devices;
  for (const Task& task : cluster().tasks()) {
    const std::vector<std::string>& own = core_->devices_of(task);
    devices.insert(devices.end(), own.begin(), own.end());
  }
  return devices;
}

std::vector<SessionTransfer> Session::transfers() const { return core_->transfers(); }

void Session::run_recorded(const std::function<void()>& step) const {
  std::optional<SessionScope> own;
  if (internal::SessionRecorder::find(*core_) == nullptr) own.emplace(*this);
  internal::SessionRecorder& recorder = *internal::SessionRecorder::find(*core_);
  recorder.begin();
  try {
    step();
  } catch (...) {
    recorder.abandon();
    throw;
  }
  recorder.end();
}

namespace {

/// Adds adjacent pairs, round after round. An unpaired last value enters the next round unchanged.
Tensor sum_along_tree(std::vector<Tensor> values) {
  while (values.size() > 1) {
    std::vector<Tensor> sums;
    for (std::size_t i = 0; i + 1 < values.size(); i += 2)
      sums.push_back(values[i] + values[i + 1]);
    if (values.size() % 2 == 1) sums.push_back(values.back());
    values = std::move(sums);
  }
  return values.front();
}

Gradient sum_of_replicas(std::span<const Gradient> gradients) {
  std::vector<Tensor> dense, values, indices;
  Shape shape;
  for (const Gradient& each : gradients) {
    if (each.is_none()) continue;
    if (each.is_dense()) {
      dense.push_back(each.dense());
      continue;
    }
    values.push_back(each.slices().values);
    indices.push_back(each.slices().indices);
    shape = each.slices().dense_shape;
  }
  if (!dense.empty() && !values.empty()) {
    fail(ErrorCode::kInvalidArgument,
         "sum_over_replicas: some replicas have dense gradients, other replicas have sparse ones; "
         "expected the same computation on all replicas");
  }
  if (!dense.empty()) return sum_along_tree(std::move(dense));
  if (values.empty()) return {};
  if (values.size() == 1) return IndexedSlices{values.front(), indices.front(), shape};
  return IndexedSlices{concat(values, 0), concat(indices, 0), shape};
}

}  // namespace

std::vector<Gradient> sum_over_replicas(std::span<const Variable> variables,
                                        std::span<const std::vector<Gradient>> per_replica) {
  std::vector<Gradient> sums;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    std::vector<Gradient> gradients;
    for (const std::vector<Gradient>& each : per_replica) {
      if (each.size() != variables.size()) {
        fail(ErrorCode::kInvalidArgument, "sum_over_replicas: expected ", variables.size(),
             " gradients from each replica, got ", each.size());
      }
      gradients.push_back(each[i]);
    }
    std::optional<DeviceScope> task;
    if (const auto device = remote_device_of(variables[i].storage().read())) task.emplace(*device);
    sums.push_back(sum_of_replicas(gradients));
  }
  return sums;
}

}  // namespace tutti
