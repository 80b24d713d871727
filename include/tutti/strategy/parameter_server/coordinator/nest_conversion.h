// Conversions between nests and C++ values: Tensor, numbers, strings, and std containers of these.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "tutti/strategy/parameter_server/coordinator/nest.h"

namespace tutti {

class RemoteValue;
template <class T>
class PerWorkerValues;

namespace internal {

/// Per-worker values of one worker, which its steps look up.
class WorkerResources {
 public:
  virtual ~WorkerResources() = default;
  /// Returns the value, never nullptr. If creating the value failed, throws that error as an input
  /// error.
  virtual std::shared_ptr<void> find(const PerWorkerHandle& handle) = 0;
};

/// Throws kInvalidArgument "`who`: expected `expected`, got `got.structure()`".
[[noreturn]] void fail_conversion(const std::string& who, std::string_view expected,
                                  const Nest& got);
/// Return the number in `nest`. Throw kInvalidArgument if `nest` is not a scalar tensor;
/// integer_of() also throws for a float and for a number outside `low` .. `high`.
std::int64_t integer_of(const Nest& nest, const std::string& who, std::string_view expected,
                        std::int64_t low, std::int64_t high);
double number_of(const Nest& nest, const std::string& who, std::string_view expected);
Nest nest_of_integer(std::int64_t value);
Nest nest_of_unsigned(std::uint64_t value);
/// Returns the demangled name of a type.
std::string type_name(const std::type_info& type);

template <class T>
inline constexpr bool is_nest_vector = false;
template <class T, class A>
inline constexpr bool is_nest_vector<std::vector<T, A>> = true;
template <class T>
inline constexpr bool is_nest_tuple = false;
template <class... T>
inline constexpr bool is_nest_tuple<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool is_nest_tuple<std::pair<A, B>> = true;
template <class T>
inline constexpr bool is_nest_map = false;
template <class T, class C, class A>
inline constexpr bool is_nest_map<std::map<std::string, T, C, A>> = true;
template <class T>
inline constexpr bool is_per_worker_values = false;
template <class T>
inline constexpr bool is_per_worker_values<PerWorkerValues<T>> = true;

template <class T>
inline constexpr bool is_text =
    std::same_as<T, std::string> || std::same_as<T, std::string_view> ||
    std::same_as<std::decay_t<T>, const char*> || std::same_as<std::decay_t<T>, char*>;

/// True for types that are sent by value. A parameter of any other type is a per-worker value.
template <class T>
inline constexpr bool is_nest_value =
    std::same_as<T, Nest> || std::same_as<T, Tensor> || std::is_arithmetic_v<T> || is_text<T> ||
    is_nest_vector<T> || is_nest_tuple<T> || is_nest_map<T>;

template <class T>
Nest to_nest(const T& value) {
  static_assert(!std::same_as<T, RemoteValue>,
                "expected a value as argument, got a RemoteValue; call fetch()");
  if constexpr (std::same_as<T, Nest>) {
    return value;
  } else if constexpr (std::same_as<T, Tensor>) {
    return Nest(value);
  } else if constexpr (std::same_as<T, bool>) {
    return Nest(Tensor::from<bool>({}, {value}));
  } else if constexpr (std::is_floating_point_v<T>) {
    using Stored = std::conditional_t<std::same_as<T, float>, float, double>;
    return Nest(Tensor::from<Stored>({}, {static_cast<Stored>(value)}));
  } else if constexpr (std::unsigned_integral<T>) {
    return nest_of_unsigned(value);
  } else if constexpr (std::integral<T>) {
    return nest_of_integer(value);
  } else if constexpr (is_text<T>) {
    return Nest(std::string(value));
  } else if constexpr (is_per_worker_values<T>) {
    return Nest(value.handle());
  } else if constexpr (is_nest_vector<T>) {
    Nest::List list;
    for (const auto& each : value) {
      list.push_back(to_nest<typename T::value_type>(each));
    }
    return Nest(std::move(list));
  } else if constexpr (is_nest_tuple<T>) {
    return std::apply([](const auto&... each) { return Nest(Nest::List{to_nest(each)...}); },
                      value);
  } else {
    static_assert(is_nest_map<T>,
                  "a step takes and returns Tensor, numbers, strings, per-worker values, and "
                  "std::vector, std::pair, std::tuple, std::map (with string keys) of them");
    Nest::Map map;
    for (const auto& [name, each] : value) map.emplace_back(name, to_nest(each));
    return Nest(std::move(map));
  }
}

/// Returns the name of a type as used in signatures: "int64", "text", "(Tensor, list of float32)".
template <class T>
std::string nest_type_name() {
  if constexpr (std::is_void_v<T>) {
    return "nothing";
  } else if constexpr (std::same_as<T, Nest>) {
    return "any";
  } else if constexpr (std::same_as<T, Tensor>) {
    return "Tensor";
  } else if constexpr (std::same_as<T, bool>) {
    return "bool";
  } else if constexpr (std::is_floating_point_v<T>) {
    return concat("float", 8 * sizeof(T));
  } else if constexpr (std::integral<T>) {
    return concat(std::unsigned_integral<T> ? "uint" : "int", 8 * sizeof(T));
  } else if constexpr (is_text<T>) {
    return "text";
  } else if constexpr (is_nest_vector<T>) {
    return concat("list of ", nest_type_name<typename T::value_type>());
  } else if constexpr (is_nest_map<T>) {
    return concat("map of ", nest_type_name<typename T::mapped_type>());
  } else if constexpr (is_nest_tuple<T>) {
    return []<std::size_t... I>(std::index_sequence<I...>) {
      std::vector<std::string> names = {nest_type_name<std::tuple_element_t<I, T>>()...};
      return concat("(", join(names), ")");
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    return concat("per-worker ", type_name(typeid(T)));
  }
}

/// Converts a nest to a T. `who` names the value in errors: "step 'train', argument 2". Throws
/// kInvalidArgument naming the expected and the actual type.
template <class T>
T from_nest(const Nest& nest, const std::string& who) {
  if constexpr (std::same_as<T, Nest>) {
    return nest;
  } else if constexpr (std::same_as<T, Tensor>) {
    if (nest.tensor() == nullptr) fail_conversion(who, "a Tensor", nest);
    return *nest.tensor();
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(number_of(nest, who, nest_type_name<T>()));
  } else if constexpr (std::integral<T>) {
    using Limits = std::numeric_limits<T>;
    constexpr bool is_wide = std::unsigned_integral<T> && sizeof(T) == sizeof(std::int64_t);
    return static_cast<T>(integer_of(nest, who, nest_type_name<T>(),
                                     static_cast<std::int64_t>(Limits::min()),
                                     is_wide ? std::numeric_limits<std::int64_t>::max()
                                             : static_cast<std::int64_t>(Limits::max())));
  } else if constexpr (std::same_as<T, std::string>) {
    if (nest.text() == nullptr) fail_conversion(who, "a text", nest);
    return *nest.text();
  } else if constexpr (is_nest_vector<T>) {
    if (nest.list() == nullptr) fail_conversion(who, nest_type_name<T>(), nest);
    T values;
    for (const Nest& each : *nest.list()) {
      values.push_back(
          from_nest<typename T::value_type>(each, concat(who, ", element ", values.size())));
    }
    return values;
  } else if constexpr (is_nest_map<T>) {
    if (nest.map() == nullptr) fail_conversion(who, nest_type_name<T>(), nest);
    T values;
    for (const auto& [name, each] : *nest.map()) {
      values.emplace(
          name, from_nest<typename T::mapped_type>(each, concat(who, ", member '", name, "'")));
    }
    return values;
  } else {
    static_assert(is_nest_tuple<T>, "cannot convert a nest to this type; see to_nest()");
    if (nest.list() == nullptr || nest.list()->size() != std::tuple_size_v<T>) {
      fail_conversion(who, nest_type_name<T>(), nest);
    }
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return T{from_nest<std::tuple_element_t<I, T>>((*nest.list())[I],
                                                     concat(who, ", element ", I))...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  }
}

}  // namespace internal
}  // namespace tutti
