// Conversion between C++ values and JSON: numbers, strings, containers, options structs, calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/fields.h"
#include "tutti/core/json.h"

namespace tutti {

/// JSON form of values of type T, as two static functions: Json to(const T&), and T from(const
/// Json&), which throws kInvalidArgument with the expected value. Options structs (aggregates) need
/// no specialisation: they become objects of their members, and members missing from the JSON keep
/// their defaults. Specialise it for your own member types.
template <class T>
struct JsonForm;

/// Returns `value` as JSON.
template <class T>
Json json_of(const T& value) {
  return JsonForm<T>::to(value);
}
/// Returns the value from which json_of() created `json`. Throws kInvalidArgument if `json` is not
/// of that form.
template <class T>
T value_of(const Json& json) {
  return JsonForm<T>::from(json);
}

namespace internal {

/// Returns a JSON number, or one of the strings "inf", "-inf" and "nan" for values that JSON
/// numbers cannot express.
Json json_of_double(double value);
double double_of_json(const Json& json);
/// Returns the integer. Throws kInvalidArgument unless it is in [least, most].
std::int64_t whole_number(const Json& json, std::int64_t least, std::int64_t most);
/// Returns the elements of an array. Throws kInvalidArgument unless it has `size` elements.
const Json::Array& array_of_size(const Json& json, std::size_t size);

/// Member of an options struct, with functions that write and read its value. Its type is erased,
/// so that the loops over members are compiled once, not for each struct.
struct JsonMember {
  std::string_view name;
  void* value;
  Json (*write)(const void* value);
  void (*read)(void* value, const Json& json);
};
Json write_members(std::span<const JsonMember> members);
/// Reads `members` from `json`. Throws kInvalidArgument for an invalid value, and for a member of
/// `json` that is not among `members`.
void read_members(std::span<const JsonMember> members, const Json& json);

}  // namespace internal

template <>
struct JsonForm<Json> {
  static Json to(const Json& value) { return value; }
  static Json from(const Json& json) { return json; }
};

template <>
struct JsonForm<bool> {
  static Json to(bool value) { return value; }
  static bool from(const Json& json) { return json.as_bool(); }
};

template <std::integral T>
requires(!std::same_as<T, bool>) struct JsonForm<T> {
  static Json to(T value) { return Json(value); }
  static T from(const Json& json) {
    using Limits = std::numeric_limits<T>;
    constexpr auto kMost = static_cast<std::int64_t>(
        std::min<std::uint64_t>(Limits::max(), std::numeric_limits<std::int64_t>::max()));
    return static_cast<T>(
        internal::whole_number(json, static_cast<std::int64_t>(Limits::min()), kMost));
  }
};

template <std::floating_point T>
struct JsonForm<T> {
  static Json to(T value) { return internal::json_of_double(value); }
  static T from(const Json& json) { return static_cast<T>(internal::double_of_json(json)); }
};

template <class T>
requires std::is_enum_v<T>
struct JsonForm<T> {
  static Json to(T value) { return static_cast<std::int64_t>(value); }
  static T from(const Json& json) { return static_cast<T>(internal::whole_number(json, 0, 255)); }
};

template <>
struct JsonForm<std::string> {
  static Json to(const std::string& value) { return value; }
  static std::string from(const Json& json) { return json.as_string(); }
};

template <class T>
struct JsonForm<std::optional<T>> {
  static Json to(const std::optional<T>& value) { return value ? json_of(*value) : Json(); }
  static std::optional<T> from(const Json& json) {
    return json.is_null() ? std::nullopt : std::optional<T>(value_of<T>(json));
  }
};

template <class T>
struct JsonForm<std::vector<T>> {
  static Json to(const std::vector<T>& values) {
    return Json::array_of(values, [](const T& value) { return json_of(value); });
  }
  static std::vector<T> from(const Json& json) {
    std::vector<T> values;
    for (const Json& value : json.as_array()) values.push_back(value_of<T>(value));
    return values;
  }
};

template <class T, std::size_t n>
struct JsonForm<std::array<T, n>> {
  static Json to(const std::array<T, n>& values) {
    return Json::array_of(values, [](const T& value) { return json_of(value); });
  }
  static std::array<T, n> from(const Json& json) {
    std::array<T, n> values;
    const Json::Array& array = internal::array_of_size(json, n);
    for (std::size_t i = 0; i < n; ++i) values[i] = value_of<T>(array[i]);
    return values;
  }
};

template <class A, class B>
struct JsonForm<std::pair<A, B>> {
  static Json to(const std::pair<A, B>& pair) {
    return Json::Array{json_of(pair.first), json_of(pair.second)};
  }
  static std::pair<A, B> from(const Json& json) {
    const Json::Array& array = internal::array_of_size(json, 2);
    return {value_of<A>(array[0]), value_of<B>(array[1])};
  }
};

/// JSON form of types with member functions to_json() and (static) from_json().
template <class T>
requires requires(const T& value, const Json& json) {
  { value.to_json() } -> std::same_as<Json>;
  { T::from_json(json) } -> std::convertible_to<T>;
}
struct JsonForm<T> {
  static Json to(const T& value) { return value.to_json(); }
  static T from(const Json& json) { return T::from_json(json); }
};

namespace internal {

template <class Field>
Json write_member(const void* value) {
  return json_of(*static_cast<const Field*>(value));
}
template <class Field>
void read_member(void* value, const Json& json) {
  *static_cast<Field*>(value) = value_of<Field>(json);
}

template <class T>
auto json_members(T& options) {
  std::array<JsonMember, num_fields<T>()> members;
  JsonMember* member = members.data();
  for_each_field(options, [&]<class Field>(std::string_view name, Field& field) {
    *member++ = {name, &field, &write_member<Field>, &read_member<Field>};
  });
  return members;
}

}  // namespace internal

/// JSON form of options structs (aggregates): an object of their members.
template <class T>
requires std::is_aggregate_v<T>
struct JsonForm<T> {
  static Json to(const T& options) {  // the const_cast is safe, because members are only read
    return internal::write_members(internal::json_members(const_cast<T&>(options)));
  }
  static T from(const Json& json) {
    T options{};
    internal::read_members(internal::json_members(options), json);
    return options;
  }
};

// JSON form of a value: the call that creates it, such as ["truncated_normal", 0, 0.05].

namespace internal {

/// Returns a call to a function or constructor as JSON: its name, then its arguments.
template <class... Arguments>
Json call_of(std::string name, const Arguments&... arguments) {
  return Json::Array{std::move(name), json_of(arguments)...};
}

/// Function that creates a value from a JSON array written by call_of().
template <class Made>
using CallReader = std::function<Made(const Json::Array& call)>;

/// Throws kInvalidArgument unless the call has `count` arguments.
void require_arguments(const Json::Array& call, std::size_t count);

/// Rethrows the current exception; if it is an Error, adds the argument's number to its message.
[[noreturn]] void throw_in_argument(std::size_t index);

template <class Argument>
Argument argument_of(const Json::Array& call, std::size_t index) {
  try {
    return value_of<Argument>(call[index]);
  } catch (...) {
    throw_in_argument(index);
  }
}

/// Returns a CallReader that reads arguments of these types and passes them to `make`.
template <class... Arguments, class Make>
auto reads_call(Make make) {
  return [make = std::move(make)](const Json::Array& call) {
    require_arguments(call, sizeof...(Arguments));
    return [&]<std::size_t... i>(std::index_sequence<i...>) {
      return make(argument_of<Arguments>(call, i + 1)...);
    }
    (std::index_sequence_for<Arguments...>{});
  };
}
/// Overload for a function, from whose type the argument types are deduced.
template <class Made, class... Arguments>
CallReader<Made> reads_call(Made (*make)(Arguments...)) {
  return reads_call<std::remove_cvref_t<Arguments>...>(
      [make](auto&&... arguments) { return make(std::move(arguments)...); });
}

}  // namespace internal
}  // namespace tutti
