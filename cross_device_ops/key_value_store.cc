// Checks of keys and values that all stores share.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/key_value_store.h"

#include <algorithm>
#include <cstddef>

#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kLongestKey = 200;
constexpr std::size_t kLongestValue = std::size_t{1} << 20;

bool is_key_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '-' || c == '.' || c == '/';
}

}  // namespace

void check_store_key(std::string_view store, std::string_view key) {
  if (!key.empty() && key.size() <= kLongestKey && std::ranges::all_of(key, is_key_character)) {
    return;
  }
  fail(ErrorCode::kInvalidArgument, store, ": the key '", key.substr(0, kLongestKey),
       "'; expected 1 to ", kLongestKey, " letters, digits, '_', '-', '.' or '/', got ", key.size(),
       " characters");
}

void check_store_value(std::string_view store, std::string_view key, std::string_view value) {
  if (value.size() <= kLongestValue) return;
  fail(ErrorCode::kInvalidArgument, store, ": the value of '", key, "'; expected at most ",
       kLongestValue, " bytes, got ", value.size());
}

}  // namespace tutti::internal
