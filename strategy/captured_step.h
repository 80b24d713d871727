// A step function that is captured once and replayed: what tf.function is to a training loop.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/data/element.h"
#include "tutti/strategy/tensor_structure.h"

namespace tutti {

struct CaptureOptions {
  /// Calls that run the function itself before it is captured, per signature (shapes and types of
  /// the arguments): they build what is made at first use. At least 1.
  int num_warm_up_calls = 1;
  /// Signatures kept; more (datasets of ever new shapes) are run without capture, with one warning.
  int max_signatures = 8;
};

namespace internal {

/// The graphs of one step function, by signature. One thread per replica.
class CapturedCalls {
 public:
  /// One replica's part of a call. `body` runs the function on these inputs in place of the
  /// arguments' tensors and gives the tensors of its result.
  struct Call {
    std::vector<Tensor> inputs;
    std::string plain_arguments;  // those that are no tensors: part of the signature
    std::function<std::vector<Tensor>(std::span<const Tensor> inputs)> body;
  };

  explicit CapturedCalls(const CaptureOptions& options);
  ~CapturedCalls();
  std::vector<Tensor> run(const Call& call);
  /// How many graphs there are.
  int num_captured() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace internal

/// Calls `fn` by replaying what it did. Made by captured(); a cheap handle, whose copies share the
/// graphs. For strategy.run(): on GPUs the first call with arguments of new shapes runs `fn`, the
/// next one runs it while its device work is captured (of all replicas of this process together),
/// and every later one launches that graph: the host does not run `fn` again. On CPU devices `fn`
/// is called each time.
///
/// So `fn` must do the same work each time. Tensors it makes of numbers are constants; tensors of
/// its arguments, variables, optimizers' iterations and schedules and dropout's masks are those of
/// each step. Refused with kFailedPrecondition or kUnimplemented, naming the reason: reading a
/// value on the host (item()), which update rules of your own without a GPU kernel do, random
/// tensors, gradient accumulation, dynamic loss scaling.
///
/// Arguments: Tensor, Batch, Element, std::vector, std::pair and std::tuple of such, and plain
/// numbers and strings (a new value is a new signature). Results: the same without Batch, Element
/// and numbers, or nothing.
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
      // Braces: arguments take their tensors in order.
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

  /// How many signatures were captured.
  int num_captured() const { return calls_->num_captured(); }

 private:
  std::shared_ptr<Fn> fn_;
  std::shared_ptr<internal::CapturedCalls> calls_;
};

/// `auto step = captured(train_step); strategy.run(step, batch);`
template <class Fn>
CapturedStep<std::decay_t<Fn>> captured(Fn&& fn, const CaptureOptions& options = {}) {
  return {std::forward<Fn>(fn), options};
}

}  // namespace tutti
