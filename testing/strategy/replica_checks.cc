// Checks of run(): every replica once, in its context, and what replicas say to each other.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "testing/cross_device_ops/expected.h"
#include "testing/strategy/expect.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/collective.h"

namespace tutti::conformance {
namespace {

/// What one call of the step function saw.
struct Seen {
  int id = 0;
  int count = 0;
  Device device, device_of_tensors;
  bool is_in_replica = false, has_this_strategy = false;
};

std::string name_of(Device device) { return concat(device); }

/// All else that is checked takes it for granted, so it is written without results of replicas.
void check_replicas(const StrategySubject&, Strategy& strategy) {
  expect(strategy.num_workers() == 1 && strategy.first_replica() == 0,
         "the suite is for strategies of one process: expected num_workers() 1, first_replica() 0");
  const auto devices = strategy.replica_devices();
  const std::size_t n = devices.size();
  expect(n > 0, "replica_devices(): expected one device per replica, got none");
  Mutex mutex;
  std::vector<Seen> all;
  strategy.run([&] {
    ReplicaContext& context = ReplicaContext::current();
    Seen seen{context.replica_id(),
              context.num_replicas_in_sync(),
              context.device(),
              Tensor::ones({1}).device(),
              in_replica_context() && !in_cross_replica_context(),
              &context.strategy() == &strategy && &get_strategy() == &strategy};
    const MutexLock lock(mutex);
    all.push_back(seen);
  });
  std::ranges::sort(all, {}, &Seen::id);
  Numbers ids, expected_ids;
  for (const Seen& seen : all) ids.push_back(seen.id);
  for (std::size_t r = 0; r < n; ++r) expected_ids.push_back(static_cast<double>(r));
  expect_equal("run(): replica_id() of the calls of the step function", ids, expected_ids);
  expect_equal("num_replicas_in_sync()", strategy.num_replicas_in_sync(), n);
  for (std::size_t r = 0; r < n; ++r) {
    const Seen& seen = all[r];
    const std::string who = concat("replica ", r, ": ");
    expect_equal(who + "num_replicas_in_sync()", seen.count, n);
    expect_equal(who + "device()", name_of(seen.device), name_of(devices[r]));
    expect_equal(who + "device of a tensor that the step function makes",
                 name_of(seen.device_of_tensors), name_of(devices[r]));
    expect(seen.is_in_replica, who + "expected the replica context in the step function");
    expect(seen.has_this_strategy, who + "expected its own strategy in the step function");
  }
  expect(!has_strategy(), "after run(): expected no strategy on the caller's thread");
}

void check_results(const StrategySubject&, Strategy& strategy) {
  const std::size_t n = strategy.replica_devices().size();
  const auto numbers_of = strategy.distribute_values_from_function(
      [](const ValueContext& context) { return 10.0 * context.replica_id_in_sync_group; });
  const auto results = strategy.run(
      [](double own, double of_all) {
        return own + of_all + 1000.0 * ReplicaContext::current().replica_id();
      },
      numbers_of, 5.0);
  Numbers expected;
  for (std::size_t r = 0; r < n; ++r) expected.push_back(1010.0 * static_cast<double>(r) + 5.0);
  expect_equal(
      "run(): what replicas return: 1000 times their number, their own argument and that for all",
      results.values(), expected);
  expect_error("run() with a PerReplica of one value too many", ErrorCode::kInvalidArgument, {},
               [&] { strategy.run([](double) {}, PerReplica<double>(copies(0, n + 1))); });
}

void check_merge_call(const StrategySubject&, Strategy& strategy) {
  const std::size_t n = strategy.replica_devices().size();
  int calls = 0;
  bool is_cross_replica = true;
  const auto results = strategy.run([&] {
    const auto merge = [&](Strategy& merging, const PerReplica<int>& ids) {
      ++calls;
      is_cross_replica = is_cross_replica && in_cross_replica_context() && &merging == &strategy;
      return ids.map([](int id) { return 2.0 * id; });
    };
    ReplicaContext& context = ReplicaContext::current();
    const double own = context.merge_call(merge, context.replica_id());
    const double sum = context.merge_call(
        [](Strategy&, const PerReplica<double>& values) {
          double total = 0;
          for (const double value : values) total += value;
          return total;
        },
        own);
    return own + 100 * sum;
  });
  expect_equal("merge_call(): calls of the function", calls, 1);
  expect(is_cross_replica, "merge_call(): expected the cross-replica context of the strategy");
  Numbers expected;
  const double sum = static_cast<double>(n * (n - 1));
  for (std::size_t r = 0; r < n; ++r) expected.push_back(2.0 * static_cast<double>(r) + 100 * sum);
  expect_equal("merge_call(): results in the replicas", results.values(), expected);
}

/// Numbers whose sum depends on the order of additions.
float value_of(int replica, std::size_t element) {
  return 1.0f / static_cast<float>(3 * replica + 1) + 0.1f * static_cast<float>(element);
}

void check_collectives(const StrategySubject& subject, Strategy& strategy) {
  constexpr std::size_t kCount = 33;
  const auto n = static_cast<int>(strategy.replica_devices().size());
  const auto results = strategy.run([&] {
    ReplicaContext& context = ReplicaContext::current();
    const int r = context.replica_id();
    std::vector<float> values;
    for (std::size_t i = 0; i < kCount; ++i) values.push_back(value_of(r, i));
    return std::vector<Tensor>{
        context.all_reduce(ReduceOp::kSum, Tensor::from<float>({kCount}, values)),
        context.all_reduce(ReduceOp::kMean, Tensor::full({1}, r)),
        context.all_reduce(ReduceOp::kMax, Tensor::full({1}, r)),
        context.all_gather(Tensor::full({r + 1, 1}, r), 0)};
  });
  Numbers gathered;
  for (int r = 0; r < n; ++r) gathered.insert(gathered.end(), static_cast<std::size_t>(r) + 1, r);
  const Determinism grade = subject.is_canonical ? Determinism::kCanonical : Determinism::kNone;
  for (int r = 0; r < n; ++r) {
    const std::string who = concat("replica ", r, ": ");
    const std::vector<Tensor>& got = results[static_cast<std::size_t>(r)];
    const Numbers sums = numbers(got[0]);
    expect_equal(who + "all_reduce(SUM): elements", sums.size(), kCount);
    for (std::size_t i = 0; i < kCount; ++i) {
      std::vector<float> values;
      for (int each = 0; each < n; ++each) values.push_back(value_of(each, i));
      const std::string wrong =
          wrong_combination<float>(ReduceOp::kSum, grade, values, static_cast<float>(sums[i]));
      expect(wrong.empty(), concat(who, "all_reduce(SUM), element ", i, ": ", wrong));
    }
    expect_equal(who + "all_reduce(MEAN) of replica numbers", numbers(got[1]),
                 Numbers{(n - 1) / 2.0});
    expect_equal(who + "all_reduce(MAX) of replica numbers", numbers(got[2]), Numbers{n - 1.0});
    expect_equal(who + "all_gather() of r + 1 rows each", numbers(got[3]), gathered);
  }
}

}  // namespace

std::vector<StrategyCheck> replica_checks() {
  return {{"replicas", check_replicas},
          {"results", check_results},
          {"merge_call", check_merge_call},
          {"collectives", check_collectives}};
}

}  // namespace tutti::conformance
