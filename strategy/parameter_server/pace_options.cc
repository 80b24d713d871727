// From the options of a strategy to the pace of one worker.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/pace_options.h"

namespace tutti::internal {
namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  fail(ErrorCode::kInvalidArgument, "ParameterServerStrategy: ", parts...);
}

}  // namespace

std::optional<WorkerPace> pace_of(const ParameterServerOptions& options, int worker,
                                  int num_workers) {
  if (options.update_mode == UpdateMode::kSync) return std::nullopt;
  if (num_workers < 1 || worker < 0 || worker >= num_workers) {
    refuse("there is no worker ", worker, " of ", num_workers);
  }
  WorkerPace pace;
  pace.mode = options.update_mode;
  pace.worker = worker;
  pace.num_workers = num_workers;
  pace.patience = options.local.timeout;
  if (pace.mode == UpdateMode::kStaleSync) {
    if (options.staleness < 0) {
      refuse("staleness; expected 0 or more steps, got ", options.staleness);
    }
    pace.staleness = static_cast<std::uint64_t>(options.staleness);
  }
  if (pace.mode != UpdateMode::kSyncReplicas) return pace;
  const int total = options.total_num_replicas == 0 ? num_workers : options.total_num_replicas;
  if (total != num_workers) {
    refuse("total_num_replicas; expected the number of workers, ", num_workers, ", or 0, got ",
           total);
  }
  pace.num_to_aggregate =
      options.replicas_to_aggregate == 0 ? total : options.replicas_to_aggregate;
  if (pace.num_to_aggregate < 1 || pace.num_to_aggregate > total) {
    refuse("replicas_to_aggregate; expected 1 .. ", total, " (each worker gives once per step), ",
           "got ", options.replicas_to_aggregate);
  }
  return pace;
}

std::string to_string(const WorkerPace& pace) {
  std::string mode(tutti::to_string(pace.mode));
  if (pace.mode == UpdateMode::kStaleSync) mode += concat(", staleness ", pace.staleness);
  if (pace.mode == UpdateMode::kSyncReplicas) {
    mode += concat(", ", pace.num_to_aggregate, " of ", pace.num_workers, " make a step");
  }
  return concat("worker ", pace.worker, " of ", pace.num_workers, " trains apart (", mode, ")");
}

}  // namespace tutti::internal
