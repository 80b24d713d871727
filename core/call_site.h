// Source line of the user's call that the current thread is executing.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/core/source_location.h"

namespace tutti {

/// Scope in which this thread runs on behalf of a line of the user's program. Messages from lower
/// layers name that line. A location without a line changes nothing.
class CallSite {
 public:
  explicit CallSite(const SourceLocation& where) : outer_(current_) {
    if (where.line() != 0) current_ = where;
  }
  ~CallSite() { current_ = outer_; }
  CallSite& operator=(CallSite&&) = delete;

  /// Returns the location of the innermost scope, or a location without a line if there is no
  /// scope.
  static SourceLocation current() { return current_; }

 private:
  static inline constinit thread_local SourceLocation current_ = {};
  const SourceLocation outer_;
};

}  // namespace tutti
