// Reports of cases: counts, a table, JSON.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/report.h"

#include <algorithm>
#include <array>
#include <iomanip>
#include <map>
#include <set>
#include <sstream>
#include <tuple>

#include "core/names.h"

namespace tutti::conformance {
namespace {

constexpr std::string_view kVerdicts[] = {"passed", "failed", "skipped", "not_run"};

/// Numbers of results, by verdict.
using Counts = std::array<std::uint64_t, std::size(kVerdicts)>;
/// An operation and a type.
using Row = std::tuple<Collective, ReduceOp, DType>;

Row row_of(const Case& c) { return {c.collective, c.op, c.dtype}; }

std::string operation_of(const Row& row) {
  const auto& [collective, op, dtype] = row;
  return combines(collective) ? concat(to_string(collective), " ", op)
                              : concat(to_string(collective));
}

/// The results of a report, counted.
struct Summary {
  explicit Summary(const Report& report) {
    for (const Result& result : report.results) {
      const auto verdict = static_cast<std::size_t>(result.verdict);
      ++total[verdict];
      ++rows[row_of(result.of)][verdict];
      if (result.verdict == Verdict::kFailed) failures.push_back(result);
      if (result.verdict != Verdict::kSkipped) continue;
      ++skips[concat(to_string(result.of.shape), ": ", result.message)];
    }
  }

  Counts total{};
  std::map<Row, Counts> rows;
  std::map<std::string, std::uint64_t> skips;  // by reason
  std::vector<Result> failures;
};

void write_line(std::ostream& out, std::string_view operation, std::string_view type,
                const Counts& counts) {
  out << std::left << std::setw(24) << operation << std::setw(10) << type << std::right;
  for (const auto n : counts) out << std::setw(9) << (n == 0 ? "-" : concat(n));
  out << '\n';
}

Json json_of(const Counts& counts) {
  Json json = Json::object();
  for (std::size_t v = 0; v < counts.size(); ++v) json.set(std::string(kVerdicts[v]), counts[v]);
  return json;
}

}  // namespace

std::string_view to_string(Verdict verdict) {
  return internal::name_in(kVerdicts, verdict, "Verdict");
}

std::size_t Report::count(Verdict verdict) const {
  return static_cast<std::size_t>(std::ranges::count(results, verdict, &Result::verdict));
}

bool Report::passed() const { return count(Verdict::kFailed) == 0 && count(Verdict::kPassed) > 0; }

std::string Report::table(const std::string& repeat) const {
  const Summary summary(*this);
  std::ostringstream out;
  out << "operation               type         passed   failed  skipped  not run\n";
  for (const auto& [row, counts] : summary.rows) {
    write_line(out, operation_of(row), tutti::to_string(std::get<DType>(row)), counts);
  }
  write_line(out, "all", "", summary.total);
  for (const auto& [reason, n] : summary.skips) out << "skipped " << n << ": " << reason << '\n';
  if (count(Verdict::kNotRun) > 0) {
    out << "not run " << count(Verdict::kNotRun)
        << ": the budget, or the number of failures, was reached\n";
  }
  std::set<Row> reported;
  for (const auto& [c, verdict, message] : summary.failures) {
    if (!reported.insert(row_of(c)).second) continue;
    out << "FAILED " << message << "\n  " << repeat << " --case " << c.id() << '\n';
  }
  out << name << ": "
      << (passed()                   ? "conforms"
          : summary.failures.empty() ? "NOTHING RAN"
                                     : "FAILS");
  for (const Verdict verdict : {Verdict::kPassed, Verdict::kFailed, Verdict::kSkipped}) {
    out << ", " << count(verdict) << " " << to_string(verdict);
  }
  out << ", seed " << seed << ", " << std::fixed << std::setprecision(1) << seconds << " s\n";
  return out.str();
}

Json Report::json() const {
  const Summary summary(*this);
  const auto row = [](const auto& entry) {
    return Json::Object{{"operation", operation_of(entry.first)},
                        {"dtype", tutti::to_string(std::get<DType>(entry.first))},
                        {"counts", json_of(entry.second)}};
  };
  const auto failure = [](const Result& result) {
    return Json::Object{{"case", result.of.id()}, {"message", result.message}};
  };
  const auto skip = [](const auto& entry) {
    return Json::Object{{"reason", entry.first}, {"count", entry.second}};
  };
  return Json::Object{{"name", name},
                      {"passed", passed()},
                      {"seed", concat(seed)},
                      {"seconds", seconds},
                      {"total", json_of(summary.total)},
                      {"rows", Json::array_of(summary.rows, row)},
                      {"failures", Json::array_of(summary.failures, failure)},
                      {"skipped", Json::array_of(summary.skips, skip)}};
}

}  // namespace tutti::conformance
