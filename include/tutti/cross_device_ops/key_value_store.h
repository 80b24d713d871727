// Key-value stores for the small values that ranks exchange to find each other.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/core/sync.h"

namespace tutti {

/// Key-value store shared by all ranks of a group. Keys have 1 to 200 characters: letters, digits,
/// '_', '-', '.' and '/'. Values are any bytes up to 1 MiB. The functions throw kInvalidArgument
/// for other keys and values. Thread-safe. Implementations: InProcessStore,
/// cluster/key_value_stores.
class KeyValueStore {
 public:
  virtual ~KeyValueStore() = default;
  /// Sets a value atomically, replacing an existing one: readers never see a partial value.
  virtual void set(std::string_view key, std::string_view value) = 0;
  virtual std::optional<std::string> get(std::string_view key) = 0;
  /// Returns the value of each key, in the order of `keys`. A remote store needs only one request.
  virtual std::vector<std::optional<std::string>> get_all(std::span<const std::string> keys);
  /// Waits for the key and returns its value. Throws kDeadlineExceeded, naming the store and the
  /// key.
  virtual std::string wait(std::string_view key, TimePoint deadline) = 0;
};

/// View of the keys in a store that begin with a prefix; callers omit the prefix. A value type;
/// empty without a store. Thread-safe.
class StorePart {
 public:
  StorePart() = default;
  template <class Store>
  StorePart(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  /// Returns a view of this part's keys that begin with `prefix`. If this part has no store, the
  /// result has none either.
  StorePart part(std::string_view prefix) const {
    StorePart longer = *this;
    longer.prefix_ += prefix;
    return longer;
  }

  explicit operator bool() const { return store_ != nullptr; }
  // Same as KeyValueStore's functions. Requires: this object has a store.
  void set(std::string_view key, std::string_view value) const { store_->set(full(key), value); }
  std::optional<std::string> get(std::string_view key) const { return store_->get(full(key)); }
  std::string wait(std::string_view key, TimePoint deadline) const {
    return store_->wait(full(key), deadline);
  }

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

  std::shared_ptr<KeyValueStore> store_;
  std::string prefix_;
};

/// Key-value store for the threads of one process. Share it through a shared_ptr.
class InProcessStore final : public KeyValueStore {
 public:
  void set(std::string_view key, std::string_view value) override;
  std::optional<std::string> get(std::string_view key) override;
  std::string wait(std::string_view key, TimePoint deadline) override;

 private:
  Mutex mutex_;
  CondVar changed_;
  std::map<std::string, std::string, std::less<>> values_ TUTTI_GUARDED_BY(mutex_);
};

namespace internal {
/// Check keys and values for all stores. Throw kInvalidArgument; the message begins with `store`.
void check_store_key(std::string_view store, std::string_view key);
void check_store_value(std::string_view store, std::string_view key, std::string_view value);
}  // namespace internal

}  // namespace tutti
