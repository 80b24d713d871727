// One line of what `tutti doctor` reports.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti::tools {

enum class Verdict { kGood, kLimited, kBad };

struct Finding {
  std::string subject;
  Verdict verdict = Verdict::kGood;
  std::string found;
  std::string advice;  // what to do about it; empty when nothing
};

}  // namespace tutti::tools
