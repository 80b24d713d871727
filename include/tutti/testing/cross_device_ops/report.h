// Runs cases; the report counts and lists what became of them, as a table and as JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/json.h"
#include "tutti/testing/cross_device_ops/case.h"
#include "tutti/testing/cross_device_ops/subject.h"

namespace tutti::conformance {

/// The end of a case. kNotRun: the budget or the number of failures was reached before.
enum class Verdict { kPassed, kFailed, kSkipped, kNotRun };
/// "passed" and so on.
std::string_view to_string(Verdict verdict);

/// A case and its end.
struct Result {
  Case of;
  Verdict verdict = Verdict::kPassed;
  std::string message = {};  // what went wrong, or why it was skipped
};

/// The results of a list of cases.
struct Report {
  std::string name;
  std::uint64_t seed = 0;  // of the first case
  double seconds = 0;
  std::vector<Result> results;

  std::size_t count(Verdict verdict) const;
  /// Returns true if something ran and nothing failed.
  bool passed() const;
  /// A table with a line per operation and type, the reasons for skipping, the first failure of
  /// each line with the command that repeats it (`repeat`: "tutti conform NAME"), and a verdict.
  std::string table(const std::string& repeat) const;
  Json json() const;
};

struct RunOptions {
  /// No case begins after this time.
  Duration budget = Duration::max();
  /// No case begins after this number of failures: what fails everywhere need not run long.
  std::size_t max_failures = 100;
  /// Called before each case runs, by the thread that called run(): a program can note the case for
  /// the handler of a crash.
  std::function<void(const Case&)> before_case = nullptr;
};

/// Runs cases on groups that earlier cases have used; a case that fails there is tried again in a
/// new group, and the message says if it passed in that one. Does not throw what the subject
/// throws. A rank that does not return 40 s after its communicator was aborted ends the process
/// with exit code 1 and a line that names the case.
Report run_cases(const std::vector<Case>& cases, const Subject& subject,
                 const RunOptions& options = {});
/// Runs the cases of a plan.
Report run(const Plan& plan, const Subject& subject, const RunOptions& options = {});

}  // namespace tutti::conformance
