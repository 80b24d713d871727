// Processes that the started ones left behind and that the kernel gave to this one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <vector>

namespace tutti::launch {

/// Takes leave of children of this process that have ended, except those of `own`. Call it when no
/// other child can have ended. Does not wait.
void reap_adopted(const std::vector<pid_t>& own);

/// Kills and reaps every child of this process that is not in `own`, and what comes to this process
/// when they end.
void end_adopted(const std::vector<pid_t>& own);

}  // namespace tutti::launch
