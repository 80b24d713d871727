// Access to the members of an options struct by name, without a list of the members; and names of
// types.
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

// An aggregate has as many members as the largest number of values that can initialize it. Each
// attempt is slow to compile, so a binary search finds that number.

/// Converts to the type of any member. Used in unevaluated expressions only.
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

// A structured binding must list its names in the source, so there is one line per number of
// members.

/// Returns references to the members of `object`, in order.
template <class T>
constexpr auto tie_fields(T& object) {
  constexpr std::size_t kSize = num_fields<std::remove_const_t<T>>();
  static_assert(kSize <= kMostFields, "expected a struct with at most kMostFields members");
#define TUTTI_TIE_FIELDS(size, ...) \
  if constexpr (kSize == size) {    \
    auto& [__VA_ARGS__] = object;   \
    return std::tie(__VA_ARGS__);   \
  } else
  TUTTI_TIE_FIELDS(1, a)
  TUTTI_TIE_FIELDS(2, a, b)
  TUTTI_TIE_FIELDS(3, a, b, c)
  TUTTI_TIE_FIELDS(4, a, b, c, d)
  TUTTI_TIE_FIELDS(5, a, b, c, d, e)
  TUTTI_TIE_FIELDS(6, a, b, c, d, e, f)
  TUTTI_TIE_FIELDS(7, a, b, c, d, e, f, g)
  TUTTI_TIE_FIELDS(8, a, b, c, d, e, f, g, h)
  TUTTI_TIE_FIELDS(9, a, b, c, d, e, f, g, h, i)
  TUTTI_TIE_FIELDS(10, a, b, c, d, e, f, g, h, i, j)
  TUTTI_TIE_FIELDS(11, a, b, c, d, e, f, g, h, i, j, k)
  TUTTI_TIE_FIELDS(12, a, b, c, d, e, f, g, h, i, j, k, l)
  TUTTI_TIE_FIELDS(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
  TUTTI_TIE_FIELDS(14, a, b, c, d, e, f, g, h, i, j, k, l, m, n)
  TUTTI_TIE_FIELDS(15, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o)
  TUTTI_TIE_FIELDS(16, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)
  TUTTI_TIE_FIELDS(17, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q)
  TUTTI_TIE_FIELDS(18, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r)
  TUTTI_TIE_FIELDS(19, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s)
  TUTTI_TIE_FIELDS(20, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t)
  TUTTI_TIE_FIELDS(21, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u)
  TUTTI_TIE_FIELDS(22, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v)
  TUTTI_TIE_FIELDS(23, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w)
  TUTTI_TIE_FIELDS(24, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x)
  return std::tie();
#undef TUTTI_TIE_FIELDS
}

// If a function template is instantiated for a member, the compiler's name for the function
// contains the member's name.

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

/// Pointer as a template argument, wrapped in a class because clang rejects the bare pointer.
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

/// Returns "use_bias" for "... {(& Unmade<DenseOptions>::object...DenseOptions::use_bias)}; ..."
/// (GCC) and for "... {&object.value.use_bias}]" (Clang).
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

/// Calls fn(name, member) for each member of an aggregate, in order, so that options can be written
/// and read without a list of names. Requires: at most kMostFields members, no base class, no
/// array members.
template <class T, class Function>
void for_each_field(T& t, const Function& fn) {
  using Plain = std::remove_const_t<T>;
  const auto fields = tie_fields(t);
  [&]<std::size_t... i>(std::index_sequence<i...>) {
    (fn(kFieldName<Plain, i>, std::get<i>(fields)), ...);
  }
  (std::make_index_sequence<num_fields<Plain>()>{});
}

// Names of types, and names derived from them in Keras's style.

/// Returns the name without namespaces and template arguments: "Conv2D" for tutti::Conv2D.
std::string plain_type_name(const std::type_info& type);
/// Returns "max_pooling2d" for "MaxPooling2D", "batch_normalization" for "BatchNormalization".
std::string snake_case(std::string_view type_name);

}  // namespace tutti::internal
