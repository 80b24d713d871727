// Registry of the steps and per-worker values that every task of the job defines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/core/sync.h"
#include "tutti/strategy/parameter_server/client/closure_context.h"
#include "tutti/strategy/parameter_server/coordinator/nest_conversion.h"

namespace tutti::internal {

/// Argument of a running step: a value that was sent, or the worker's own per-worker value.
template <class P>
class StepParameter {
  using T = std::remove_cvref_t<P>;
  static constexpr bool kIsValue = is_nest_value<T>;
  static_assert(!kIsValue || !std::is_lvalue_reference_v<P> ||
                    std::is_const_v<std::remove_reference_t<P>>,
                "a step parameter that is sent by value must be a T or a const T&");
  using Stored = std::conditional_t<kIsValue, T, std::shared_ptr<T>>;

 public:
  StepParameter(const Nest& argument, const std::string& who, WorkerResources& resources)
      : stored_(make(argument, who, resources)) {}
  P get() {
    if constexpr (!kIsValue) {
      return static_cast<P>(*stored_);
    } else if constexpr (std::is_reference_v<P>) {
      return static_cast<P>(stored_);
    } else {
      return std::move(stored_);
    }
  }

 private:
  static Stored make(const Nest& argument, const std::string& who, WorkerResources& resources) {
    const PerWorkerHandle* handle = argument.handle();
    const bool is_own = handle != nullptr && handle->type == type_name(typeid(T));
    if constexpr (kIsValue) {
      if (is_own) return *std::static_pointer_cast<T>(resources.find(*handle));
      return from_nest<T>(argument, who);
    } else {
      if (!is_own) fail_conversion(who, nest_type_name<T>(), argument);
      return std::static_pointer_cast<T>(resources.find(*handle));
    }
  }
  Stored stored_;
};

struct StepDefinition {
  std::string name = {};
  int num_parameters = 0;
  std::string signature = {};  // "train(Tensor, float32) -> Tensor"
  /// Runs the step; `arguments` must be a list. Throws OriginError with kInput if the arguments do
  /// not match the parameters, and the errors of the step.
  std::function<Nest(const Nest& arguments, WorkerResources& resources)> run = {};
};

/// Definition of a per-worker value. Each worker creates each instance once, when it is first used.
struct ResourceDefinition {
  std::uint64_t id = 0;
  std::string type = {};
  std::string text = {};
  std::function<std::shared_ptr<void>(int worker, std::uint64_t instance)> make = {};
};

/// Runs `body`. Rethrows an OriginError unchanged, and any other error as an input error.
template <class Body>
auto as_input(const Body& body) {
  try {
    return body();
  } catch (const OriginError&) {
    throw;
  } catch (const Error& error) {
    throw OriginError(ErrorOrigin::kInput, error.code(), error.message());
  } catch (const std::exception& error) {
    throw OriginError(ErrorOrigin::kInput, ErrorCode::kInternal, error.what());
  }
}

/// Registry of the steps and per-worker values that the program defines during set-up, in the same
/// way on every task. References to definitions stay valid. Thread-safe.
class StepRegistry {
 public:
  /// Registers a function, or a lambda without auto parameters. Throws kAlreadyExists, naming both
  /// signatures, for a name in use, and kInvalidArgument for a name that is empty or contains '(',
  /// ':' or a line break.
  template <class Fn>
  void define(std::string_view name, Fn fn) {
    add(definition_of(std::string(name), std::function(std::move(fn))));
  }
  /// Returns the step. Throws kNotFound, listing all names, if there is no such step.
  const StepDefinition& find(std::string_view name) const;

  /// Adds a definition and returns its id: 0 for the first call, 1 for the second, ...
  std::uint64_t define_resource(
      std::string type, std::string text,
      std::function<std::shared_ptr<void>(int worker, std::uint64_t instance)> make);
  /// Returns the definition. Throws kNotFound if no definition has this id.
  ResourceDefinition find_resource(std::uint64_t id) const;

  /// Returns a list of the definitions, for comparing tasks: one line per step, ordered by name,
  /// then one line per resource.
  std::string text() const;
  /// Throws kFailedPrecondition, showing the first line that differs, if the lists of two tasks
  /// differ.
  static void require_same(const std::string& own_text, const std::string& own_name,
                           const std::string& other_text, const std::string& other_name);

 private:
  void add(StepDefinition definition);
  template <class Result, class... P>
  static StepDefinition definition_of(const std::string& name, std::function<Result(P...)> fn);

  mutable Mutex mutex_;
  std::map<std::string, StepDefinition, std::less<>> steps_ TUTTI_GUARDED_BY(mutex_);
  std::map<std::uint64_t, ResourceDefinition> resources_ TUTTI_GUARDED_BY(mutex_);
};

template <class Result, class... P>
StepDefinition StepRegistry::definition_of(const std::string& name,
                                           std::function<Result(P...)> fn) {
  const std::vector<std::string> types = {nest_type_name<std::remove_cvref_t<P>>()...};
  StepDefinition step{name,
                      static_cast<int>(sizeof...(P)),
                      concat(name, "(", join(types), ") -> ", nest_type_name<Result>()),
                      {}};
  step.run = [name, fn = std::move(fn)](const Nest& arguments, WorkerResources& resources) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      std::tuple<StepParameter<P>...> parameters = as_input([&] {
        const Nest::List* list = arguments.list();
        if (list == nullptr || list->size() != sizeof...(P)) {
          fail(ErrorCode::kInvalidArgument, "step '", name, "': expected ", sizeof...(P),
               " arguments, got ", arguments.structure());
        }
        return std::tuple<StepParameter<P>...>{
            StepParameter<P>((*list)[I], concat("step '", name, "', argument ", I), resources)...};
      });
      if constexpr (std::is_void_v<Result>) {
        fn(std::get<I>(parameters).get()...);
        return Nest();
      } else {
        return to_nest<std::remove_cvref_t<Result>>(fn(std::get<I>(parameters).get()...));
      }
    }
    (std::index_sequence_for<P...>());
  };
  return step;
}

}  // namespace tutti::internal
