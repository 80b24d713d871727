// Steps as programs: traced on the replicas' threads, run when all have been.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/tpu/tpu_strategy.h"

#include "tutti/core/logging.h"
#include "tutti/strategy/strategy_mode.h"
#include "tutti/strategy/tpu/traced_reducer.h"
#include "tutti/tensor/xla/step_programs.h"

namespace tutti {
namespace {

int checked_replicas(const TpuStrategyOptions& options) {
  const int available = internal::PjrtClient::get().num_devices();
  const XlaDevices& devices = xla_devices();
  const int wanted =
      options.replicas != 0 ? options.replicas : (devices.platform == "cpu" ? 1 : available);
  if (wanted < 1 || wanted > available) {
    fail(ErrorCode::kInvalidArgument, "TpuStrategy: expected 1 to ", available,
         " replicas, as many as ", devices.platform, " has XLA devices, got ", wanted,
         devices.platform == "cpu" ? "; try TUTTI_XLA_CPU_DEVICES" : "");
  }
  return wanted;
}

/// Tensors of replica r are those of cpu:r for the host.
LocalStrategyOptions local_options_of(const TpuStrategyOptions& options) {
  LocalStrategyOptions local;
  const int replicas = checked_replicas(options);
  for (int r = 0; r < replicas; ++r) local.devices.devices.push_back({DeviceType::kCpu, r});
  local.execution = options.execution;
  local.timeout = options.timeout;
  return local;
}

}  // namespace

TpuClusterResolver::TpuClusterResolver(std::string_view tpu) {
  if (tpu.empty() || tpu == "local") return;
  fail(ErrorCode::kUnimplemented, "TpuClusterResolver: expected '' or 'local', this host, got '",
       tpu,
       "': TPUs of other hosts and of Google Cloud's API are not reached; try a program on "
       "the TPU's own host");
}

int TpuClusterResolver::num_devices() const { return internal::PjrtClient::get().num_devices(); }
std::string TpuClusterResolver::platform() const { return internal::PjrtClient::get().platform(); }

struct TpuStrategy::Programs {
  explicit Programs(int num_replicas) : cache(num_replicas) {}
  internal::StepPrograms cache;
};

TpuStrategy::TpuStrategy(TpuStrategyOptions options)
    : LocalStrategy("tpu", local_options_of(options)),
      programs_(std::make_unique<Programs>(static_cast<int>(replica_devices().size()))) {
  const XlaDevices& devices = xla_devices();
  log_info(concat("strategy 'tpu': replica r computes on xla:r (", devices.platform, "), of ",
                  devices.count, "; plugin ", devices.plugin, ", PJRT ", devices.version));
}

TpuStrategy::TpuStrategy(const TpuClusterResolver&, TpuStrategyOptions options)
    : TpuStrategy(options) {}

TpuStrategy::~TpuStrategy() = default;

int TpuStrategy::num_compiled() const { return programs_->cache.num_compiled(); }
const std::string& TpuStrategy::last_program() const { return programs_->cache.last_text(); }

void TpuStrategy::run_on_replicas(const std::function<void(ReplicaContext&)>& body) {
  internal::require_cross_replica(*this, "Strategy::run");
  if (StepTracer::current()) {
    fail(ErrorCode::kUnimplemented,
         "Strategy::run (tpu): called in merge_call() of a step that XLA is to compute; expected a "
         "call outside run()");
  }
  const auto num_replicas = static_cast<int>(replica_devices().size());
  std::vector<std::unique_ptr<internal::Trace>> traces;
  for (int r = 0; r < num_replicas; ++r) {
    traces.push_back(std::make_unique<internal::Trace>(
        r, num_replicas, replica_devices()[static_cast<std::size_t>(r)]));
  }
  LocalStrategy::run_on_replicas([&](ReplicaContext& context) {
    internal::Trace& trace = *traces[static_cast<std::size_t>(context.replica_id())];
    const StepTracerScope tracing(trace);
    internal::TracedReducer reducer(trace);
    const GradientReducerScope reducing(&reducer);
    body(context);
  });
  programs_->cache.run(traces);
}

}  // namespace tutti
