// C++ values as JSON, and back: numbers, texts, containers, options structs, calls.
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

/// How values of type T are written as JSON and read back, as two static functions: Json to(const
/// T&), and T from(const Json&), which throws kInvalidArgument saying what was expected. Options
/// structs (aggregates) need none: they are objects of their members, of which those that are
/// missing keep their defaults. Specialise it for a type of your own that is a member of options.
template <class T>
struct JsonForm;

/// `value` as JSON.
template <class T>
Json json_of(const T& value) {
  return JsonForm<T>::to(value);
}
/// What json_of() wrote. Throws kInvalidArgument.
template <class T>
T value_of(const Json& json) {
  return JsonForm<T>::from(json);
}

namespace internal {

/// Numbers that JSON lacks are texts: "inf", "-inf", "nan".
Json json_of_double(double value);
double double_of_json(const Json& json);
/// The number, which is between the two. Throws kInvalidArgument.
std::int64_t whole_number(const Json& json, std::int64_t least, std::int64_t most);
/// The elements of an array of `size`. Throws kInvalidArgument for another number of them.
const Json::Array& array_of_size(const Json& json, std::size_t size);

/// A member of an options struct, and how its type is written and read: what is done with all
/// members is compiled once, not for each struct.
struct JsonMember {
  std::string_view name;
  void* value;
  Json (*write)(const void* value);
  void (*read)(void* value, const Json& json);
};
Json write_members(std::span<const JsonMember> members);
/// Throws kInvalidArgument, also for a member of `json` that is not among `members`.
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

/// Types that say it themselves: members to_json() and (static) from_json().
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

/// Options structs.
template <class T>
requires std::is_aggregate_v<T>
struct JsonForm<T> {
  static Json to(const T& options) {  // which are not changed
    return internal::write_members(internal::json_members(const_cast<T&>(options)));
  }
  static T from(const Json& json) {
    T options{};
    internal::read_members(internal::json_members(options), json);
    return options;
  }
};

// Values as the calls that make them: ["truncated_normal", 0, 0.05].

namespace internal {

/// The call of a function or constructor, as JSON: its name, then its arguments.
template <class... Arguments>
Json call_of(std::string name, const Arguments&... arguments) {
  return Json::Array{std::move(name), json_of(arguments)...};
}

/// What makes a value of the call that call_of() wrote.
template <class Made>
using CallReader = std::function<Made(const Json::Array& call)>;

/// Throws kInvalidArgument unless the call has `count` arguments.
void require_arguments(const Json::Array& call, std::size_t count);

/// Throws the error that is being handled, with the number of the argument that it is about.
[[noreturn]] void throw_in_argument(std::size_t index);

template <class Argument>
Argument argument_of(const Json::Array& call, std::size_t index) {
  try {
    return value_of<Argument>(call[index]);
  } catch (...) {
    throw_in_argument(index);
  }
}

/// Reads arguments of these types and passes them to `make`.
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
/// The same for a function, whose type says what it takes.
template <class Made, class... Arguments>
CallReader<Made> reads_call(Made (*make)(Arguments...)) {
  return reads_call<std::remove_cvref_t<Arguments>...>(
      [make](auto&&... arguments) { return make(std::move(arguments)...); });
}

}  // namespace internal
}  // namespace tutti
