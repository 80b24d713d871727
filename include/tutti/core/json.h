// JSON values, used in metrics files, checkpoint headers and log lines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tutti {

/// JSON value with value semantics. Objects keep the order in which members were added.
class Json {
 public:
  using Array = std::vector<Json>;
  using Member = std::pair<std::string, Json>;
  using Object = std::vector<Member>;

  Json() : value_(nullptr) {}
  Json(std::nullptr_t) : value_(nullptr) {}
  Json(bool value) : value_(value) {}
  Json(int value) : value_(static_cast<std::int64_t>(value)) {}
  Json(unsigned value) : value_(static_cast<std::int64_t>(value)) {}
  Json(std::int64_t value) : value_(value) {}
  /// Throws kOutOfRange above 2^63 - 1, which as_int() cannot return. Store such a number as a
  /// string.
  Json(std::uint64_t value);
  Json(double value) : value_(value) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(std::string_view value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  static Json object() { return Json(Object{}); }
  static Json array() { return Json(Array{}); }
  /// Returns an array with make(element) for each element of a range; `make` is optional.
  template <class Range, class Make = std::identity>
  static Json array_of(const Range& range, Make make = {}) {
    Array array;
    for (const auto& element : range) array.push_back(make(element));
    return array;
  }

  /// Parses `text`. Throws kInvalidArgument, with the line and column, if it is not JSON or is
  /// nested more than 256 levels deep, and with the path of the object ("TF_CONFIG.cluster") if a
  /// member occurs twice. `source` names the text in messages (a path, a variable's name).
  static Json parse(std::string_view text, std::string_view source = "JSON");

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_number() const;

  /// The as_...() functions return the value. They throw kInvalidArgument, with the expected and
  /// the actual kind, if the value is of another kind.
  bool as_bool() const;
  std::int64_t as_int() const;  // a number without a fractional part, in the range of int64
  double as_double() const;     // any number
  const std::string& as_string() const;
  const Array& as_array() const;
  const Object& as_object() const;

  /// Returns the member with that name, or nullptr. Throws kInvalidArgument if this is not an
  /// object.
  const Json* find(std::string_view name) const;
  /// Returns the member with that name. Throws kInvalidArgument, naming the member, if it is
  /// missing.
  const Json& at(std::string_view name) const;
  /// Adds or replaces a member. Requires: this is an object.
  Json& set(std::string name, Json value);
  /// Adds a member to an object, without checking for duplicate names, or an element to an array
  /// (`name` is then ignored). For the parser, which checks for duplicates itself.
  void append(std::string name, Json value);
  /// Appends to an array. Requires: this is an array.
  void push_back(Json value);

  /// Returns compact text (one line), or text indented by `indent` spaces. NaN and infinities
  /// become null. Reading a double back gives the same bits. Bytes that are not UTF-8 become
  /// U+FFFD.
  std::string dump(int indent = -1) const;

  /// Calls `visitor` with this value's nullptr_t, bool, int64_t, double, string, Array or Object.
  template <class Visitor>
  decltype(auto) visit(Visitor&& visitor) const {
    return std::visit(std::forward<Visitor>(visitor), value_);
  }

  bool operator==(const Json&) const = default;

 private:
  [[noreturn]] void fail_kind(const char* expected) const;

  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Array, Object> value_;
};

}  // namespace tutti
