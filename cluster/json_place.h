// JSON values with the paths that lead to them, for error messages.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/core/json.h"

namespace tutti::internal {

/// Returns the value as one line of JSON, truncated after 60 bytes.
std::string shown(const Json& value);
/// Returns "TF_CONFIG.cluster.worker" for "TF_CONFIG.cluster" and "worker". Puts names that are not
/// plain words in brackets and quotes.
std::string member_path(std::string_view path, std::string_view name);
/// Returns a path such as "TF_CONFIG.cluster.worker[1]".
std::string element_path(std::string_view path, std::size_t index);

/// Throws kInvalidArgument "<path>: expected <expected>, got <got>; <remedy>".
[[noreturn]] void fail_place(std::string_view path, std::string_view expected, std::string_view got,
                             std::string_view remedy = {});

/// Same as Json::parse(), but errors include the expected form and are truncated to one line.
Json parse_json(std::string_view text, std::string_view source, std::string_view expected);

/// A value and its path. The value must outlive this object. Accessors throw errors in the form of
/// fail_place().
class JsonPlace {
 public:
  JsonPlace(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  const std::string& path() const { return path_; }

  const Json::Object& object(std::string_view expected) const;
  const Json::Array& array(std::string_view expected) const;
  const std::string& text(std::string_view expected) const;
  /// Reads an integer from 0 to `largest`; the integer may be a string ("1").
  int index(int largest, std::string_view expected) const;

  /// Returns a member; nullopt if it does not exist.
  std::optional<JsonPlace> find(std::string_view name) const;
  JsonPlace member(const Json::Member& member) const {
    return {member.second, member_path(path_, member.first)};
  }
  JsonPlace element(std::size_t index) const {
    return {value_->as_array()[index], element_path(path_, index)};
  }

  [[noreturn]] void fail(std::string_view expected, std::string_view remedy = {}) const;

 private:
  const Json* value_;
  std::string path_;
};

/// Parses an integer from 0 to `largest`: digits only, without leading zeros.
std::optional<int> parse_index(std::string_view text, int largest);

}  // namespace tutti::internal
