// Running one case, or a plan; what came of it: counts, a table, JSON.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/report.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <set>
#include <sstream>
#include <tuple>

#include "testing/cross_device_ops/checks.h"

namespace tutti::conformance {
namespace {

auto key_of(const Row& row) { return std::tuple(row.collective, row.op, row.dtype); }
auto key_of(const Case& c) { return std::tuple(c.collective, c.op, c.dtype); }

Json json_of(const Counts& counts) {
  Json json = Json::object();
  json.set("passed", counts.passed).set("failed", counts.failed);
  json.set("skipped", counts.skipped).set("not_run", counts.not_run);
  return json;
}

Counts& operator+=(Counts& sum, const Counts& more) {
  sum.passed += more.passed;
  sum.failed += more.failed;
  sum.skipped += more.skipped;
  sum.not_run += more.not_run;
  return sum;
}

template <class Operation, class Type>
void write_line(std::ostream& out, const Operation& operation, const Type& type,
                const std::vector<std::string>& numbers) {
  out << std::left << std::setw(24) << operation << std::setw(10) << type << std::right;
  for (const std::string& number : numbers) out << std::setw(9) << number;
  out << '\n';
}

std::vector<std::string> numbers_of(const Counts& counts) {
  std::vector<std::string> numbers;
  for (const auto n : {counts.passed, counts.failed, counts.skipped, counts.not_run}) {
    numbers.push_back(n == 0 ? "-" : concat(n));
  }
  return numbers;
}

constexpr Duration kCallLimit = std::chrono::seconds(20);
constexpr Duration kRescueLimit = std::chrono::seconds(40);

Result run_once(const Case& c, Subject& subject) {
  try {
    return c.shape == GroupShape::kLocal ? check_local(c, subject) : check_ranks(c, subject);
  } catch (const std::exception& error) {
    return failed(concat("it threw: ", error.what()));
  }
}

/// Whether no earlier case can have had a part in what happened.
bool has_own_groups(Check check) {
  return check == Check::kMismatch || check == Check::kDeadline || check == Check::kAbort ||
         check == Check::kPeerGone;
}

}  // namespace

// One case.

std::string_view to_string(Verdict verdict) {
  switch (verdict) {
    case Verdict::kPassed:
      return "passed";
    case Verdict::kFailed:
      return "failed";
    case Verdict::kSkipped:
      return "skipped";
  }
  return "?";
}

Outcomes run_ranks(Subject& subject, const Case& c, int size,
                   const std::function<void(int rank)>& body, const std::function<void()>& rescue) {
  Outcomes outcomes(static_cast<std::size_t>(size));
  RankThreads& threads = subject.threads(size);
  threads.start([&](int rank) {
    try {
      body(rank);
    } catch (const Error& error) {
      outcomes[static_cast<std::size_t>(rank)] = error;
    } catch (const std::exception& error) {
      outcomes[static_cast<std::size_t>(rank)] = Error(
          ErrorCode::kInternal, concat("an exception that is no tutti::Error: ", error.what()));
    }
  });
  if (threads.wait(kCallLimit)) return outcomes;
  rescue();
  if (threads.wait(kRescueLimit)) {
    for (auto& outcome : outcomes) {
      if (!outcome) continue;
      outcome = outcome->with_context(
          concat("after ", kCallLimit / std::chrono::seconds(1), " s of waiting it was aborted"));
    }
    return outcomes;
  }
  std::fprintf(stderr, "conformance: %s hangs, also after it was aborted: --case %s\n",
               subject.name().c_str(), c.id().c_str());
  std::_Exit(1);
}

std::string first_error(const Outcomes& outcomes) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    if (outcomes[r]) {
      return concat("rank ", r, " threw ", to_string(outcomes[r]->code()), ": ",
                    outcomes[r]->message());
    }
  }
  return {};
}

Case with_seed(const Case& c, std::uint64_t seed) {
  Case other = c;
  other.seed = seed;
  return other;
}

Result run(const Case& c, Subject& subject) {
  const Result first = run_once(c, subject);
  if (first.verdict != Verdict::kFailed || has_own_groups(c.check)) return first;
  subject.forget();
  const Result again = run_once(c, subject);
  subject.forget();
  if (again.verdict == Verdict::kFailed) return again;
  return failed(first.message + " (not in a new group: it depends on the calls before)");
}

// A plan.

std::string Row::operation() const {
  const std::string text(tutti::to_string(collective));
  return combines(collective) ? concat(text, " ", op) : text;
}

