// What a rank sends in a call, by its schedule.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cross_device_ops/algorithms/schedule.h"

namespace tutti {

/// MessageRun adds one header per call (kEncodedHeaderBytes), and a message of its own for it
/// unless greets_with_data().
struct Traffic {
  std::size_t messages = 0;
  std::size_t elements = 0;
};

inline Traffic traffic_of(const internal::Schedule& schedule) {
  Traffic traffic;
  for (const internal::Step& step : schedule.steps) {
    if (step.kind != internal::StepKind::kSend) continue;
    ++traffic.messages;
    traffic.elements += step.range.count;
  }
  return traffic;
}

}  // namespace tutti
