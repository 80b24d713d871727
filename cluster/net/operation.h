// A send or receive: what its Work waits for.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>

#include "tutti/core/error.h"

namespace tutti::internal {

/// Belongs to a box (inbox, outbox), whose mutex guards all but the end.
struct Operation {
  virtual ~Operation() = default;
  std::uint64_t tag = 0;
  std::size_t body_bytes = 0;

  /// Once. Afterwards no memory of the caller is touched.
  void end(std::optional<Error> reason = std::nullopt) {
    error_ = std::move(reason);
    ended_.store(true);  // seq_cst: see Mesh::tell_waiters
  }
  bool has_ended() const { return ended_.load(); }
  /// Of an operation that has ended.
  const std::optional<Error>& error() const { return error_; }

 private:
  std::optional<Error> error_;
  std::atomic<bool> ended_{false};
};

}  // namespace tutti::internal
