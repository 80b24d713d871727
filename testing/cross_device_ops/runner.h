// Threads that play the parts of a check, with a limit of time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tutti/core/clock.h"
#include "tutti/core/error.h"

namespace tutti::conformance {

/// The end of one thread's part.
struct Outcome {
  std::optional<Error> error = std::nullopt;  // that it threw
  TimePoint begin = {};
  TimePoint end = {};
};

/// After `limit`, `rescue` is called, which should wake threads that wait. If it is empty, or after
/// twice the limit more, the process ends with exit code 1 and the line `message`: a thread cannot
/// be ended.
struct TimeLimit {
  Duration limit;
  std::string message;
  std::function<void()> rescue = nullptr;
};

/// Calls body(0), body(1), ... at the same time, each on its own thread, and waits for all.
std::vector<Outcome> run_threads(int size, const TimeLimit& limit,
                                 const std::function<void(int)>& body);

/// Returns what is wrong with calls that the last rank of a group did not make, or "". Not
/// `on_all`: some may succeed. The deadline of the first call ends all of them: on a busy machine a
/// rank may begin just before it, and counts as missing.
std::string wrong_deadline(std::span<const Outcome> callers, Duration timeout, bool on_all = true);

}  // namespace tutti::conformance
