// The job's shared values: reading and changing them, each change once.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "tutti/core/error.h"

namespace tutti::internal {

/// Which request of which member: one that comes again is answered as before.
struct RequestId {
  std::uint64_t member = 0;
  std::uint64_t number = 0;
};

/// The server's part of the store. Functions throw what the member is to be told: kInvalidArgument
/// for keys and values that are none, kResourceExhausted for a value that has no room. Threads: one
/// at a time.
class StoreTable {
 public:
  /// `most_bytes` of keys and values together.
  explicit StoreTable(std::size_t most_bytes = std::size_t{256} << 20) : most_bytes_(most_bytes) {}

  /// Null: there is none.
  const std::string* find(const std::string& key) const;
  void put(const RequestId& id, const std::string& key, const std::string& value);
  /// Whether it was there.
  bool remove(const RequestId& id, const std::string& key);
  /// Whether the present value was `expected` (nothing: there was none), and is `value` now.
  bool compare_and_set(const RequestId& id, const std::string& key,
                       const std::optional<std::string>& expected, const std::string& value);
  /// Forgets what was answered to `member`.
  void forget(std::uint64_t member) { done_.erase(member); }

 private:
  struct Outcome {
    bool value = false;
    std::optional<Error> error = {};
  };
  bool once(const RequestId& id, const std::function<bool()>& change);
  void set(const std::string& key, const std::string& value);

  const std::size_t most_bytes_;
  std::size_t bytes_ = 0;
  std::map<std::string, std::string> values_;
  std::map<std::uint64_t, std::map<std::uint64_t, Outcome>> done_;  // by member and number
};

}  // namespace tutti::internal
