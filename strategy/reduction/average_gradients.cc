// Implements average_gradients().
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/reduction/average_gradients.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/names.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/cross_device_ops/gradient_ops.h"

namespace tutti {
namespace {

using internal::require;

constexpr std::string_view kAverageGradients = "average_gradients";

using TowerGradients = std::span<const std::vector<GradientAndVariable>>;

std::string kind_of(const Gradient& gradient) {
  if (gradient.is_none()) return "none";
  if (gradient.is_dense()) {
    return concat("shape ", gradient.dense().shape(), " of ", gradient.dense().dtype());
  }
  const IndexedSlices& slices = gradient.slices();
  return concat("rows of shape ", slices.dense_shape, " of ", slices.values.dtype());
}

void check_lists(TowerGradients towers) {
  require(!towers.empty(), kAverageGradients, ": expected at least one tower, got none");
  for (std::size_t t = 0; t < towers.size(); ++t) {
    require(towers[t].size() == towers[0].size(), kAverageGradients, ": tower ", t,
            ": expected gradients for ", towers[0].size(), " variables, as in tower 0, got ",
            towers[t].size());
    for (std::size_t i = 0; i < towers[t].size(); ++i) {
      if (towers[t][i].variable == towers[0][i].variable) continue;
      fail(ErrorCode::kInvalidArgument, kAverageGradients, ": tower ", t, ": expected variable '",
           towers[0][i].variable.name(), "' at position ", i, " as in tower 0, got '",
           towers[t][i].variable.name(), "'; use the same variables in all towers");
    }
  }
}

/// Returns the gradients of variable number `index`, one per tower.
std::vector<Gradient> gradients_of_variable(TowerGradients towers, std::size_t index) {
  std::vector<Gradient> gradients;
  const std::string expected = kind_of(towers[0][index].gradient);
  for (std::size_t t = 0; t < towers.size(); ++t) {
    gradients.push_back(towers[t][index].gradient);
    const std::string got = kind_of(gradients.back());
    if (got == expected) continue;
    fail(ErrorCode::kInvalidArgument, kAverageGradients, ": variable '",
         towers[0][index].variable.name(),
         "': expected the same kind of gradient from every tower, got ", expected,
         " from tower 0 and ", got, " from tower ", t);
  }
  return gradients;
}

/// Throws unless there is one weight >= 0 per tower and at least one is positive.
void check_weights(std::span<const double> weights, std::size_t num_towers) {
  const auto is_weight = [](double weight) { return weight >= 0.0 && std::isfinite(weight); };
  const auto is_positive = [](double weight) { return weight > 0.0; };
  if (weights.size() == num_towers && std::ranges::all_of(weights, is_weight) &&
      std::ranges::any_of(weights, is_positive)) {
    return;
  }
  fail(ErrorCode::kInvalidArgument, kAverageGradients, ": expected ", num_towers,
       " weights >= 0, one per tower, at least one of them positive, got [", join(weights), "]");
}

/// Multiplies each tower's gradients by that tower's share of the total weight; omits towers of
/// weight 0.
std::vector<std::vector<GradientAndVariable>> scaled_gradients(TowerGradients towers,
                                                               std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::vector<GradientAndVariable>> scaled;
  for (std::size_t t = 0; t < towers.size(); ++t) {
    if (weights[t] == 0.0) continue;
    scaled.push_back(towers[t]);
    for (GradientAndVariable& pair : scaled.back()) {
      if (!pair.gradient.is_none()) pair.gradient = divide_by(pair.gradient, sum / weights[t]);
    }
  }
  return scaled;
}

/// Returns, for each variable, the sum over towers divided by `divisor`.
std::vector<GradientAndVariable> divided_sums(TowerGradients towers, double divisor) {
  std::vector<GradientAndVariable> results;
  for (std::size_t i = 0; i < towers[0].size(); ++i) {
    const std::vector<Gradient> gradients = gradients_of_variable(towers, i);
    Gradient sum;
    if (!gradients[0].is_none()) sum = aggregate(gradients);
    results.push_back({divisor == 1.0 ? sum : divide_by(sum, divisor), towers[0][i].variable});
  }
  return results;
}

}  // namespace

std::vector<GradientAndVariable> average_gradients(TowerGradients tower_gradients,
                                                   std::span<const double> tower_weights) {
  check_lists(tower_gradients);
  check_weights(tower_weights, tower_gradients.size());
  const GradientTape::StopRecording stop;
  const auto is_first = [&](double weight) { return weight == tower_weights.front(); };
  if (std::ranges::all_of(tower_weights, is_first)) return average_gradients(tower_gradients);
  return divided_sums(scaled_gradients(tower_gradients, tower_weights), 1.0);
}

std::vector<GradientAndVariable> average_gradients(TowerGradients tower_gradients) {
  check_lists(tower_gradients);
  const GradientTape::StopRecording stop;
  return divided_sums(tower_gradients, static_cast<double>(tower_gradients.size()));
}

std::vector<Gradient> gradients_of(std::span<const GradientAndVariable> pairs) {
  std::vector<Gradient> gradients;
  for (const GradientAndVariable& pair : pairs) gradients.push_back(pair.gradient);
  return gradients;
}

std::vector<GradientAndVariable> with_variables(std::span<const Gradient> gradients,
                                                std::span<const Variable> variables) {
  internal::require(gradients.size() == variables.size(),
                    "with_variables: expected one gradient for each of the ", variables.size(),
                    " variables, got ", gradients.size());
  std::vector<GradientAndVariable> pairs;
  for (std::size_t i = 0; i < gradients.size(); ++i) pairs.push_back({gradients[i], variables[i]});
  return pairs;
}

}  // namespace tutti
