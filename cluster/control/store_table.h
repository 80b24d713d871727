// The values of a job's key-value store, and who waits for one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tutti/cluster/control/message.h"

namespace tutti::internal {

/// The server's part of the store. Threads: one at a time.
class StoreTable {
 public:
  /// `most_bytes` of keys and values together; a value beyond it is refused with
  /// kResourceExhausted.
  explicit StoreTable(std::size_t most_bytes = std::size_t{256} << 20) : most_bytes_(most_bytes) {}

  struct Answer {
    std::uint64_t member = 0;
    std::uint64_t id = 0;
    StoreReply reply;
  };
  /// The answers that a request leads to: its own, unless it waits, and those of waiters whose
  /// value has come. A request that changes something may come twice (a member that got no answer
  /// asks again): it is done once.
  std::vector<Answer> apply(std::uint64_t member, std::uint64_t id, const StoreRequest& request);
  /// Forgets what `member` waits for, and its old answers.
  void forget(std::uint64_t member);
  std::size_t num_waiting() const { return waiters_.size(); }

 private:
  struct Waiter {
    std::uint64_t member, id;
    std::string key;
  };
  StoreReply change(const StoreRequest& request);
  StoreReply put(const std::string& key, const std::string& value);
  void erase(const std::string& key);
  void answer_waiters(const std::string& key, std::vector<Answer>& answers);

  const std::size_t most_bytes_;
  std::size_t bytes_ = 0;
  std::map<std::string, std::string> values_;
  std::vector<Waiter> waiters_;
  std::map<std::uint64_t, std::map<std::uint64_t, StoreReply>> done_;  // by member and id
};

}  // namespace tutti::internal
