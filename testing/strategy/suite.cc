// Runs checks of strategies, each with a new strategy and a limit of time.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/strategy/suite.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "core/names.h"
#include "testing/strategy/expect.h"
#include "tutti/core/executor.h"
#include "tutti/core/sync.h"

namespace tutti::conformance {
namespace {

std::vector<StrategyCheck> all_checks() {
  std::vector<StrategyCheck> all;
  for (auto& some : {replica_checks(), value_checks(), variable_checks(), step_checks()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

/// Ends the process when the limit is over before this object is destroyed.
class TimeLimit {
 public:
  TimeLimit(const StrategySubject& subject, const std::string& check)
      : thread_(Executor::system().start("time-limit", [this, &subject, &check] {
          const MutexLock lock(mutex_);
          const auto is_done = [this]() TUTTI_REQUIRES(mutex_) { return is_done_; };
          if (changed_.wait_for(mutex_, subject.limit, is_done)) return;
          std::fprintf(stderr,
                       "conformance: strategy '%s': check '%s' is not done in time: a replica "
                       "waits for ever\n",
                       subject.name.c_str(), check.c_str());
          std::_Exit(1);
        })) {}
  ~TimeLimit() {
    {
      const MutexLock lock(mutex_);
      is_done_ = true;
    }
    changed_.notify_all();
    thread_->join();
  }
  TimeLimit(const TimeLimit&) = delete;
  TimeLimit& operator=(const TimeLimit&) = delete;

 private:
  Mutex mutex_;
  CondVar changed_;
  bool is_done_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Thread> thread_;
};

std::string run_check(const StrategySubject& subject, const StrategyCheck& check) {
  const TimeLimit limit(subject, check.name);
  try {
    const std::unique_ptr<Strategy> strategy = subject.make();
    check.run(subject, *strategy);
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace

std::vector<std::string> strategy_checks() {
  std::vector<std::string> names;
  for (const StrategyCheck& check : all_checks()) names.push_back(check.name);
  return names;
}

std::string run_strategy_check(const StrategySubject& subject, const std::string& name) {
  const std::vector<StrategyCheck> all = all_checks();
  const auto check = std::ranges::find(all, name, &StrategyCheck::name);
  if (check == all.end()) {
    fail(ErrorCode::kInvalidArgument, "conformance: no such check of strategies: '", name,
         "'; expected one of ", internal::choices(strategy_checks(), name));
  }
  // The others use results of all replicas, which there must be.
  const std::string premise = run_check(subject, all.front());
  return premise.empty() && name != all.front().name ? run_check(subject, *check) : premise;
}

StrategyReport run_strategy_suite(const StrategySubject& subject) {
  StrategyReport report;
  report.name = subject.name;
  for (const StrategyCheck& check : all_checks()) {
    ++report.num_checks;
    const std::string message = run_check(subject, check);
    if (message.empty()) continue;
    report.failures.push_back({check.name, message});
    if (report.num_checks == 1) break;
  }
  return report;
}

std::string StrategyReport::text() const {
  std::string text;
  for (const StrategyFailure& failure : failures) {
    text += concat("FAILED ", failure.check, ": ", failure.message, "\n");
  }
  return text +
         concat(name, ": ", num_checks - failures.size(), " of ", num_checks, " checks passed\n");
}

// What checks say.

namespace {

constexpr std::size_t kShown = 16;

std::string text_of(const Numbers& numbers) {
  const std::size_t shown = std::min(kShown, numbers.size());
  const Numbers first(numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(shown));
  return concat("[", join(first), numbers.size() > shown ? ", ..." : "", "]");
}

}  // namespace

void expect_equal(std::string_view what, const Numbers& got, const Numbers& expected) {
  if (got == expected) return;
  throw CheckFailed(concat(what, ": expected ", text_of(expected), ", got ", text_of(got)));
}

void expect_equal(std::string_view what, std::string_view got, std::string_view expected) {
  if (got == expected) return;
  throw CheckFailed(concat(what, ": expected ", expected, ", got ", got));
}

void expect(bool condition, std::string_view what) {
  if (!condition) throw CheckFailed(std::string(what));
}

void expect_error(std::string_view what, ErrorCode code, const std::vector<std::string>& parts,
                  const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    const std::string said = concat(to_string(error.code()), ": ", error.message());
    if (error.code() != code) {
      throw CheckFailed(concat(what, ": expected ", to_string(code), ", got ", said));
    }
    for (const std::string& part : parts) {
      if (error.message().find(part) != std::string::npos) continue;
      throw CheckFailed(concat(what, ": expected a message with '", part, "', got ", said));
    }
    return;
  }
  throw CheckFailed(concat(what, ": expected ", to_string(code), ", got no error"));
}

Numbers numbers(const Tensor& tensor) { return tensor.to_doubles(); }

Numbers numbers(const PerReplica<Tensor>& tensors) {
  Numbers all;
  for (const Tensor& tensor : tensors) {
    for (const double value : tensor.to_doubles()) all.push_back(value);
  }
  return all;
}

Numbers components(const Variable& variable) {
  return numbers(PerReplica<Tensor>(variable.storage().local_components()));
}

Numbers copies(double x, std::size_t n) { return Numbers(n, x); }

}  // namespace tutti::conformance
