// Tests the summation of gradients over replicas, in buckets.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/reduction/bucket_plan.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <set>

#include "tests/strategy/strategy_helpers.h"
#include "tests/strategy/worker_threads.h"
#include "tests/support/exchange_sums.h"
#include "tests/support/warnings.h"
#include "tutti/core/random.h"
#include "tutti/cross_device_ops/communicator.h"
#include "tutti/cross_device_ops/registry.h"
#include "tutti/optimizer/gradient_reducer.h"
#include "tutti/strategy/multi_worker_mirrored_strategy.h"

namespace tutti::strategy_tests::bucket_reducer_test {
/// Returns variables of odd sizes, some larger than a slice.
std::vector<Variable> make_variables(Strategy& strategy, const std::string& prefix = "v") {
  const auto scope = strategy.scope();
  std::vector<Variable> variables;
  for (const std::int64_t size : {5, 20'011, 1, 0, 8'192, 133'333}) {
    variables.emplace_back(Tensor::zeros({size}),
                           VariableOptions{.name = concat(prefix, variables.size())});
  }
  variables.emplace_back(Tensor::zeros({3, 7}, DType::kFloat64), VariableOptions{.name = "d"});
  return variables;
}

constexpr std::uint64_t kBytesOfVariables = 4 * (5 + 20'011 + 1 + 8'192 + 133'333) + 8 * 21;

/// Returns replica r's gradient for variable i; it does not depend on the strategy.
Tensor gradient_of(const Variable& variable, std::size_t i, int r, Device device) {
  return random_uniform(variable.shape(),
                        RandomKey{1, kUserPurpose, i, static_cast<std::uint64_t>(r), 0}, -1.0, 1.0,
                        variable.dtype(), device);
}

std::vector<Gradient> reduce_in_replica(std::span<const Variable> variables) {
  const ReplicaContext& context = ReplicaContext::current();
  return reduced_gradients(variables, [&](std::size_t i) {
    return gradient_of(variables[i], i, context.replica_id(), context.device());
  });
}

/// Returns the sum along the canonical tree, computed element by element.
template <class T>
std::vector<T> tree_sum(const std::vector<std::vector<T>>& replicas) {
  std::vector<std::vector<T>> level = replicas;
  while (level.size() > 1) {
    std::vector<std::vector<T>> next;
    for (std::size_t i = 0; i < level.size(); i += 2) {
      next.push_back(level[i]);
      for (std::size_t k = 0; i + 1 < level.size() && k < next.back().size(); ++k) {
        next.back()[k] += level[i + 1][k];
      }
    }
    level = std::move(next);
  }
  return level.front();
}

template <class T>
std::vector<T> expected_sum(const Variable& variable, std::size_t i, int num_replicas) {
  std::vector<std::vector<T>> values;
  for (int r = 0; r < num_replicas; ++r) {
    const Tensor gradient = gradient_of(variable, i, r, Device{});
    const auto span = gradient.host_span<T>();
    values.emplace_back(span.begin(), span.end());
  }
  return tree_sum(values);
}

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

class ReducerLayouts : public ::testing::TestWithParam<std::tuple<int, int>> {};
INSTANTIATE_TEST_SUITE_P(, ReducerLayouts,
                         ::testing::Values(std::tuple(1, 1), std::tuple(2, 2), std::tuple(3, 3),
                                           std::tuple(1, 3), std::tuple(2, 5), std::tuple(8, 8)),
                         [](const auto& of) {
                           return std::to_string(std::get<0>(of.param)) + "_devices_" +
                                  std::to_string(std::get<1>(of.param)) + "_replicas";
                         });

TEST_P(ReducerLayouts, CanonicalSumMatchesTreeSumBitForBit) {
  const auto [devices, replicas] = GetParam();
  std::vector<std::vector<std::byte>> expected;
  {
    auto strategy = mirrored(1);
    const std::vector<Variable> variables = make_variables(*strategy);
    for (std::size_t i = 0; i < variables.size(); ++i) {
      expected.push_back(variables[i].dtype() == DType::kFloat64
                             ? bytes_of(expected_sum<double>(variables[i], i, replicas))
                             : bytes_of(expected_sum<float>(variables[i], i, replicas)));
    }
  }
  for (const std::int64_t bytes_per_pack :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{100'000}}) {
    LocalStrategyOptions options = on_cpus(devices, replicas);
    options.cross_device_ops.options.bytes_per_pack = bytes_per_pack;
    MirroredStrategy strategy(options);
    const std::vector<Variable> variables = make_variables(strategy);
    for (int step = 0; step < 2; ++step) {
      const auto sums = strategy.run([&] { return reduce_in_replica(variables); });
      for (const std::vector<Gradient>& of_replica : sums) {
        ASSERT_EQ(of_replica.size(), variables.size());
        for (std::size_t i = 0; i < variables.size(); ++i) {
          const Tensor& sum = of_replica[i].dense();
          EXPECT_EQ(sum.shape(), variables[i].shape());
          EXPECT_TRUE(std::ranges::equal(sum.bytes(), expected[i])) << variables[i].name();
        }
      }
    }
  }
}

/// Operation that adds along the canonical tree and counts its calls.
class CountedSums final : public CrossDeviceOps {
 public:
  CountedSums(bool sliceable, std::atomic<int>& calls) : sliceable_(sliceable), calls_(calls) {}
  std::string_view name() const override { return sliceable_ ? "counted_slices" : "counted_sums"; }
  bool supports(ReduceOp, DType, DeviceType) const override { return true; }
  Determinism determinism() const override { return Determinism::kCanonical; }
  bool sliceable() const override { return sliceable_; }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override {
    ++calls_;
    std::vector<const std::byte*> inputs;
    for (const ReplicaBuffer& buffer : buffers) inputs.push_back(buffer.data);
    const ReplicaBuffer& first = buffers.front();
    reduce_along_tree(op, first.dtype, inputs, first.data, first.count);
    for (const ReplicaBuffer& buffer : buffers.subspan(1)) {
      std::copy_n(first.data, first.num_bytes(), buffer.data);
    }
  }

 private:
  const bool sliceable_;
  std::atomic<int>& calls_;
};

/// Runs one step with 3 replicas. Returns the bytes of each replica's gradient sums, in replica
/// order.
std::vector<std::byte> sums_by(const std::string& name) {
  LocalStrategyOptions options = on_cpus(3);
  options.cross_device_ops = make_cross_device_ops(name);
  MirroredStrategy strategy(options);
  const std::vector<Variable> variables = make_variables(strategy);
  std::vector<std::byte> bytes;
  for (const auto& of_replica : strategy.run([&] { return reduce_in_replica(variables); })) {
    for (const Gradient& sum : of_replica) {
      const auto each = sum.dense().bytes();
      bytes.insert(bytes.end(), each.begin(), each.end());
    }
  }
  return bytes;
}

/// Registers "counted_slices" and "counted_sums"; returns the counter of their calls.
std::atomic<int>& calls_of_counted_sums() {
  static std::atomic<int> calls{0};
  static const bool once = [] {
    for (const bool sliceable : {true, false}) {
      register_cross_device_ops(sliceable ? "counted_slices" : "counted_sums",
                                [sliceable](const Group&, const CommunicationOptions&) {
                                  return std::make_unique<CountedSums>(sliceable, calls);
                                });
    }
    return true;
  }();
  EXPECT_TRUE(once);
  return calls;
}

TEST(BucketReducer, CallsConfiguredOperationEvenIfItsSumsAreCanonical) {
  std::atomic<int>& calls = calls_of_counted_sums();
  const std::vector<std::byte> expected = sums_by("canonical");
  for (const char* const name : {"counted_slices", "counted_sums"}) {
    calls = 0;
    EXPECT_EQ(sums_by(name), expected) << name;
    EXPECT_GT(calls, 0) << name;
  }
}

/// Returns the number of bytes that the strategy's operation reduces during `step`.
std::uint64_t bytes_reduced_in(Strategy& strategy, const std::function<void()>& step) {
  const std::uint64_t before = strategy.cross_device_ops().bytes_reduced();
  step();
  return strategy.cross_device_ops().bytes_reduced() - before;
}

std::uint64_t bytes_of_step(Strategy& strategy, std::span<const Variable> variables) {
  return bytes_reduced_in(strategy,
                          [&] { strategy.run([&] { (void)reduce_in_replica(variables); }); });
}

/// Returns the elements of each gradient sum: all sums of replica 0, then those of replica 1, ...
std::vector<std::vector<double>> results_of_step(Strategy& strategy,
                                                 const std::vector<Variable>& variables) {
  std::vector<std::vector<double>> results;
  for (const auto& of_replica : strategy.run([&] { return reduce_in_replica(variables); })) {
    for (const Gradient& sum : of_replica) results.push_back(numbers(sum.dense()));
  }
  return results;
}

TEST(BucketReducer, EveryStrategyReducesAllBytesWithConfiguredOperation) {
  calls_of_counted_sums();
  std::vector<std::vector<std::vector<double>>> sums_of_default;
  for (const char* const operation : {"canonical", "counted_slices", "counted_sums"}) {
    LocalStrategyOptions local = on_cpus(3);
    local.cross_device_ops = make_cross_device_ops(operation);
    ParameterServerOptions servers;
    servers.local = local;
    servers.num_servers = 2;
    MultiWorkerMirroredStrategy alone(std::move(in_process_communicators(1).front()),
                                      {.local = local});
    MirroredStrategy of_copies(local);
    CentralStorageStrategy of_one(CentralStorageOptions{local, std::nullopt});
    FullyShardedStrategy of_shards(
        FullyShardedOptions{.local = local, .stage = 3, .min_shard_bytes = 0});
    ParameterServerStrategy of_servers(std::move(servers));
    std::vector<std::vector<std::vector<double>>> sums;
    for (Strategy* const strategy :
         std::initializer_list<Strategy*>{&alone, &of_copies, &of_one, &of_shards, &of_servers}) {
      SCOPED_TRACE(concat(operation, ", strategy ", sums.size()));
      EXPECT_EQ(strategy->reduction_name(), operation);
      const std::vector<Variable> variables = make_variables(*strategy);
      const std::uint64_t bytes = bytes_reduced_in(
          *strategy, [&] { sums.push_back(results_of_step(*strategy, variables)); });
      EXPECT_GE(bytes, 3 * kBytesOfVariables);
      // In a flat copy of a bucket, each variable starts on a cache-line boundary.
      const bool is_flat = operation != std::string_view("canonical");
      EXPECT_LE(bytes, 3 * (kBytesOfVariables + (is_flat ? 64 * variables.size() : 0)));
    }
    if (sums_of_default.empty()) sums_of_default = sums;
    EXPECT_EQ(sums, sums_of_default) << operation;
  }
}

TEST(BucketReducer, WorkerPartialSumsUseConfiguredOperation) {
  const auto bytes = results_of_workers({on_cpus(2), on_cpus(1)}, [](Strategy& strategy) {
    const std::vector<Variable> variables = make_variables(strategy);
    return bytes_of_step(strategy, variables);
  });
  EXPECT_EQ(bytes, (std::vector<std::uint64_t>{2 * kBytesOfVariables, kBytesOfVariables}));
}

TEST(BucketReducer, WorkersUseRegisteredOperationWithItsOptions) {
  static std::atomic<int> made{0};
  static testing::ExchangeSums::Seen seen;
  register_cross_device_ops("exchange_sums",
                            [](const Group& group, const CommunicationOptions&, const Json& own) {
                              EXPECT_EQ(own.at("k").as_int(), 3);
                              ++made;
                              return std::make_unique<testing::ExchangeSums>(group, seen);
                            },
                            {"k"});
  const auto sums_of_workers = [](std::size_t workers, int replicas, const std::string& name,
                                  const std::string& plugin_options) {
    LocalStrategyOptions local = on_cpus(replicas);
    local.cross_device_ops = make_cross_device_ops(name, {}, plugin_options);
    return results_of_workers(
        std::vector(workers, local),
        [&](MultiWorkerMirroredStrategy& strategy) {
          EXPECT_EQ(strategy.reduction_name(), name);
          std::vector<std::vector<double>> sums;
          for (int model = 0; model < 2; ++model) {  // both models use the same variable names
            const std::vector<Variable> variables = make_variables(strategy);
            const auto of_replicas = strategy.run([&] { return reduce_in_replica(variables); });
            for (const Gradient& sum : of_replicas[0]) sums.push_back(numbers(sum.dense()));
          }
          return sums;
        },
        Between::kMemory, {.algorithm = name, .plugin_options = plugin_options});
  };
  for (const std::size_t workers : {2, 4}) {
    for (const int replicas : {1, 2}) {
      SCOPED_TRACE(concat(workers, " workers of ", replicas, " replicas"));
      made = 0;
      seen.ids.clear();
      seen.num_bytes = 0;
      EXPECT_EQ(sums_of_workers(workers, replicas, "exchange_sums", "k=3"),
                sums_of_workers(workers, replicas, "canonical", ""));
      EXPECT_GE(made, static_cast<int>(workers));
      EXPECT_GE(seen.names.size(), 2u);
      EXPECT_EQ(seen.ids.size(), 2 * workers * seen.names.size());  // factor 2: two models
      // Each worker sends the gradients of two models once, and counters along with each bucket.
      const std::uint64_t gradients = 2 * workers * kBytesOfVariables;
      EXPECT_GE(seen.num_bytes, gradients);
      EXPECT_LT(seen.num_bytes, gradients + 2 * workers * 2'000);
    }
  }
}

TEST(BucketReducer, ReduceAndBatchReduceUseConfiguredOperation) {
  auto strategy = mirrored(3);
  const auto values = strategy->run([] { return vec({1, 2, 3, 4}); });
  const auto reduce = [&] {
    EXPECT_EQ(numbers(strategy->reduce(ReduceOp::kSum, values)),
              (std::vector<double>{3, 6, 9, 12}));
  };
  EXPECT_EQ(bytes_reduced_in(*strategy, reduce), 3 * 16);
  const auto reduce_batch = [&] {
    const std::pair<PerReplica<Tensor>, std::vector<Device>> task(values, {Device{}});
    (void)strategy->batch_reduce_to(ReduceOp::kSum, {&task, 1});
  };
  EXPECT_EQ(bytes_reduced_in(*strategy, reduce_batch), 3 * 16);
}

TEST(BucketReducer, AggregatedVariablesUseConfiguredOperation) {
  auto strategy = mirrored(3);
  Variable written, read;
  {
    const auto scope = strategy->scope();
    written = Variable(vec({0, 0, 0, 0}), {.aggregation = VariableAggregation::kSum});
    read = on_read(vec({0, 0, 0, 0}), VariableAggregation::kMean);
  }
  const auto expect_bytes = [&](std::uint64_t bytes, const std::function<void()>& step) {
    EXPECT_EQ(bytes_reduced_in(*strategy, step), bytes);
  };
  const auto expect_read = [&](const std::vector<double>& values) {
    EXPECT_EQ(numbers(read.value()), values);
  };
  const auto own = [](const std::vector<float>& values, float factor) {
    return vec(values) * factor;
  };
  expect_bytes(3 * 16, [&] {
    strategy->run([&] { written.assign(own({1, 2, 3, 4}, 1.0f + replica_number())); });
  });
  EXPECT_EQ(numbers(written.value()), (std::vector<double>{6, 12, 18, 24}));
  expect_bytes(0, [&] {
    strategy->run([&] { read.assign(own({3, 6, 9, 12}, replica_number())); });
  });
  expect_bytes(3 * 16, [&] { expect_read({3, 6, 9, 12}); });
  // The means, weighted by the update counts 1, 2 and 3, are computed from float64 sums.
  strategy->run([&] {
    for (int update = 0; update < replica_number(); ++update) read.assign_add(vec({0, 0, 0, 0}));
  });
  expect_bytes(3 * 32, [&] { expect_read({4, 8, 12, 16}); });
  strategy.reset();
  expect_read({4, 8, 12, 16});
}

TEST(BucketReducer, VariableAggregationAcrossWorkersUsesConfiguredOperation) {
  const auto bytes = results_of_workers({on_cpus(2), on_cpus(1)}, [](Strategy& strategy) {
    const auto scope = strategy.scope();
    Variable read = on_read(vec({0, 0, 0, 0}), VariableAggregation::kSum);
    strategy.run([&] { read.assign(vec({1, 2, 3, 4}) * (1.0f + replica_number())); });
    return bytes_reduced_in(strategy, [&] {
      EXPECT_EQ(numbers(read.value()), (std::vector<double>{6, 12, 18, 24}));
    });
  });
  EXPECT_EQ(bytes, (std::vector<std::uint64_t>{3 * 16, 3 * 16}));
}

TEST(BucketReducer, CallsPluginEvenIfCanonicalAndSliceable) {
  const auto name = load_cross_device_ops_plugin(TUTTI_TEST_PLUGINS "/canonical.so");
  EXPECT_ERROR(sums_by(name), kDeadlineExceeded, "peer 3 is silent");
}

TEST(BucketReducer, SingleWorkerCallsOperationNamedByReductionName) {
  static std::atomic<int> calls{0};
  register_cross_device_ops("counted_alone", [](const Group&, const CommunicationOptions&) {
    return std::make_unique<CountedSums>(false, calls);
  });
  MultiWorkerOptions options{.local = on_cpus(2)};
  options.local.cross_device_ops = make_cross_device_ops("counted_alone");
  MultiWorkerMirroredStrategy strategy(std::move(in_process_communicators(1).front()), options);
  EXPECT_EQ(strategy.reduction_name(), "counted_sums");  // the name that the operation reports
  const std::vector<Variable> variables = make_variables(strategy);
  strategy.run([&] { (void)reduce_in_replica(variables); });
  EXPECT_GT(calls, 0);
}

TEST(BucketReducer, BucketIdAndNameAreStableAcrossSteps) {
  using Seen = std::map<std::uint64_t, std::set<std::string>>;
  static Seen seen;
  class Noting final : public CrossDeviceOps {
   public:
    std::string_view name() const override { return "noting"; }
    bool supports(ReduceOp, DType, DeviceType) const override { return true; }

   protected:
    void all_reduce_buffers(ReduceOp, std::span<const ReplicaBuffer> buffers) override {
      for (const ReplicaBuffer& buffer : buffers) {
        seen[buffer.id].insert(concat(buffer.name, " ", buffer.dtype, " ", buffer.count));
      }
    }
  };
  register_cross_device_ops("noting", [](const Group&, const CommunicationOptions&) {
    return std::make_unique<Noting>();
  });
  LocalStrategyOptions options = on_cpus(2);
  options.cross_device_ops = make_cross_device_ops("noting", {.bytes_per_pack = 100'000});
  MirroredStrategy strategy(options);
  const std::vector<Variable> variables = make_variables(strategy);
  strategy.run([&] { (void)reduce_in_replica(variables); });
  const Seen first = seen;
  EXPECT_GE(first.size(), 3u);
  for (const auto& [id, buffers] : first) {
    EXPECT_NE(id, 0u);
    ASSERT_EQ(buffers.size(), 1u) << join(buffers);
    EXPECT_EQ(buffers.begin()->rfind("gradients ", 0), 0u) << *buffers.begin();
  }
  strategy.run([&] { (void)reduce_in_replica(variables); });
  EXPECT_EQ(seen, first);
  // A second set of variables has its own buckets, despite equal names and sizes.
  const std::vector<Variable> others = make_variables(strategy);
  strategy.run([&] { (void)reduce_in_replica(others); });
  EXPECT_EQ(seen.size(), 2 * first.size());
  // A call that is not known to repeat has neither a bucket id nor a name.
  build_cross_device_ops(options.cross_device_ops, {2, 0, {Device{}, Device{}}})
      ->all_reduce(ReduceOp::kSum, PerReplica<Tensor>({Tensor(1.0f), Tensor(2.0f)}));
  EXPECT_EQ(seen[0], (std::set<std::string>{" float32 1"}));
}

TEST(BucketReducer, ResultOfEarlierStepIsNotOverwritten) {
  auto strategy = mirrored(2);
  const std::vector<Variable> variables = make_variables(*strategy);
  const auto kept = strategy->run([&] { return reduce_in_replica(variables); });
  const std::vector<double> before = numbers(kept[0][1].dense());
  strategy->run([&] {
    reduced_gradients(variables, [&](std::size_t i) {
      return filled(variables[i].shape(), 1.0, variables[i].dtype());
    });
  });
  EXPECT_EQ(numbers(kept[0][1].dense()), before);
}

TEST(BucketReducer, GradientMissingOnSomeReplicasCountsAsZero) {
  auto strategy = mirrored(3);
  // Makes names unique per repetition, because each warning is logged once per process.
  static int repetition = 0;
  const std::string prefix = concat("missing_", repetition++, "_");
  const std::vector<Variable> variables = make_variables(*strategy, prefix);
  // Variable 0 has no gradient on any replica; variable 2 has a gradient only on replica 1.
  const auto reduce = [&] {
    GradientReducer& reducer = *GradientReducer::current();
    reducer.begin(variables);
    reducer.ready(0, Gradient());
    if (ReplicaContext::current().replica_id() == 1) reducer.ready(2, vec({4}));
    std::vector<Gradient> result = reducer.finish();
    reducer.updates_done();
    EXPECT_TRUE(result[0].is_none());
    EXPECT_TRUE(result[1].is_none());
    EXPECT_EQ(numbers(result[2].dense()), std::vector<double>{4});
  };
  EXPECT_THAT(thrown::warnings_of([&] { strategy->run(reduce); }),
              ::testing::ElementsAre(::testing::HasSubstr(
                  concat("Variable '", prefix, "2' has no gradient on replicas 0, 2"))));
}

TEST(BucketReducer, SparseSumMatchesDenseSum) {
  auto strategy = mirrored(3);
  const auto scope = strategy->scope();
  const std::vector<Variable> variables = {Variable(Tensor::zeros({6, 2}), {.name = "table"})};
  const auto run = [&](bool one_is_dense) {
    return strategy->run([&, one_is_dense] {
      const int r = ReplicaContext::current().replica_id();
      const IndexedSlices slices{Tensor::from<float>({3, 2}, {0.1f, 1, 0.2f, 2, 0.7f, 3}, here()),
                                 Tensor::from<std::int64_t>({3}, {r, 5, 5}, here()), Shape{6, 2}};
      return reduced_gradients(variables, [&](std::size_t) {
        return r == 2 && one_is_dense ? Gradient(slices.to_dense()) : Gradient(slices);
      });
    });
  };
  const auto sparse = run(false);
  const auto mixed = run(true);
  for (std::size_t r = 0; r < 3; ++r) {
    ASSERT_TRUE(sparse[r][0].is_slices());
    EXPECT_EQ(sparse[r][0].slices().indices.num_elements(), 4);
    ASSERT_TRUE(mixed[r][0].is_dense());
    EXPECT_EQ(numbers(sparse[r][0].to_dense()), numbers(mixed[r][0].dense()));
  }
}

TEST(BucketReducer, VariableMismatchErrorNamesReplicas) {
  auto strategy = mirrored(2);
  const std::vector<Variable> variables = make_variables(*strategy);
  const auto reversed = std::vector<Variable>(variables.rbegin(), variables.rend());
  EXPECT_INVALID(strategy->run([&] {
    reduce_in_replica(ReplicaContext::current().replica_id() == 0 ? variables : reversed);
  }),
                 "position 0 of the list is Variable");
  EXPECT_INVALID(strategy->run([&] {
    std::vector<Variable> some = variables;
    if (ReplicaContext::current().replica_id() == 1) some.pop_back();
    reduce_in_replica(some);
  }),
                 "variables and replica");
}

TEST(BucketReducer, ShapeErrorNamesVariable) {
  auto strategy = mirrored(2);
  const std::vector<Variable> variables = make_variables(*strategy);
  EXPECT_INVALID(strategy->run([&] {
    GradientReducer::current()->begin(variables);
    GradientReducer::current()->ready(0, vec({1, 2}));
  }),
                 "the gradient of Variable 'v0'");
  EXPECT_ERROR(strategy->run([] { GradientReducer::current()->finish(); }), kFailedPrecondition,
               "begin() first");
}

TEST(BucketPlan, BucketsAreInReverseOrderWithOneDTypeEach) {
  auto strategy = mirrored(1);
  const auto scope = strategy->scope();
  std::vector<Variable> variables;
  for (int i = 0; i < 6; ++i) variables.emplace_back(Tensor::zeros({150'000}));
  variables.emplace_back(Tensor::zeros({10}, DType::kFloat64));
  const internal::BucketPlan plan = internal::BucketPlan::make(variables, 0);
  ASSERT_EQ(plan.buckets.size(), 3U);
  EXPECT_EQ(plan.buckets[0].dtype, DType::kFloat64);
  EXPECT_EQ(plan.buckets[1].items.front().variable, 5U);
  std::size_t placed = 0;
  for (const auto& bucket : plan.buckets) {
    placed += bucket.items.size();
    for (const auto& item : bucket.items) {
      EXPECT_EQ(item.first * size_of(bucket.dtype) % 64, 0U);
      EXPECT_LE(item.first + item.count, bucket.count);
    }
  }
  EXPECT_EQ(placed, variables.size());
}

TEST(BucketPlan, BucketSizesFollowBytesPerPackOptions) {
  auto strategy = mirrored(1);
  const auto scope = strategy->scope();
  std::vector<Variable> variables;
  for (int i = 0; i < 40; ++i) variables.emplace_back(Tensor::zeros({65'536}));  // 256 KiB each
  const auto items = [&](std::int64_t bytes_per_pack, std::int64_t first_bytes_per_pack) {
    std::vector<std::size_t> result;
    std::size_t next = variables.size();
    for (const auto& bucket :
         internal::BucketPlan::make(variables, bytes_per_pack, first_bytes_per_pack).buckets) {
      result.push_back(bucket.items.size());
      for (const auto& item : bucket.items) EXPECT_EQ(item.variable, --next);  // in reverse order
    }
    return result;
  };
  using Sizes = std::vector<std::size_t>;
  EXPECT_EQ(items(0, 0), (Sizes{4, 16, 16, 4}));  // buckets of 1 MiB, then of 4 MiB
  EXPECT_EQ(items(512 << 10, 0), Sizes(20, 2));
  EXPECT_EQ(items(2 << 20, 0), (Sizes{4, 8, 8, 8, 8, 4}));
  EXPECT_EQ(items(2 << 20, 256 << 10), (Sizes{1, 8, 8, 8, 8, 7}));
  EXPECT_EQ(items(2 << 20, 4 << 20), (Sizes{16, 8, 8, 8}));
  EXPECT_EQ(items(1 << 30, 1), (Sizes{1, 39}));
}

TEST(BucketPlan, SlicesCoverBucketAtMultiplesOf64Bytes) {
  for (const std::size_t count : {0U, 1U, 16U, 4'096U, 4'097U, 1'000'003U}) {
    for (const int replicas : {1, 2, 3, 8}) {
      std::size_t position = 0;
      for (const auto& slice : internal::cut_slices(count, 4, replicas)) {
        EXPECT_EQ(slice.begin, position);
        EXPECT_EQ(slice.begin * 4 % 64, 0U);
        EXPECT_LT(slice.begin, slice.end);
        position = slice.end;
      }
      EXPECT_EQ(position, count);
      EXPECT_LE(internal::cut_slices(count, 4, replicas).size(),
                static_cast<std::size_t>(replicas));
    }
  }
}

}  // namespace tutti::strategy_tests::bucket_reducer_test
