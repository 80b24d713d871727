// Checks shared by all key-value stores, and the store in this process's memory.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/key_value_store.h"

#include <cstddef>

#include "core/names.h"

namespace tutti {
namespace {

constexpr std::string_view kName = "in-process store";
constexpr std::size_t kLongestKey = 200;
constexpr std::size_t kLongestValue = std::size_t{1} << 20;

}  // namespace

void internal::check_store_key(std::string_view store, std::string_view key) {
  require(!key.empty() && key.size() <= kLongestKey && has_only_alphanumerics_and("_-./", key),
          store, ": the key '", key.substr(0, kLongestKey), "' is invalid; expected 1 to ",
          kLongestKey, " letters, digits, '_', '-', '.' or '/', got ", key.size(), " characters");
}

void internal::check_store_value(std::string_view store, std::string_view key,
                                 std::string_view value) {
  require(value.size() <= kLongestValue, store, ": expected at most ", kLongestValue,
          " bytes as the value of '", key, "', got ", value.size());
}

std::vector<std::optional<std::string>> KeyValueStore::get_all(std::span<const std::string> keys) {
  std::vector<std::optional<std::string>> values;
  for (const std::string& key : keys) values.push_back(get(key));
  return values;
}

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
    fail(ErrorCode::kDeadlineExceeded, kName, ": no process set key '", key,
         "' before the deadline");
  }
  return found->second;
}

}  // namespace tutti
