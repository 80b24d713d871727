// Running one case, or a plan; what came of it: counts, a table, JSON.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tutti/core/json.h"
#include "tutti/testing/cross_device_ops/subject.h"

namespace tutti::conformance {

/// What came of a case.
enum class Verdict { kPassed, kFailed, kSkipped };
/// "passed" and so on.
std::string_view to_string(Verdict verdict);

/// What came of a case, and why.
struct Result {
  Verdict verdict = Verdict::kPassed;
  std::string message = {};  // what went wrong, or why it was skipped
};

/// Runs the case on a group that earlier cases have used, and once more on a new one if it fails
/// there. Never throws for what the subject does; a rank that does not come back 40 s after its
/// communicator was aborted ends the process with exit code 1 and a line that names the case.
Result run(const Case& c, Subject& subject);

/// Numbers of cases.
struct Counts {
  std::uint64_t passed = 0;
  std::uint64_t failed = 0;
  std::uint64_t skipped = 0;
  std::uint64_t not_run = 0;  // the budget was spent
};

/// One operation and type.
struct Row {
  Collective collective = Collective::kAllReduce;
  ReduceOp op = ReduceOp::kSum;  // of the collectives that combine
  DType dtype = DType::kFloat32;
  Counts counts;

  /// "all_reduce SUM".
  std::string operation() const;
};

/// A case that failed.
struct Failure {
  Case failed_case;
  std::string message;
};

/// Why cases were skipped, and how many.
struct SkipReason {
  std::string reason;
  std::uint64_t count = 0;
};

/// What came of a plan.
struct Report {
  std::string name;
  std::uint64_t seed = 0;
  double seconds = 0;
  std::vector<Row> rows;  // by operation and type
  std::vector<Failure> failures;
  std::vector<SkipReason> skip_reasons;

  void add(const Case& c, const Result& result);
  void add_not_run(const Case& c);
  Counts total() const;
  /// Whether something ran and nothing failed.
  bool passed() const;
  /// A table with a line per operation and type, the reasons for skipping, the first failure of
  /// each line with the command that repeats it (`repeat`: "tutti conform NAME"), and a verdict.
  std::string table(const std::string& repeat) const;
  Json json() const;

 private:
  Row& row_of(const Case& c);
};

struct RunOptions {
  /// Cases that have not begun after this time are counted as not run.
  Duration budget = Duration::max();
  /// Stop after so many failures: what fails everywhere need not run long.
  std::size_t max_failures = 100;
  /// Called before each case runs, by the thread that runs the plan: a program can note what runs,
  /// for the handler of a crash.
  std::function<void(const Case&)> before_case = nullptr;
};

/// Runs the plan's cases.
Report run(const Plan& plan, Subject& subject, const RunOptions& options = {});

}  // namespace tutti::conformance
