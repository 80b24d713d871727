// One value per local replica.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {

/// One value per replica of this process, in replica order; values may differ. Strategy::run passes
/// each replica its own element and returns a PerReplica. It is deliberately not a Tensor: use
/// reduce() to combine the values. Combines tf.distribute's PerReplica and
/// experimental_local_results.
template <class T>
class PerReplica {
 public:
  using value_type = T;

  PerReplica() = default;
  explicit PerReplica(std::vector<T> values) : values_(std::move(values)) {}

  std::size_t size() const { return values_.size(); }
  const T& operator[](std::size_t replica) const {
    if (replica >= values_.size())
      fail(ErrorCode::kOutOfRange, "PerReplica: expected a replica below ", values_.size(),
           ", got ", replica);
    return values_[replica];
  }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }
  /// Returns the values as a vector: tf's experimental_local_results.
  const std::vector<T>& values() const { return values_; }

  /// Returns fn(value) for each replica, as a PerReplica.
  template <class Fn>
  auto map(Fn&& fn) const {
    using R = std::invoke_result_t<Fn&, const T&>;
    std::vector<R> results;
    results.reserve(values_.size());
    for (const T& value : values_) results.push_back(fn(value));
    return PerReplica<R>(std::move(results));
  }

 private:
  std::vector<T> values_;
};

/// True if T is a PerReplica.
template <class T>
inline constexpr bool is_per_replica = false;
template <class T>
inline constexpr bool is_per_replica<PerReplica<T>> = true;

}  // namespace tutti
