// What strangers may cost: connections of an address, lines of the log.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "tutti/core/clock.h"

namespace tutti::internal {

/// A bucket of connections per address: `most` at once, filled again at `per_second`. A peer
/// that proves itself gets its connection back, so that the ranks of a large group on one machine
/// are not slowed down. Remembers at most kMostAddresses. Threads: one at a time.
class AddressLimit {
 public:
  static constexpr std::size_t kMostAddresses = 1024;

  explicit AddressLimit(double most = 512, double per_second = 128)
      : most_(most), per_second_(per_second) {}
  /// Whether this address may open one more now.
  bool allows(const std::string& address, TimePoint now);
  void give_back(const std::string& address);
  std::size_t num_addresses() const { return buckets_.size(); }

 private:
  struct Bucket {
    double left = 0;
    TimePoint at{};  // when it was so
  };
  void forget_idle(TimePoint now);
  double left_in(const Bucket& bucket, TimePoint now) const;

  const double most_;
  const double per_second_;
  std::map<std::string, Bucket> buckets_;
};

/// Says who was refused: the first one at once, then one line per pause with the number of the
/// others. Threads: one at a time.
class RefusalLog {
 public:
  /// `who` refuses: "control".
  explicit RefusalLog(std::string who);
  void note(std::string_view reason, TimePoint now);

 private:
  const std::string who_;
  TimePoint next_{};
  std::uint64_t num_unsaid_ = 0;
};

}  // namespace tutti::internal
