// Waiting for a data thread.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/wait.h"

#include <chrono>

#include "tutti/core/logging.h"

namespace tutti::internal {

void wait_for_input(CondVar& condition, Mutex& mutex, std::string_view who,
                    const std::function<bool()>& ready) {
  constexpr int kMinutes = 30;
  for (int minute = 1; minute <= kMinutes; ++minute) {
    if (condition.wait_for(mutex, std::chrono::minutes(1), ready)) return;
    log_warning(concat(who, ": no element for ", minute, " minutes"));
  }
  fail(ErrorCode::kDeadlineExceeded, who, ": expected an element within ", kMinutes,
       " minutes, got none; try to find the function of this dataset that hangs");
}

void wait_for_work(CondVar& condition, Mutex& mutex, const std::function<bool()>& ready) {
  while (!condition.wait_for(mutex, std::chrono::minutes(1), ready)) {
  }
}

}  // namespace tutti::internal
