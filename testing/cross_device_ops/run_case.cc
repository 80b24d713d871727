// Carries out one case.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/testing/cross_device_ops/run_case.h"

#include <cstdio>
#include <cstdlib>

#include "tutti/testing/cross_device_ops/checks.h"

namespace tutti::conformance {
namespace {

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

}  // namespace tutti::conformance
