// The members of an options struct by name, without a list of them; names of types.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace tutti::internal {

// How many members there are: the largest number of values that initialize an aggregate. Each trial
// converts a value to every member, which is what a compiler takes long for, so the number is found
// by halving.

/// Becomes whatever a member is initialized with. Never made.
struct AnyValue {
  template <class T>
  operator T&() const&;
  template <class T>
  operator T&&() const&&;
};

template <class T, std::size_t... i>
constexpr bool takes_values(std::index_sequence<i...>) {
  return requires { T{(static_cast<void>(i), AnyValue{})...}; };
}

inline constexpr std::size_t kMostFields = 24;

template <class T, std::size_t least = 0, std::size_t most = kMostFields + 1>
constexpr std::size_t num_fields() {
  if constexpr (least == most) {
    return least;
  } else if constexpr (constexpr std::size_t n = (least + most + 1) / 2;
                       takes_values<T>(std::make_index_sequence<n>{})) {
    return num_fields<T, n, most>();
  } else {
    return num_fields<T, least, n - 1>();
  }
}

// The members themselves. A structured binding needs their number in the source.

/// References to the members of `object`, in order.
template <class T>
constexpr auto tie_fields(T& object) {
  constexpr std::size_t kSize = num_fields<std::remove_const_t<T>>();
  static_assert(kSize <= kMostFields, "a struct of more than kMostFields members");
  if constexpr (kSize == 0) {
    return std::tie();
  } else if constexpr (kSize == 1) {
    auto& [a] = object;
    return std::tie(a);
  } else if constexpr (kSize == 2) {
    auto& [a, b] = object;
    return std::tie(a, b);
  } else if constexpr (kSize == 3) {
    auto& [a, b, c] = object;
    return std::tie(a, b, c);
  } else if constexpr (kSize == 4) {
    auto& [a, b, c, d] = object;
    return std::tie(a, b, c, d);
  } else if constexpr (kSize == 5) {
    auto& [a, b, c, d, e] = object;
    return std::tie(a, b, c, d, e);
  } else if constexpr (kSize == 6) {
    auto& [a, b, c, d, e, f] = object;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (kSize == 7) {
    auto& [a, b, c, d, e, f, g] = object;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (kSize == 8) {
    auto& [a, b, c, d, e, f, g, h] = object;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (kSize == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = object;
    return std::tie(a, b, c, d, e, f, g, h, i);
  } else if constexpr (kSize == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (kSize == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k);
  } else if constexpr (kSize == 12) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l);
  } else if constexpr (kSize == 13) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m);
  } else if constexpr (kSize == 14) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n);
  } else if constexpr (kSize == 15) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o);
  } else if constexpr (kSize == 16) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p);
  } else if constexpr (kSize == 17) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q);
  } else if constexpr (kSize == 18) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r);
  } else if constexpr (kSize == 19) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s);
  } else if constexpr (kSize == 20) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t);
  } else if constexpr (kSize == 21) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u);
  } else if constexpr (kSize == 22) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v);
  } else if constexpr (kSize == 23) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w);
  } else if constexpr (kSize == 24) {
    auto& [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x] = object;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x);
  }
}

// Their names, which the compiler writes into the name of a function that is made for a member.

#ifdef __clang__
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wundefined-internal"
#pragma clang diagnostic ignored "-Wundefined-var-template"
#endif
template <class T>
struct Unmade {
  static const Unmade object;
  T value;
};

/// A pointer as a template argument; clang takes it in a class alone.
template <class T>
struct FieldPointer {
  T* pointer;
};

template <class T>
FieldPointer(T*) -> FieldPointer<T>;

template <auto kField>
consteval std::string_view function_of_field() {
  return __PRETTY_FUNCTION__;
}

/// "use_bias" of "... {(& Unmade<DenseOptions>::object...DenseOptions::use_bias)}; ..." (GCC) and
/// of "... {&object.value.use_bias}]" (Clang).
consteval std::string_view name_in_function(std::string_view function) {
  std::size_t end = function.rfind('}');
  while (function[end - 1] == ')') --end;
  const std::size_t begin = function.find_last_of(":.", end - 1) + 1;
  return function.substr(begin, end - begin);
}

template <class T, std::size_t i>
inline constexpr std::string_view kFieldName = name_in_function(
    function_of_field<FieldPointer{&std::get<i>(tie_fields(Unmade<T>::object.value))}>());
#ifdef __clang__
#pragma clang diagnostic pop
#endif

/// Calls fn(name, member) for each member of an aggregate, in order: what writes and reads options
/// without a list of their names. At most kMostFields members, no base class, no array.
template <class T, class Function>
void for_each_field(T& t, const Function& fn) {
  using Plain = std::remove_const_t<T>;
  const auto fields = tie_fields(t);
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (fn(kFieldName<Plain, i>, std::get<i>(fields)), ...);
  }
  (std::make_index_sequence<num_fields<Plain>()>{});
}

// Names of types, and names made of them as Keras does.

/// "Conv2D" for tutti::Conv2D: without namespaces and template arguments.
std::string plain_type_name(const std::type_info& type);
/// "max_pooling2d" for "MaxPooling2D", "batch_normalization" for "BatchNormalization".
std::string snake_case(std::string_view type_name);

}  // namespace tutti::internal
