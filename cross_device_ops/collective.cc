// Names of collectives, and of what operations promise.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/collective.h"

#include "core/names.h"

namespace tutti {

std::string_view to_string(Collective collective) {
  static constexpr std::string_view kNames[] = {
      "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "barrier"};
  return internal::name_in(kNames, collective, "Collective");
}

std::string_view to_string(Determinism determinism) {
  static constexpr std::string_view kNames[] = {"none", "run-to-run", "canonical"};
  return internal::name_in(kNames, determinism, "Determinism");
}

bool combines(Collective collective) {
  return collective == Collective::kAllReduce || collective == Collective::kReduce ||
         collective == Collective::kReduceScatter;
}

bool has_root(Collective collective) {
  return collective == Collective::kReduce || collective == Collective::kBroadcast;
}

}  // namespace tutti
