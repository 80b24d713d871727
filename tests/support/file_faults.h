// Simulates a crash or a failing disk at the n-th call that changes files below a folder.
// SPDX-License-Identifier: Apache-2.0
//
// This library intercepts libc's functions. A test program links with it and calls arm(). Start
// any other program with LD_PRELOAD=libtutti_file_faults.so and
//   TUTTI_FAULTS_UNDER=/the/folder TUTTI_FAULTS_DO=kill|power_cut|enospc|eio|erofs
//   TUTTI_FAULTS_FIRST=12 [TUTTI_FAULTS_LAST=12]
// Calls are counted from 1; calls that only read are not counted, because they change nothing.
#pragma once

#include <string>
#include <vector>

namespace tutti::file_faults {

enum class Action {
  kCount,     // only counts calls
  kKill,      // SIGKILL before the call
  kPowerCut,  // like kKill, and also loses unsynced data: half of the bytes, new names and renames
  kNoSpace,   // ENOSPC; a write first stores half of its bytes
  kIoError,   // EIO
  kReadOnly,  // EROFS
};

/// Starts counting calls that change files below `under`, in this process and in processes that it
/// forks. The calls numbered `first` to `last` (at least `first`) perform `action`. fsync() is only
/// recorded and does not wait for a disk.
void arm(const std::string& under, Action action, int first = 0, int last = 0);
void disarm();

/// Returns the calls since arm(), such as "renameat /tmp/x/state.json".
std::vector<std::string> calls();

}  // namespace tutti::file_faults
