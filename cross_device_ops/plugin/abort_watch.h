// Notices that a peer has aborted the group, while nobody receives from it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tutti/cross_device_ops/transport.h"

namespace tutti::internal {

/// Receives that never end by themselves: testing them shows that a peer has aborted the group.
/// Threads: one at a time.
class AbortWatch {
 public:
  /// Of messages beside those of the message engine: its tags never end in this number.
  static constexpr std::uint64_t kTag = ~std::uint64_t{0};

  AbortWatch(Transport& transport, const std::vector<int>& ranks) {
    for (const int rank : ranks) {
      if (rank != transport.rank()) never_.push_back(transport.recv(rank, kTag, {}, {}));
    }
  }
  /// The reason, if there is one. A peer that is gone may just have finished: that is none.
  std::optional<Error> look() {
    for (const auto& work : never_) {
      try {
        work->test();
      } catch (const Error& error) {
        if (error.code() == ErrorCode::kAborted) return error;
      }
    }
    return std::nullopt;
  }

 private:
  std::vector<std::unique_ptr<Work>> never_;
};

}  // namespace tutti::internal
