// How a process ended, and the words and numbers for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tutti::launch {

/// The end of a process: a code, or the signal that killed it.
struct ExitStatus {
  int code = 0;
  int signal = 0;  // 0: it ended by itself, with `code`

  bool success() const { return code == 0 && signal == 0; }
  /// What a shell reports: the code, or 128 + signal.
  int shell_code() const { return signal == 0 ? code : 128 + signal; }
  /// "exited with code 3", "killed by signal 9 (SIGKILL)".
  std::string to_string() const;
  bool operator==(const ExitStatus&) const = default;
};

/// "SIGKILL"; "signal 50" for one without a name.
std::string signal_name(int number);

/// From what waitpid() stored.
ExitStatus exit_status_of(int wait_status);

}  // namespace tutti::launch
