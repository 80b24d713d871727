// For which line of the user's program a thread works.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tutti/core/source_location.h"

namespace tutti {

/// While it lives, what this thread does is done for that line of the user's program: what is far
/// below names it in messages. A location without a line changes nothing.
class CallSite {
 public:
  explicit CallSite(const SourceLocation& where) : outer_(current_) {
    if (where.line() != 0) current_ = where;
  }
  ~CallSite() { current_ = outer_; }
  CallSite& operator=(CallSite&&) = delete;

  /// Of the innermost; without a line where there is none.
  static SourceLocation current() { return current_; }

 private:
  static inline constinit thread_local SourceLocation current_ = {};
  const SourceLocation outer_;
};

}  // namespace tutti
