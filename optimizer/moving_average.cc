// The exponential moving average of weights.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/optimizer/moving_average.h"

#include "tutti/core/json.h"
#include "tutti/tensor/device_backend.h"

namespace tutti::internal {

MovingAverageRule::MovingAverageRule(std::string_view optimizer, const EmaOptions& options)
    : options_(options) {
  if (!(options.momentum >= 0.0 && options.momentum <= 1.0)) {
    fail(ErrorCode::kInvalidArgument, optimizer, ": expected an ema momentum in [0, 1], got ",
         options.momentum);
  }
  if (options.overwrite_frequency.value_or(1) < 1) {
    fail(ErrorCode::kInvalidArgument, optimizer,
         ": expected an ema overwrite_frequency of 1 or more, or none, got ",
         *options.overwrite_frequency);
  }
}

Json MovingAverageRule::describe() const {
  const auto frequency = options_.overwrite_frequency;
  return Json::Object{{"rule", name()},
                      {"momentum", options_.momentum},
                      {"overwrite_frequency", frequency ? Json(*frequency) : Json()}};
}

void MovingAverageRule::apply(const UpdateArgs& args) const {
  visit_arithmetic_floating(args.dtype, "ema", [&]<class T>() { apply_typed<T>(args); });
}

double MovingAverageRule::momentum_at(std::int64_t iteration) const {
  return iteration == 0 ? 0.0 : options_.momentum;
}

bool MovingAverageRule::overwrites_at(std::int64_t iteration) const {
  return options_.overwrite_frequency && (iteration + 1) % *options_.overwrite_frequency == 0;
}

std::optional<DeviceRule> MovingAverageRule::device_rule(const UpdateScalars& scalars) const {
  const double momentum = momentum_at(scalars.iteration);
  return DeviceRule{
      DeviceRuleId::kMovingAverage,
      {0.0, 1.0, 0.0, momentum, 1.0 - momentum, overwrites_at(scalars.iteration) ? 1.0 : 0.0}};
}

template <class T>
void MovingAverageRule::apply_typed(const UpdateArgs& args) const {
  const double momentum = momentum_at(args.scalars.iteration);
  const T old_share = static_cast<T>(momentum), new_share = static_cast<T>(1.0 - momentum);
  T* __restrict const w = args.weights<T>().data();
  T* __restrict const average = args.slot<T>(0).data();
  for (std::size_t i = 0; i < args.count; ++i) {
    average[i] = old_share * average[i] + new_share * w[i];
  }
  if (!overwrites_at(args.scalars.iteration)) return;
  for (std::size_t i = 0; i < args.count; ++i) w[i] = average[i];
}

}  // namespace tutti::internal
