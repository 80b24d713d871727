// Handlers for SIGINT and SIGTERM that let training end after the current step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>

namespace tutti::internal {

/// Scope in which SIGINT and SIGTERM are recorded instead of ending the process; the destructor
/// restores the earlier handlers. Scopes may nest; a signal is recorded for all open scopes. Not
/// thread-safe.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Returns the signal that was received after the last acknowledge(); 0 if there was none.
  static int requested();
  static void acknowledge();
  /// Returns "SIGINT" or "SIGTERM", whichever was received last since the outermost object was
  /// created. If this process received neither, returns "a signal to another worker".
  static std::string last_name();

 private:
  using Handler = void (*)(int);
  std::array<Handler, 2> earlier_ = {};
};

}  // namespace tutti::internal