Row& Report::row_of(const Case& c) {
  const auto place =
      std::ranges::lower_bound(rows, key_of(c), {}, [](const Row& row) { return key_of(row); });
  if (place != rows.end() && key_of(*place) == key_of(c)) return *place;
  return *rows.insert(place, Row{c.collective, c.op, c.dtype, {}});
}

void Report::add(const Case& c, const Result& result) {
  Counts& counts = row_of(c).counts;
  switch (result.verdict) {
    case Verdict::kPassed:
      ++counts.passed;
      return;
    case Verdict::kFailed:
      ++counts.failed;
      failures.push_back({c, result.message});
      return;
    case Verdict::kSkipped:
      break;
  }
  ++counts.skipped;
  const std::string reason = concat(to_string(c.shape), ": ", result.message);
  const auto found = std::ranges::find(skip_reasons, reason, &SkipReason::reason);
  if (found != skip_reasons.end()) {
    ++found->count;
  } else {
    skip_reasons.push_back({reason, 1});
  }
}

void Report::add_not_run(const Case& c) { ++row_of(c).counts.not_run; }

Counts Report::total() const {
  Counts sum;
  for (const Row& row : rows) sum += row.counts;
  return sum;
}

bool Report::passed() const {
  const Counts sum = total();
  return sum.failed == 0 && sum.passed > 0;
}

std::string Report::table(const std::string& repeat) const {
  std::ostringstream out;
  write_line(out, "operation", "type", {"passed", "failed", "skipped", "not run"});
  for (const Row& row : rows) {
    write_line(out, row.operation(), tutti::to_string(row.dtype), numbers_of(row.counts));
  }
  const Counts sum = total();
  write_line(out, "all", "", numbers_of(sum));
  for (const SkipReason& skip : skip_reasons) {
    out << "skipped " << skip.count << ": " << skip.reason << '\n';
  }
  if (sum.not_run > 0) {
    out << "not run " << sum.not_run << ": the budget, or the number of failures, was reached\n";
  }
  std::set<std::tuple<Collective, ReduceOp, DType>> told;
  for (const Failure& failure : failures) {
    const Case& c = failure.failed_case;
    if (!told.insert(key_of(c)).second) continue;
    out << "FAILED " << failure.message << "\n  " << repeat << " --case " << c.id() << '\n';
  }
  out << name << ": "
      << (passed()         ? "conforms"
          : sum.failed > 0 ? "FAILS"
                           : "NOTHING RAN")
      << ", " << sum.passed << " passed, " << sum.failed << " failed, " << sum.skipped
      << " skipped, seed " << seed << ", " << std::fixed << std::setprecision(1) << seconds
      << " s\n";
  return out.str();
}

Json Report::json() const {
  Json report = Json::object();
  report.set("name", name).set("passed", passed()).set("seed", concat(seed));
  report.set("seconds", seconds).set("total", json_of(total()));
  Json::Array lines, failed, skipped;
  for (const Row& row : rows) {
    Json line = Json::object();
    line.set("operation", row.operation()).set("dtype", tutti::to_string(row.dtype));
    line.set("counts", json_of(row.counts));
    lines.push_back(std::move(line));
  }
  for (const Failure& failure : failures) {
    Json entry = Json::object();
    entry.set("case", failure.failed_case.id()).set("message", failure.message);
    failed.push_back(std::move(entry));
  }
  for (const SkipReason& skip : skip_reasons) {
    Json entry = Json::object();
    entry.set("reason", skip.reason).set("count", skip.count);
    skipped.push_back(std::move(entry));
  }
  report.set("rows", std::move(lines)).set("failures", std::move(failed));
  report.set("skipped", std::move(skipped));
  return report;
}

Report run(const Plan& plan, Subject& subject, const RunOptions& options) {
  Report report;
  report.name = subject.name();
  report.seed = plan.seed;
  const TimePoint begin = Clock::system().now();
  const TimePoint end = deadline_after(begin, options.budget);
  for (const Case& c : cases(plan)) {
    if (report.failures.size() >= options.max_failures || Clock::system().now() >= end) {
      report.add_not_run(c);
    } else {
      if (options.before_case) options.before_case(c);
      report.add(c, run(c, subject));
    }
  }
  subject.forget();
  report.seconds = seconds_between(begin, Clock::system().now());
  return report;
}

}  // namespace tutti::conformance
