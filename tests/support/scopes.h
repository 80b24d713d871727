// Environment variables and clocks that a test sets.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

#include "tutti/core/clock.h"

namespace tutti::test_scopes {

/// Sets or removes an environment variable for this object's lifetime.
class EnvironmentScope {
 public:
  EnvironmentScope(const char* name, const std::optional<std::string>& value) : name_(name) {
    if (const char* const before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~EnvironmentScope() { set(before_); }
  EnvironmentScope& operator=(EnvironmentScope&&) = delete;

 private:
  void set(const std::optional<std::string>& value) {
    value ? ::setenv(name_, value->c_str(), 1) : ::unsetenv(name_);
  }

  const char* const name_;
  std::optional<std::string> before_;
};

/// Clock that only the test advances.
class StepClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void sleep_until(TimePoint time) override { now_ = time; }

 private:
  TimePoint now_{};
};

}  // namespace tutti::test_scopes
