// Optimizers' update rules in StableHLO, with the formulas from cpu/update_rules.h.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "tensor/cpu/update_rules.h"
#include "tensor/xla/emitters.h"

namespace tutti::internal {
namespace {

/// Constants of a rule, broadcast to `shape`. Options are decided on the host, because they are
/// part of the program.
struct HloConstants {
  Hlo operator[](std::int64_t i) const {
    HloText& text = *constants.text;
    return text.broadcast(text.reshape(text.slice(constants, std::array{i}, {1}), {}), shape);
  }
  bool has(unsigned option) const { return (options & option) != 0; }

  const Hlo& constants;
  Shape shape;
  unsigned options = 0;
};

/// Returns the Euclidean norm of x.
Hlo norm_of(const Hlo& x) {
  return sqrt(x.text->reduce("add", x * x, 0.0, (1u << x.shape.rank()) - 1));
}

template <class Rule>
void change(const HloConstants& c, Weight<Hlo>& e) {
  if constexpr (Rule::kUsesNorms) {
    Rule::prepare(c, e);
    const Hlo direction = Rule::direction(c, e);
    const HloConstants scalars{c.constants, {}};
    const Hlo rate = trusted_rate<Rule>(scalars, norm_of(e.w), norm_of(direction));
    Rule::step(c, rate.text->broadcast(rate, c.shape), direction, e);
  } else {
    Rule::apply(c, e);
  }
}

}  // namespace

std::vector<Hlo> emit_update(const DeviceRule& rule, std::span<const Hlo> values,
                             const Hlo& gradient, const Hlo& constants) {
  std::vector<Hlo> results(values.size());
  visit_update_formula(rule.id, [&]<class Rule>() {
    const auto num_slots = static_cast<int>(values.size()) - 1;
    const HloConstants c{constants, gradient.shape,
                         Rule::options(rule.constants.data(), num_slots)};
    Weight<Hlo> e{values.front(), gradient * c[1], {}};
    std::copy(values.begin() + 1, values.end(), e.slots);
    // Decided on the host, so that variables without weight decay have no operations for it.
    const bool decays = rule.constants[DeviceRule::kWeightDecay] != 0.0;
    if (!Rule::kUsesNorms && decays) decay_weight(c, e);
    change<Rule>(c, e);
    results.front() = e.w;
    std::copy_n(e.slots, num_slots, results.begin() + 1);
  });
  return results;
}

}  // namespace tutti::internal
