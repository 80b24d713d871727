// Ends or fails the n-th call that changes files below a folder: what a crash or a bad disk does.
// SPDX-License-Identifier: Apache-2.0
//
// The library stands in front of libc's functions. A test program is linked with it and calls
// arm(); any other program is started with LD_PRELOAD=libtutti_file_faults.so and
//   TUTTI_FAULTS_UNDER=/the/folder TUTTI_FAULTS_DO=kill|power_cut|enospc|eio|erofs
//   TUTTI_FAULTS_FIRST=12 [TUTTI_FAULTS_LAST=12]
// Calls are counted from 1. Those that only read are not: nothing changes between them.
#pragma once

#include <string>
#include <vector>

namespace tutti::file_faults {

enum class Action {
  kCount,     // nothing but counting
  kKill,      // SIGKILL before the call
  kPowerCut,  // the same, and what was not synced is lost: halves of files, new names, renames
  kNoSpace,   // ENOSPC; a write gets half of its bytes done first
  kIoError,   // EIO
  kReadOnly,  // EROFS
};

/// From now on, in this process and those it forks. Waits for no disk: fsync() is only noted.
void arm(const std::string& under, Action action, int first = 0, int last = 0);
void disarm();

/// The calls since arm(), such as "renameat /tmp/x/state.json".
std::vector<std::string> calls();

}  // namespace tutti::file_faults
