// A GradientReducer that measures how long another one takes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/core/clock.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti::internal {

/// Passes every call on. Used by one replica during one step.
class TimedReducer final : public GradientReducer {
 public:
  explicit TimedReducer(GradientReducer& reducer) : reducer_(reducer) {}

  void begin(std::span<const Variable> variables) override {
    timed([&] { reducer_.begin(variables); });
  }
  void ready(std::size_t index, const Gradient& gradient) override {
    timed([&] { reducer_.ready(index, gradient); });
  }
  std::vector<Gradient> finish() override {
    std::vector<Gradient> sums;
    timed([&] { sums = reducer_.finish(); });
    return sums;
  }
  void updates_done() override {
    timed([&] { reducer_.updates_done(); });
  }

  double seconds() const { return seconds_; }

 private:
  template <class Fn>
  void timed(const Fn& fn) {
    const TimePoint begin = Clock::system().now();
    fn();
    seconds_ += seconds_between(begin, Clock::system().now());
  }

  GradientReducer& reducer_;
  double seconds_ = 0.0;
};

}  // namespace tutti::internal
