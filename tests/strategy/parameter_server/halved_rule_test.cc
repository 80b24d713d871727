// Updates by two threads: the bits of one, slots at their places, errors of either half.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/parameter_server/server/stored_shard.h"

#include <atomic>

#include "tests/strategy/parameter_server/store_helpers.h"
#include "tutti/core/executor.h"
#include "tutti/core/json.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/sgd.h"
#include "tutti/optimizer/update_rule_spec.h"
#include "tutti/tensor/ops/random_ops.h"

namespace tutti {
namespace {
namespace halved_rule {

using namespace store_tests;
using internal::HalvedRule;

/// Counts what it is asked for; refuses runs that begin where `refused` says.
class Watched final : public UpdateRule {
 public:
  std::string_view name() const override { return "watched"; }
  std::vector<SlotSpec> slots() const override { return {}; }
  void apply(const UpdateArgs& args) const override {
    ++num_runs;
    num_elements += args.count;
    if (args.weights_data == refused) fail(ErrorCode::kInternal, "refused");
  }
  mutable std::atomic<int> num_runs{0};
  mutable std::atomic<std::size_t> num_elements{0};
  const void* refused = nullptr;
};

constexpr std::int64_t kMany = (9 << 20) / 4 + 13;  // float32 elements, not a multiple of a line

TEST(HalvedRule, LongRunsAreSplitAndShortOnesAreNot) {
  const Watched watched;
  const HalvedRule rule(watched);
  std::vector<float> weights(kMany), gradient(kMany);
  rule.apply({DType::kFloat32, 1000, weights.data(), {}, gradient.data(), {}});
  EXPECT_EQ(watched.num_runs, 1);
  EXPECT_EQ(watched.num_elements, 1000u);
  rule.apply({DType::kFloat32, weights.size(), weights.data(), {}, gradient.data(), {}});
  EXPECT_EQ(watched.num_runs, num_hardware_threads() > 1 ? 3 : 2);
  EXPECT_EQ(watched.num_elements, 1000u + weights.size());
}

TEST(HalvedRule, AnErrorOfEitherHalfIsTheErrorOfTheUpdate) {
  std::vector<float> weights(kMany), gradient(kMany);
  const std::size_t half = weights.size() / 2 / 64 * 64;
  for (const std::size_t begin : {std::size_t{0}, half}) {
    if (begin > 0 && num_hardware_threads() < 2) continue;
    Watched watched;
    watched.refused = weights.data() + begin;
    const HalvedRule rule(watched);
    EXPECT_ERROR(
        rule.apply({DType::kFloat32, weights.size(), weights.data(), {}, gradient.data(), {}}),
        kInternal, "refused");
  }
}

/// The same steps on a server and on a local variable.
void expect_bits_of_a_local_variable(const UpdateRule& rule, bool is_sparse) {
  const Shape shape{kMany / 16, 16};
  VariableStore store("ps 0");
  Client client(store, 1);
  Variable expected(random_normal(shape, RandomKey{1, kUserPurpose}));
  std::vector<Operation> creations = {CreateShard{whole("w", shape), expected.value()}};
  std::vector<Variable> slots;
  std::vector<ShardId> slot_ids;
  for (const SlotSpec& slot : rule.slots()) {
    slots.push_back(expected.storage().create_slot(slot.name, slot.initial_value));
    creations.push_back(CreateShard{whole(slot.name, shape), slots.back().value()});
    slot_ids.push_back(whole(slot.name, shape).id());
  }
  client.call(std::move(creations));
  for (std::uint64_t step = 0; step < 2; ++step) {
    UpdateShard update{whole("w", shape).id(), slot_ids, describe_update_rule(rule)};
    update.scalars.learning_rate = 0.1;
    update.scalars.iteration = static_cast<std::int64_t>(step);
    Gradient gradient;
    if (is_sparse) {
      update.rows = rows_of({7, 3, 7});
      update.gradient = random_normal({3, 16}, RandomKey{2, kUserPurpose, step});
      gradient = IndexedSlices{update.gradient, *update.rows, shape};
    } else {
      update.gradient = random_normal(shape, RandomKey{2, kUserPurpose, step});
      gradient = update.gradient;
    }
    expected.storage().update(rule, slots, gradient, update.scalars);
    client.call({update});
  }
  expect_same_bits(client.read(whole("w", shape).id()), expected.value());
  for (std::size_t i = 0; i < slots.size(); ++i) {
    expect_same_bits(client.read(slot_ids[i]), slots[i].value());
  }
}

TEST(HalvedRule, AServersLargeVariablesHaveTheBitsOfLocalOnes) {
  expect_bits_of_a_local_variable(SgdRule(), false);
  expect_bits_of_a_local_variable(SgdRule(), true);
  expect_bits_of_a_local_variable(SgdRule::nesterov(0.9), false);
  expect_bits_of_a_local_variable(AdamRule(), false);
}

}  // namespace halved_rule
}  // namespace
}  // namespace tutti
