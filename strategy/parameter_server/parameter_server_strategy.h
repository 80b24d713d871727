// Variables on parameter servers: the processes of the job "ps", or threads of this one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/strategy/local_strategy.h"
#include "tutti/strategy/parameter_server/partitioner.h"
#include "tutti/strategy/parameter_server/server_picker.h"

namespace tutti {

struct ParameterServerOptions {
  /// Of this worker. cross_device_ops sum the gradients of a synchronous step.
  LocalStrategyOptions local = {};
  /// Into how many shards each variable is cut; none: one.
  Partitioner variable_partitioner = {};
  VariablePlacement placement = VariablePlacement::kRoundRobin;
  /// Without a cluster: servers in this process.
  int num_servers = 1;
  /// For every answer of a server.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

/// Rows [first_row, first_row + num_rows) of a variable and where they are.
struct ShardPlace {
  std::string device;  // "/job:ps/replica:0/task:1/device:CPU:0"
  std::int64_t first_row = 0;
  std::int64_t num_rows = 0;
  bool operator==(const ShardPlace&) const = default;
};

/// Variables made in its scope live on parameter servers, each (or each shard of it) on one, with
/// the optimizer's slots beside it; servers apply updates where the values are. run() is one
/// synchronous step: the same number of replicas gives the bits of MirroredStrategy.
/// tf.distribute.ParameterServerStrategy.
class ParameterServerStrategy final : public LocalStrategy {
 public:
  /// All in this process: `num_servers` servers, replicas on the local devices. Throws
  /// kInvalidArgument as MirroredStrategy, and for no servers.
  explicit ParameterServerStrategy(ParameterServerOptions options = {});
  ~ParameterServerStrategy() override;
  std::string_view name() const override { return "parameter_server"; }
  std::vector<Device> parameter_devices() const override { return {Device{}}; }

  int num_parameter_servers() const;
  /// Where a variable of this strategy is, by rows. Throws kInvalidArgument for other variables.
  std::vector<ShardPlace> shards_of(const Variable& variable) const;

  /// While it lives, variables that this thread makes (in the scope) are not cut, and are put where
  /// that shard of `variable` is. tf's colocate_vars_with.
  class ColocationScope {
   public:
    ColocationScope(ParameterServerStrategy& strategy, const Variable& variable, int shard = 0);
    ~ColocationScope();
    ColocationScope(const ColocationScope&) = delete;
    ColocationScope& operator=(const ColocationScope&) = delete;

   private:
    ParameterServerStrategy& strategy_;
    std::optional<int> previous_;
  };

 protected:
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override;
  std::shared_ptr<VariableStorage> create_storage_from(const Variable::Initializer& initializer,
                                                       const RandomKey& key,
                                                       VariableOptions options) override;
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
