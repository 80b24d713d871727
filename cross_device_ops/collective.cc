// Names of collectives, and of what operations promise.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/collective.h"

namespace tutti {

std::string_view to_string(Collective collective) {
  switch (collective) {
    case Collective::kAllReduce:
      return "all_reduce";
    case Collective::kReduce:
      return "reduce";
    case Collective::kBroadcast:
      return "broadcast";
    case Collective::kAllGather:
      return "all_gather";
    case Collective::kReduceScatter:
      return "reduce_scatter";
    case Collective::kAllToAll:
      return "all_to_all";
    case Collective::kBarrier:
      return "barrier";
  }
  return "unknown";
}

std::string_view to_string(Determinism determinism) {
  switch (determinism) {
    case Determinism::kNone:
      return "none";
    case Determinism::kRunToRun:
      return "run-to-run";
    case Determinism::kCanonical:
      return "canonical";
  }
  return "?";
}

bool combines(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

bool has_root(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kBroadcast;
}

}  // namespace tutti
