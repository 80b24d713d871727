// A value in a JSON text together with the path that leads to it: for errors that say where.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tutti/core/json.h"

namespace tutti::internal {

/// The value as one short line: JSON, cut after 60 bytes.
std::string shown(const Json& value);
/// "TF_CONFIG.cluster" and "worker" -> "TF_CONFIG.cluster.worker"; names that are no plain words
/// stand in brackets and quotes.
std::string member_path(std::string_view path, std::string_view name);
/// "TF_CONFIG.cluster.worker[1]".
std::string element_path(std::string_view path, std::size_t index);

/// Throws kInvalidArgument "<path>: expected <expected>, got <got>; try to <remedy>".
[[noreturn]] void fail_place(std::string_view path, std::string_view expected, std::string_view got,
                             std::string_view remedy = {});

/// Json::parse(); what it throws also says the expected form and is cut to one line of readable
/// length.
Json parse_json(std::string_view text, std::string_view source, std::string_view expected);

/// Refers to a value that must live longer. Each reader throws as fail_place().
class JsonPlace {
 public:
  JsonPlace(const Json& value, std::string path) : value_(&value), path_(std::move(path)) {}

  const Json& value() const { return *value_; }
  const std::string& path() const { return path_; }

  /// The value must be an object.
  const Json::Object& object(std::string_view expected) const;
  const Json::Array& array(std::string_view expected) const;
  const std::string& text(std::string_view expected) const;
  /// A whole number, also as text ("1"), from 0 to `largest`.
  int index(int largest, std::string_view expected) const;

  /// A member or element below; a missing member is nothing.
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

/// The whole number from 0 to `largest` that the text is: digits, no leading zeros.
std::optional<int> parse_index(std::string_view text, int largest);

}  // namespace tutti::internal
