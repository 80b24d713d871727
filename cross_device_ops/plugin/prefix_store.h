// A part of a key-value store: the keys with one prefix.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tutti/cross_device_ops/key_value_store.h"

namespace tutti::internal {

/// Sees `prefix` + key where its user says key.
class PrefixStore final : public KeyValueStore {
 public:
  PrefixStore(std::shared_ptr<KeyValueStore> store, std::string prefix)
      : store_(std::move(store)), prefix_(std::move(prefix)) {}
  void set(std::string_view key, std::string_view value) override { store_->set(full(key), value); }
  std::optional<std::string> get(std::string_view key) override { return store_->get(full(key)); }
  std::string wait(std::string_view key, TimePoint deadline) override {
    return store_->wait(full(key), deadline);
  }

 private:
  std::string full(std::string_view key) const { return prefix_ + std::string(key); }

  std::shared_ptr<KeyValueStore> store_;
  std::string prefix_;
};

}  // namespace tutti::internal
