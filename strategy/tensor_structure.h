// Arguments and results of a step as lists of tensors, and back.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/text.h"
#include "tutti/data/element.h"

namespace tutti::internal {

template <class T>
concept PlainArgument =
    std::is_arithmetic_v<T> || std::is_enum_v<T> || std::same_as<T, std::string>;

template <class T>
inline constexpr bool is_vector = false;
template <class T, class A>
inline constexpr bool is_vector<std::vector<T, A>> = true;
template <class T>
inline constexpr bool is_tuple = false;
template <class... T>
inline constexpr bool is_tuple<std::tuple<T...>> = true;
template <class A, class B>
inline constexpr bool is_tuple<std::pair<A, B>> = true;

template <class T>
inline constexpr bool is_unknown_structure =
    !std::same_as<T, Tensor> && !std::same_as<T, Batch> && !std::same_as<T, Element> &&
    !PlainArgument<T> && !is_vector<T> && !is_tuple<T>;

/// Appends the tensors of `value`, in order.
template <class T>
void collect_tensors(const T& value, std::vector<Tensor>& tensors) {
  static_assert(!is_unknown_structure<T>,
                "a captured step takes and gives Tensor, Batch, Element, numbers, strings, and "
                "std::vector, std::pair and std::tuple of them");
  if constexpr (std::same_as<T, Tensor>) {
    tensors.push_back(value);
  } else if constexpr (std::same_as<T, Element>) {
    tensors.insert(tensors.end(), value.tensors().begin(), value.tensors().end());
  } else if constexpr (std::same_as<T, Batch>) {
    collect_tensors(value.element(), tensors);
  } else if constexpr (is_vector<T>) {
    for (const auto& each : value) collect_tensors(each, tensors);
  } else if constexpr (is_tuple<T>) {
    std::apply([&](const auto&... each) { (collect_tensors(each, tensors), ...); }, value);
  }
}

/// What distinguishes `value` besides its tensors.
template <class T>
void describe_plain(const T& value, std::string& text) {
  if constexpr (std::is_enum_v<T>) {
    text += concat(static_cast<long long>(value), ";");
  } else if constexpr (std::is_floating_point_v<T>) {
    text += concat(std::bit_cast<std::uint64_t>(static_cast<double>(value)), ";");
  } else if constexpr (PlainArgument<T>) {
    text += concat(value, ";");
  } else if constexpr (std::same_as<T, Batch> || std::same_as<T, Element>) {
    const Element& element = [&]() -> const Element& {
      if constexpr (std::same_as<T, Batch>)
        return value.element();
      else
        return value;
    }();
    // Losses divide by it, on the host.
    text += concat(element.size() == 0 ? 0 : element.global_rows(), " rows;");
  } else if constexpr (is_vector<T>) {
    text += concat(value.size(), ":");
    for (const auto& each : value) describe_plain(each, text);
  } else if constexpr (is_tuple<T>) {
    std::apply([&](const auto&... each) { (describe_plain(each, text), ...); }, value);
  }
}

inline Tensor take_front(std::span<const Tensor>& tensors) {
  const Tensor front = tensors.front();
  tensors = tensors.subspan(1);
  return front;
}

/// `value` with the first tensors of `tensors` in place of its own; these are taken off the front.
template <class T>
T with_tensors(const T& value, std::span<const Tensor>& tensors) {
  if constexpr (std::same_as<T, Tensor>) {
    return take_front(tensors);
  } else if constexpr (std::same_as<T, Element>) {
    std::vector<Tensor> own;
    for (std::size_t i = 0; i < value.size(); ++i) own.push_back(take_front(tensors));
    return value.with_tensors(std::move(own));
  } else if constexpr (std::same_as<T, Batch>) {
    return Batch(with_tensors(value.element(), tensors));
  } else if constexpr (is_vector<T>) {
    T result;
    for (const auto& each : value) result.push_back(with_tensors(each, tensors));
    return result;
  } else if constexpr (is_tuple<T>) {
    return std::apply([&](const auto&... each) { return T{with_tensors(each, tensors)...}; },
                      value);
  } else {
    return value;
  }
}

/// A result of type T made of tensors alone; they are taken off the front.
template <class T>
T result_of_tensors(std::span<const Tensor>& tensors) {
  if constexpr (std::same_as<T, Tensor>) {
    return take_front(tensors);
  } else if constexpr (std::same_as<T, std::vector<Tensor>>) {
    const T all(tensors.begin(), tensors.end());
    tensors = {};
    return all;
  } else {
    static_assert(is_tuple<T>,
                  "a captured step gives Tensor, std::vector<Tensor> (alone or last), "
                  "std::pair and std::tuple of them, or nothing");
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return T{result_of_tensors<std::tuple_element_t<I, T>>(tensors)...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  }
}

}  // namespace tutti::internal
