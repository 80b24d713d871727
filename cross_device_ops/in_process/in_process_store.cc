// Values by key, in memory.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/in_process/in_process_store.h"

#include <optional>

namespace tutti {
namespace {

constexpr std::string_view kName = "in-process store";

}  // namespace

void InProcessStore::set(std::string_view key, std::string_view value) {
  internal::check_store_key(kName, key);
  internal::check_store_value(kName, key, value);
  MutexLock lock(mutex_);
  values_.insert_or_assign(std::string(key), std::string(value));
  changed_.notify_all();
}

std::optional<std::string> InProcessStore::get(std::string_view key) {
  internal::check_store_key(kName, key);
  MutexLock lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

std::string InProcessStore::wait(std::string_view key, TimePoint deadline) {
  internal::check_store_key(kName, key);
  MutexLock lock(mutex_);
  auto found = values_.end();
  changed_.wait_until(mutex_, deadline, [&]() TUTTI_REQUIRES(mutex_) {
    found = values_.find(key);
    return found != values_.end();
  });
  if (found == values_.end()) {
    fail(ErrorCode::kDeadlineExceeded, kName, ": nobody has set the key '", key,
         "' before the deadline");
  }
  return found->second;
}

}  // namespace tutti
