// Reading and changing values.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/control/store_table.h"

#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::internal {
namespace {

constexpr const char* kStoreName = "control store";
constexpr std::size_t kOutcomesKept = 256;  // per member; it asks few things at once

}  // namespace

const std::string* StoreTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

bool StoreTable::once(const RequestId& id, const std::function<bool()>& change) {
  auto& done = done_[id.member];
  const auto [place, is_new] = done.try_emplace(id.number);
  Outcome& outcome = place->second;
  if (is_new) {
    try {
      outcome.value = change();
    } catch (const Error& error) {
      outcome.error = error;
    }
  }
  const Outcome answer = outcome;
  if (done.size() > kOutcomesKept) done.erase(done.begin());
  if (answer.error) throw *answer.error;
  return answer.value;
}

void StoreTable::put(const RequestId& id, const std::string& key, const std::string& value) {
  (void)once(id, [&] {
    set(key, value);
    return true;
  });
}

bool StoreTable::remove(const RequestId& id, const std::string& key) {
  return once(id, [&] {
    const auto found = values_.find(key);
    if (found == values_.end()) return false;
    bytes_ -= key.size() + found->second.size();
    values_.erase(found);
    return true;
  });
}

bool StoreTable::compare_and_set(const RequestId& id, const std::string& key,
                                 const std::optional<std::string>& expected,
                                 const std::string& value) {
  return once(id, [&] {
    const std::string* const present = find(key);
    const bool is_as_expected =
        expected ? present != nullptr && *present == *expected : present == nullptr;
    if (is_as_expected) set(key, value);
    return is_as_expected;
  });
}

void StoreTable::set(const std::string& key, const std::string& value) {
  check_store_key(kStoreName, key);
  check_store_value(kStoreName, key, value);
  const std::string* const present = find(key);
  const std::size_t before = present == nullptr ? 0 : key.size() + present->size();
  const std::size_t after = bytes_ - before + key.size() + value.size();
  if (after > most_bytes_) {
    fail(ErrorCode::kResourceExhausted, kStoreName, ": no room for '", key, "'; expected at most ",
         most_bytes_, " bytes in all, got ", after, "; try files for large values");
  }
  bytes_ = after;
  values_[key] = value;
}

}  // namespace tutti::internal
