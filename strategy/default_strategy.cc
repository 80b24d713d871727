// Default strategy: one replica on the CPU, on which every collective is the identity.
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cmath>

#include "core/thread_random.h"
#include "strategy/replicas/step_warnings.h"
#include "strategy/replicas/strategy_mode.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/strategy/strategy.h"

namespace tutti {
namespace {

constexpr Device kDefaultDevice{};

/// Context of the default strategy's single replica; current outside all strategy scopes.
class DefaultReplicaContext final : public ReplicaContext {
 public:
  int replica_id() const override { return 0; }
  int num_replicas_in_sync() const override { return 1; }
  Device device() const override { return kDefaultDevice; }
  Strategy& strategy() const override { return default_strategy(); }

 protected:
  int local_index() const override { return 0; }
  std::shared_ptr<const void> merge_erased(const void* local, const std::type_info&,
                                           const ErasedMerge& merge, SourceLocation) override {
    const internal::StrategyModeScope mode({&default_strategy(), nullptr, true});
    return merge(default_strategy(), std::span(&local, 1));
  }
  std::vector<Gradient> all_reduce_values(ReduceOp, std::span<const Gradient> values,
                                          SourceLocation) override {
    return {values.begin(), values.end()};
  }
  Gathered all_gather_value(const Tensor& value, int, SourceLocation) override {
    return {value, 0};
  }
  void note_result(double result) override;
};

class DefaultStrategy final : public Strategy {
 public:
  DefaultStrategy() : ops_(build_cross_device_ops({"canonical", {}}, Group{1, 0, {device_}})) {}

  std::string_view name() const override { return "default"; }
  int num_replicas_in_sync() const override { return 1; }
  std::span<const Device> replica_devices() const override { return {&device_, 1}; }
  CrossDeviceOps& cross_device_ops() override { return *ops_; }

  Json save_state() const override {
    Json state = Json::object();
    state.set("step", static_cast<std::int64_t>(step_.load()));
    state.set("random_step", static_cast<std::int64_t>(random_step_.load()));
    return state;
  }
  void restore_state(const Json& state) override {
    step_ = static_cast<std::uint64_t>(state.at("step").as_int());
    const Json* const random_step = state.find("random_step");  // missing in older checkpoints
    random_step_ = random_step ? static_cast<std::uint64_t>(random_step->as_int()) : step_.load();
  }
  const Failure& last_failure() const override { return no_failure_; }
  /// Warns if a step returns a non-finite result; only once, because later results are usually
  /// non-finite, too.
  void warn_of_result(double result) {
    if (std::isfinite(result) || warned_of_results_.exchange(true)) return;
    log_warning(internal::result_warning("0", step_.load(), name(), result));
  }

 protected:
  /// Runs `body` on the caller's thread and in the caller's context; exceptions propagate.
  void run_on_replicas(const std::function<void(ReplicaContext&)>& body) override {
    internal::require_cross_replica(*this, "Strategy::run");
    const RandomContextScope random({random_seed(), random_step_.load(), 0});
    const std::uint64_t num_draws = internal::num_random_draws();
    body(internal::default_replica_context());
    ++step_;
    if (internal::num_random_draws() != num_draws) ++random_step_;
  }
  std::shared_ptr<VariableStorage> create_storage(const Tensor& initial_value,
                                                  VariableOptions options) override {
    return make_local_storage(initial_value, device_, std::move(options));
  }

 private:
  const Device device_ = kDefaultDevice;
  std::unique_ptr<CrossDeviceOps> ops_;
  std::atomic<std::uint64_t> step_{0};
  /// Number of run() calls that train or draw random numbers.
  std::atomic<std::uint64_t> random_step_{0};
  std::atomic<bool> warned_of_results_{false};
  const Failure no_failure_;
};

void DefaultReplicaContext::note_result(double result) {
  static_cast<DefaultStrategy&>(default_strategy()).warn_of_result(result);
}

}  // namespace

namespace internal {
ReplicaContext& default_replica_context() {
  static DefaultReplicaContext context;
  return context;
}
}  // namespace internal

Strategy& default_strategy() {
  static DefaultStrategy strategy;
  return strategy;
}

}  // namespace tutti
