// Shares toward equal times: medians, limits, bounded moves.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/share_balancer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

double sum_of(std::span<const double> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

std::vector<double> scaled_to_1(std::vector<double> values) {
  const double sum = sum_of(values);
  for (double& value : values) value /= sum;
  return values;
}

/// The middle one; of an even number the lower of both, which is one that was measured.
double median(std::vector<double> values) {
  const auto middle = values.begin() + (std::ssize(values) - 1) / 2;
  std::ranges::nth_element(values, middle);
  return *middle;
}

/// The time of a step whose slowest replica decides, in units in which speeds add up to 1: with
/// shares equal to speeds it is 1.
double time_of(std::span<const double> shares, std::span<const double> speeds) {
  double longest = 0.0;
  for (std::size_t r = 0; r < shares.size(); ++r) {
    longest = std::max(longest, shares[r] / speeds[r]);
  }
  return longest;
}

void check(const AutoBalance& options, std::size_t num_replicas) {
  const auto require = [](bool is_good, const char* option, const char* expected, auto got) {
    if (is_good) return;
    fail(ErrorCode::kInvalidArgument, "auto_balance: ", option, "; expected ", expected, ", got ",
         got);
  };
  require(options.window >= 1, "window", "1 step or more", options.window);
  require(options.warm_up >= 0, "warm_up", "0 steps or more", options.warm_up);
  require(options.tolerance > 0.0 && options.tolerance < 1.0, "tolerance",
          "a part of a step between 0 and 1", options.tolerance);
  require(options.max_change > 0.0 && options.max_change <= 1.0, "max_change",
          "a part of the batch above 0, at most 1", options.max_change);
  const double most = 1.0 / static_cast<double>(num_replicas);
  require(options.min_share >= 0.0 && options.min_share <= most, "min_share",
          "a share of 0 or more, at most that of equal replicas", options.min_share);
  require(options.clock != nullptr, "clock", "a clock", "none");
}

}  // namespace

std::vector<double> limited_shares(std::span<const double> wanted, double least,
                                   std::span<const double> most) {
  std::vector<double> shares(wanted.size(), 0.0);
  std::vector<bool> is_fixed(wanted.size(), false);
  // Upper limits first: what they take makes others larger, so that fewer meet the lower one.
  for (const bool upper : {true, false}) {
    for (bool changed = true; changed;) {
      double left = 1.0, free = 0.0;
      for (std::size_t r = 0; r < wanted.size(); ++r) {
        (is_fixed[r] ? left : free) += is_fixed[r] ? -shares[r] : wanted[r];
      }
      changed = false;
      for (std::size_t r = 0; r < wanted.size(); ++r) {
        if (is_fixed[r]) continue;
        shares[r] = wanted[r] * std::max(left, 0.0) / free;
        const double limit = upper ? most[r] : std::min(least, most[r]);
        if (upper ? shares[r] <= limit : shares[r] >= limit) continue;
        shares[r] = limit;
        is_fixed[r] = changed = true;
      }
    }
  }
  return shares;
}

ShareBalancer::ShareBalancer(const AutoBalance& options, std::vector<double> weights,
                             std::vector<std::int64_t> max_rows)
    : options_(options),
      max_rows_(std::move(max_rows)),
      shares_(scaled_to_1(std::move(weights))),
      steps_to_skip_(options.warm_up),
      speeds_(shares_.size()) {
  check(options_, shares_.size());
}

std::vector<double> ShareBalancer::shares() const {
  MutexLock lock(mutex_);
  return shares_;
}

std::optional<ShareBalancer::Move> ShareBalancer::note(std::span<const std::int64_t> rows,
                                                       std::span<const double> seconds) {
  MutexLock lock(mutex_);
  const auto is_positive = [](auto value) { return value > 0; };
  if (!std::ranges::all_of(rows, is_positive) || !std::ranges::all_of(seconds, is_positive)) {
    return std::nullopt;
  }
  if (steps_to_skip_ > 0) {
    --steps_to_skip_;
    return std::nullopt;
  }
  largest_rows_ =
      std::max(largest_rows_, std::accumulate(rows.begin(), rows.end(), std::int64_t{0}));
  std::vector<double> speeds;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    speeds.push_back(static_cast<double>(rows[r]) / seconds[r]);
  }
  speeds = scaled_to_1(std::move(speeds));
  for (std::size_t r = 0; r < speeds.size(); ++r) speeds_[r].push_back(speeds[r]);
  seconds_.push_back(*std::ranges::max_element(seconds));
  return std::ssize(seconds_) < options_.window ? std::nullopt : look();
}

std::optional<ShareBalancer::Move> ShareBalancer::look() {
  const auto rows = static_cast<double>(largest_rows_);
  std::vector<double> speeds, most;
  for (std::size_t r = 0; r < speeds_.size(); ++r) {
    speeds.push_back(median(speeds_[r]));
    most.push_back(max_rows_.empty() ? 1.0
                                     : std::min(1.0, static_cast<double>(max_rows_[r]) / rows));
  }
  const double seconds = median(seconds_);
  forget();
  speeds = scaled_to_1(std::move(speeds));
  const double least = std::max(options_.min_share, 1.0 / rows);
  const std::vector<double> target = limited_shares(speeds, least, most);
  const double now = time_of(shares_, speeds);
  if (now - time_of(target, speeds) <= options_.tolerance * now) return std::nullopt;
  double largest = 0.0;
  for (std::size_t r = 0; r < target.size(); ++r) {
    largest = std::max(largest, std::abs(target[r] - shares_[r]));
  }
  const double way = std::min(1.0, options_.max_change / largest);
  Move move{.from = shares_, .to = {}, .seconds = seconds, .expected_part = 1.0};
  for (std::size_t r = 0; r < target.size(); ++r) shares_[r] += way * (target[r] - shares_[r]);
  move.to = shares_;
  move.expected_part = time_of(shares_, speeds) / now;
  return move;
}

void ShareBalancer::forget() {
  for (std::vector<double>& speeds : speeds_) speeds.clear();
  seconds_.clear();
  largest_rows_ = 0;
}

Json ShareBalancer::save() const {
  Json shares = Json::array();
  for (const double share : this->shares()) shares.push_back(share);
  return shares;
}

bool ShareBalancer::restore(const Json& state) {
  std::vector<double> shares;
  for (const Json& share : state.as_array()) shares.push_back(share.as_double());
  const auto is_share = [](double share) { return share > 0.0 && share <= 1.0; };
  if (!std::ranges::all_of(shares, is_share)) {
    fail(ErrorCode::kInvalidArgument,
         "auto_balance: the checkpoint's shares; expected numbers above 0, at most 1, got ",
         state.dump());
  }
  MutexLock lock(mutex_);
  forget();
  steps_to_skip_ = options_.warm_up;
  if (shares.size() != shares_.size()) return false;
  const bool has_sum_1 = std::abs(sum_of(shares) - 1.0) < 1e-9;  // then they keep their bits
  shares_ = has_sum_1 ? std::move(shares) : scaled_to_1(std::move(shares));
  return true;
}

}  // namespace tutti::internal
