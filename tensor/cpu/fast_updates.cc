// Updates of weights in host memory with the formulas in update_rules.h, in loops that the compiler
// vectorizes.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cpu/update_rules.h"
#include "tensor/cpu/vectorized.h"
#include "tutti/tensor/update_rule.h"

namespace tutti::internal {
namespace {

/// A rule's constants, in the type of the weights. Options are part of the type, so that each
/// combination has a loop without branches.
template <class T, unsigned options>
struct HostConstants {
  explicit HostConstants(const DeviceRule& rule) {
    for (std::size_t i = 0; i < DeviceRule::kNumConstants; ++i) {
      values[i] = static_cast<T>(rule.constants[i]);
    }
  }
  T operator[](std::size_t i) const { return values[i]; }
  static constexpr bool has(unsigned option) { return (options & option) != 0; }
  T values[DeviceRule::kNumConstants];
};

/// Kind of loop. kDecay calls decay_weight(); kApply, apply(); kPrepare, prepare() and direction();
/// and kStep, step().
enum class Pass { kDecay, kApply, kPrepare, kStep };

template <class Rule, Pass pass, unsigned options>
constexpr int num_slots_in() {
  if (pass == Pass::kDecay) return 0;
  if constexpr (Rule::kUsesNorms) {
    return Rule::kStepChangesSlots == (pass == Pass::kStep) ? Rule::kSlots : 0;
  }
  return Rule::num_slots(options);
}

/// Runs one pass. kPrepare writes directions to `direction`. kStep reads them from `g`, and the
/// learning rate from `rate`.
template <class Rule, Pass pass, unsigned options, class T>
[[gnu::always_inline]] inline void run_pass(const HostConstants<T, options> c, T rate,
                                            std::size_t count, T* __restrict w,
                                            const T* __restrict g, T* __restrict direction,
                                            T* __restrict s0, T* __restrict s1, T* __restrict s2) {
  constexpr int kSlots = num_slots_in<Rule, pass, options>();
  for (std::size_t i = 0; i < count; ++i) {
    Weight<T> e{};
    e.w = w[i];
    if constexpr (pass != Pass::kDecay && Rule::kReadsGradient) e.g = g[i];
    if constexpr (pass == Pass::kApply || pass == Pass::kPrepare) e.g *= c[1];
    if constexpr (kSlots > 0) e.slots[0] = s0[i];
    if constexpr (kSlots > 1) e.slots[1] = s1[i];
    if constexpr (kSlots > 2) e.slots[2] = s2[i];
    if constexpr (pass == Pass::kDecay) {
      decay_weight(c, e);
    } else if constexpr (pass == Pass::kApply) {
      Rule::apply(c, e);
    } else if constexpr (pass == Pass::kPrepare) {
      Rule::prepare(c, e);
      direction[i] = Rule::direction(c, e);
    } else {
      Rule::step(c, rate, e.g, e);
    }
    if constexpr (pass != Pass::kPrepare) w[i] = e.w;
    if constexpr (kSlots > 0) s0[i] = e.slots[0];
    if constexpr (kSlots > 1) s1[i] = e.slots[1];
    if constexpr (kSlots > 2) s2[i] = e.slots[2];
  }
}

template <class Rule, Pass pass, unsigned options, class T>
void run_vectorized(const DeviceRule& rule, const UpdateArgs& args, T rate, T* direction) {
  const auto slot = [&](std::size_t i) {
    return i < args.slots_data.size() ? args.slot<T>(i).data() : nullptr;
  };
  const HostConstants<T, options> constants(rule);
  T* const w = args.weights<T>().data();
  const T* const g = args.gradient<T>().data();
  T *const s0 = slot(0), *const s1 = slot(1), *const s2 = slot(2);
  const std::size_t count = args.count;
  vectorized([=]() __attribute__((always_inline)) {
    run_pass<Rule, pass, options>(constants, rate, count, w, g, direction, s0, s1, s2);
  });
}

/// Runs the loop that was compiled for the rule's options. Tries `candidate` first, then larger
/// values.
template <class Rule, Pass pass, unsigned candidate = 0, class T>
void run_with_options(const DeviceRule& rule, const UpdateArgs& args, T rate, T* direction) {
  const auto num_slots = static_cast<int>(args.slots_data.size());
  if (Rule::options(rule.constants.data(), num_slots) == candidate) {
    run_vectorized<Rule, pass, candidate>(rule, args, rate, direction);
  } else if constexpr (candidate + 1 < (1u << Rule::kNumOptions)) {
    run_with_options<Rule, pass, candidate + 1>(rule, args, rate, direction);
  }
}

}  // namespace

void update_on_host(std::string_view who, const DeviceRule& rule, const UpdateArgs& args,
                    void* direction) {
  visit_arithmetic_floating(args.dtype, who, [&]<class T>() {
    visit_update_formula(rule.id, [&]<class Rule>() {
      T* const directions = static_cast<T*>(direction);
      if constexpr (!Rule::kUsesNorms) {
        if (rule.constants[DeviceRule::kWeightDecay] != 0.0) {
          run_vectorized<WeightDecayUpdate, Pass::kDecay, 0>(rule, args, T{0}, directions);
        }
        run_with_options<Rule, Pass::kApply>(rule, args, T{0}, directions);
      } else if (direction != nullptr) {
        run_with_options<Rule, Pass::kPrepare>(rule, args, T{0}, directions);
      } else {
        const double rate = trusted_rate<Rule>(rule.constants, args.scalars.weight_norm,
                                               args.scalars.direction_norm);
        run_with_options<Rule, Pass::kStep>(rule, args, static_cast<T>(rate), directions);
      }
    });
  });
}

}  // namespace tutti::internal
