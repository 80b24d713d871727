// The object that Strategy::scope() returns.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

namespace tutti {

class Strategy;

/// While it lives its strategy is the current one of this thread, in cross-replica context, and
/// makes the variables. Closed by its destructor (or close()); scopes of a thread must be closed in
/// the reverse order of opening, otherwise kFailedPrecondition from close() ("scope nesting
/// error"), a logged error from the destructor.
class Scope {
 public:
  explicit Scope(Strategy& strategy);
  ~Scope();
  Scope(Scope&&) noexcept;
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  Scope& operator=(Scope&&) = delete;

  Strategy& strategy() const;
  void close();
  /// Opens it again after close().
  void reopen();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
