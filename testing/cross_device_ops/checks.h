// The parts of run(): one function for each kind of check.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "testing/cross_device_ops/problem.h"
#include "tutti/core/clock.h"
#include "tutti/testing/cross_device_ops/report.h"

namespace tutti::conformance {

inline Result passed() { return {}; }
inline Result failed(std::string message) { return {Verdict::kFailed, std::move(message)}; }
inline Result skipped(std::string message) { return {Verdict::kSkipped, std::move(message)}; }
/// passed() for an empty message.
inline Result verdict_of(std::string wrong) {
  return wrong.empty() ? passed() : failed(std::move(wrong));
}

/// What became of a rank's part: nothing, or what it threw.
using Outcomes = std::vector<std::optional<Error>>;

/// Calls body(rank) on `size` threads and collects what they throw. After 20 s `rescue` is called,
/// which is to wake those that wait.
Outcomes run_ranks(Subject& subject, const Case& c, int size,
                   const std::function<void(int rank)>& body, const std::function<void()>& rescue);
/// The first error, with its rank; nothing: none.
std::string first_error(const Outcomes& outcomes);

// LOCAL: local_checks.cc.
void call(CrossDeviceOps& ops, const Problem& problem);
Result check_local(const Case& c, Subject& subject);

// SPREAD and THREADS: rank_checks.cc, error_checks.cc.
void call(Communicator& communicator, const Problem& problem, CallOptions options = {});
CollectiveHandle start(Communicator& communicator, const Problem& problem);
void abort_all(const Communicators& communicators);
Result check_ranks(const Case& c, Subject& subject);
Result check_mismatch(const Case& c, Communicators& ranks, Subject& subject);

/// Outcome of calls that the last rank did not make.
struct Scene {
  Outcomes outcomes;
  std::vector<TimePoint> begins;  // of the calls, by rank
  std::vector<double> seconds;    // that each took

  /// Returns the seconds from the begin of the first call to that of rank `r`.
  double delay_of(std::size_t r) const {
    const auto calls = std::span(begins).first(begins.size() - 1);
    return seconds_between(*std::ranges::min_element(calls), begins[r]);
  }
};
/// Returns what is wrong with calls that were to end at their deadline, or "". The deadline of the
/// first call ends those of all ranks: on a busy machine a rank may begin just before it, and
/// counts as missing there.
std::string wrong_deadline(const Case& c, const Scene& scene, Duration timeout);
Result check_deadline(const Case& c, Communicators& ranks, Subject& subject, Duration timeout);
Result check_abort(const Case& c, Communicators& ranks, Subject& subject);
Result check_peer_gone(const Case& c, Communicators& ranks, Subject& subject);

/// Three calls, the third as the first; `call_and_check` gives what is wrong with one.
Result check_three_calls(const Case& c, const std::vector<Device>& devices, Determinism grade,
                         const std::function<std::string(const Problem&)>& call_and_check);

/// The same case with other values (and uneven parts).
Case with_seed(const Case& c, std::uint64_t seed);

}  // namespace tutti::conformance
