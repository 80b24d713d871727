// Synchronous training on the devices of XLA: each step is one compiled program.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#ifdef TUTTI_WITHOUT_XLA
#error "this build of tutti leaves XLA out; configure it with -DTUTTI_XLA=ON"
#endif

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/strategy/local_strategy.h"
#include "tutti/tensor/xla/xla_devices.h"

namespace tutti {

/// Which TPUs a program trains on: tf.distribute.cluster_resolver.TPUClusterResolver. There are
/// those of this host alone, or what another PJRT plugin has in their place (docs/tpu.md).
class TpuClusterResolver {
 public:
  /// "" or "local": this host. Throws kUnimplemented naming any other address.
  explicit TpuClusterResolver(std::string_view tpu = "");
  /// xla:0 .. xla:count-1. Opens the plugin; throws kUnavailable with reason and remedy.
  int num_devices() const;
  /// "tpu", "cpu".
  std::string platform() const;
};

/// How many of a host's devices train, and what LocalStrategyOptions says of threads and timeouts.
struct TpuStrategyOptions {
  /// Replica r computes on xla:r. 0: one per device of TPUs; 1 where the CPU stands in for them.
  int replicas = 0;
  ReplicaExecution execution = ReplicaExecution::kThreads;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
};

/// A replica per XLA device, variables on all of them. Each run() notes what the step's function
/// does to tensors and hands it over as one program (StableHLO), which is compiled when its text is
/// new; only then anything is computed. So a step may read on the host what steps before it left
/// (kFailedPrecondition for its own values), all replicas do the same on the same shapes
/// (kInvalidArgument names where they differ: try batch(n, drop_remainder)), and an operation that
/// has no form in StableHLO is refused by name and line (kUnimplemented). Results and variables
/// come to the host when it reads them. tf.distribute.TPUStrategy.
class TpuStrategy final : public LocalStrategy {
 public:
  explicit TpuStrategy(TpuStrategyOptions options = {});
  explicit TpuStrategy(const TpuClusterResolver& resolver, TpuStrategyOptions options = {});
  ~TpuStrategy() override;
  std::string_view name() const override { return "tpu"; }
  std::string_view reduction_name() override { return "stablehlo.all_reduce"; }

  /// Programs that were compiled so far: a step whose text is known needs none.
  int num_compiled() const;
  /// The program of the last step, as text; empty: none ran.
  const std::string& last_program() const;

 protected:
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override;

 private:
  struct Programs;
  const std::unique_ptr<Programs> programs_;
};

}  // namespace tutti
