// How many connections one address may open before it has proven anything.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <map>
#include <string>

#include "tutti/core/clock.h"

namespace tutti::internal {

/// A bucket of connections per address: `most` at once, filled again at `per_second`. Whoever
/// proves itself gets its connection back, so that the ranks of a large group on one machine are
/// not slowed down. Remembers at most kMostAddresses. Threads: one at a time.
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

}  // namespace tutti::internal
