// Carries out one case.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tutti/testing/cross_device_ops/subject.h"

namespace tutti::conformance {

enum class Verdict { kPassed, kFailed, kSkipped };
std::string_view to_string(Verdict verdict);

struct Result {
  Verdict verdict = Verdict::kPassed;
  std::string message = {};  // what went wrong, or why it was skipped
};

/// Runs the case on a group that earlier cases have used, and once more on a new one if it fails
/// there. Never throws for what the subject does; a rank that does not come back 40 s after its
/// communicator was aborted ends the process with exit code 1 and a line that names the case.
Result run(const Case& c, Subject& subject);

}  // namespace tutti::conformance
