// A step function that is captured once and replayed, like tf.function in a training loop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
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
                "a captured step takes and returns Tensor, Batch, Element, numbers, strings, and "
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

/// Appends the numbers and sizes in `value`, but not its tensors, to the signature `text`.
template <class T>
void describe_plain(const T& value, std::string& text) {
  if constexpr (std::is_enum_v<T>) {
    text += concat(static_cast<long long>(value), ";");
  } else if constexpr (std::is_floating_point_v<T>) {
    text += concat(std::bit_cast<std::uint64_t>(static_cast<double>(value)), ";");
  } else if constexpr (PlainArgument<T>) {
    text += concat(value, ";");
  } else if constexpr (std::same_as<T, Batch>) {
    describe_plain(value.element(), text);
  } else if constexpr (std::same_as<T, Element>) {
    // Losses are divided by the row count on the host, so the row count is a constant of the
    // captured graph.
    text += concat(value.size() == 0 ? 0 : value.global_rows(), " rows;");
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

/// Returns a copy of `value` in which each tensor is replaced by the next tensor of `tensors`, and
/// removes the used tensors from the front of the span.
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

/// Builds a result of type T from the first elements of `tensors`, and removes these elements from
/// the span.
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
                  "a captured step returns Tensor, std::vector<Tensor> (alone or last), "
                  "std::pair and std::tuple of them, or nothing");
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return T{result_of_tensors<std::tuple_element_t<I, T>>(tensors)...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  }
}

}  // namespace tutti::internal

namespace tutti {

struct CaptureOptions {
  /// Number of calls per signature (shapes and types of the arguments) that run the function
  /// uncaptured, so that it can create variables and slots. At least 1.
  int num_warm_up_calls = 1;
  /// Maximum number of captured signatures. Calls with additional signatures run without capture,
  /// which is logged once.
  int max_signatures = 8;
};

namespace internal {

/// Captured graphs of one step function, keyed by signature. One thread per replica calls run().
class CapturedCalls {
 public:
  /// One replica's call to the step function. `body` runs the function with `inputs` in place of
  /// the arguments' tensors and returns the tensors of its result.
  struct Call {
    std::vector<Tensor> inputs;
    std::string plain_arguments;  // arguments other than tensors: part of the signature
    std::function<std::vector<Tensor>(std::span<const Tensor> inputs)> body;
  };

  explicit CapturedCalls(const CaptureOptions& options);
  ~CapturedCalls();
  std::vector<Tensor> run(const Call& call);
  /// Returns the number of captured graphs.
  int num_captured() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace internal

/// Step function for strategy.run() that replays the device work of an earlier call to `fn`.
/// Created by captured(); a cheap handle whose copies share the graphs. On GPUs, the first call
/// with arguments of new shapes runs `fn`. The next call also runs it, and captures the device work
/// of all replicas of this process in one graph. Later calls launch that graph without running `fn`
/// on the host. On CPU devices, and with several workers, `fn` runs each time. It also runs each
/// time on XLA devices, where each run() is compiled as one program.
///
/// Therefore, `fn` must do the same work each time. Tensors that it creates from numbers are
/// constants. Each step uses the current argument tensors, variables, optimizer iterations,
/// schedules and dropout masks. Throws kFailedPrecondition or kUnimplemented, naming the reason, if
/// `fn` reads a value on the host (with item(), or in an update rule without a GPU kernel), or uses
/// random tensors, gradient accumulation or dynamic loss scaling.
///
/// Arguments: Tensor, Batch, Element, plain numbers and strings (each new value gives a new
/// signature), and std::vector, std::pair and std::tuple of these types. Results: Tensor;
/// std::vector, std::pair and std::tuple of tensors; or nothing.
template <class Fn>
class CapturedStep {
 public:
  CapturedStep(Fn fn, const CaptureOptions& options)
      : fn_(std::make_shared<Fn>(std::move(fn))),
        calls_(std::make_shared<internal::CapturedCalls>(options)) {}

  template <class... Args>
  auto operator()(const Args&... args) const {
    using R = std::invoke_result_t<Fn&, const Args&...>;
    internal::CapturedCalls::Call call;
    (internal::collect_tensors(args, call.inputs), ...);
    (internal::describe_plain(args, call.plain_arguments), ...);
    call.body = [&]([[maybe_unused]] std::span<const Tensor> inputs) {
      // Braced initializers are evaluated in order, so each argument gets its own tensors.
      std::tuple<Args...> replaced{internal::with_tensors(args, inputs)...};
      std::vector<Tensor> results;
      if constexpr (std::is_void_v<R>) {
        std::apply(*fn_, replaced);
      } else {
        internal::collect_tensors(std::apply(*fn_, replaced), results);
      }
      return results;
    };
    const std::vector<Tensor> results = calls_->run(call);
    if constexpr (!std::is_void_v<R>) {
      std::span<const Tensor> rest(results);
      return internal::result_of_tensors<R>(rest);
    }
  }

  /// Returns the number of captured signatures.
  int num_captured() const { return calls_->num_captured(); }

 private:
  std::shared_ptr<Fn> fn_;
  std::shared_ptr<internal::CapturedCalls> calls_;
};

/// Returns a captured step: `auto step = captured(train_step); strategy.run(step, batch);`
template <class Fn>
CapturedStep<std::decay_t<Fn>> captured(Fn&& fn, const CaptureOptions& options = {}) {
  return {std::forward<Fn>(fn), options};
}

}  // namespace tutti
