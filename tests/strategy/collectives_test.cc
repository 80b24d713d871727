// Tests all_reduce and all_gather inside replicas, with gradients.
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <mutex>

#include "tests/strategy/strategy_helpers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"
#include "tutti/core/clock.h"
#include "tutti/core/executor.h"
#include "tutti/cross_device_ops/registry.h"

namespace tutti::strategy_tests::collectives_test {
using CollectivesOnEveryStrategy = AllStrategies;
INSTANTIATE_TEST_SUITE_P(, CollectivesOnEveryStrategy, ::testing::ValuesIn(all_strategies()),
                         case_name);

/// Returns 1 + 2 + ... + n.
double triangle(int n) { return n * (n + 1) / 2.0; }

Tensor matrix(const Shape& shape, const std::vector<float>& values) {
  return Tensor::from<float>(shape, values, here());
}

/// Expects a tensor of this shape whose elements repeat `pattern`.
void expect_repeats(const Tensor& tensor, const Shape& shape, const std::vector<double>& pattern) {
  EXPECT_EQ(tensor.shape(), shape);
  std::vector<double> expected;
  for (std::int64_t i = 0; i < shape.num_elements(); ++i) {
    expected.push_back(pattern[static_cast<std::size_t>(i) % pattern.size()]);
  }
  EXPECT_EQ(numbers(tensor), expected);
}

/// Returns (r + 1) * width copies of each replica's number r, in the order of replicas.
std::vector<double> numbers_of_replicas(int replicas, int width) {
  std::vector<double> values;
  for (int r = 0; r < replicas; ++r) {
    for (int i = 0; i < (r + 1) * width; ++i) values.push_back(r);
  }
  return values;
}

TEST_P(CollectivesOnEveryStrategy, AllGatherConcatenatesOnEveryReplica) {
  const auto gathered = strategy_->run([] {
    ReplicaContext& context = ReplicaContext::current();
    const Tensor rank_3 = matrix({1, 2, 2}, {1, 2, 1, 2});
    return std::vector<Tensor>{context.all_gather(vec({1, 2, 3}), 0),
                               context.all_gather(matrix({1, 3}, {1, 2, 3}), 0),
                               context.all_gather(matrix({1, 3}, {1, 2, 3}), 1),
                               context.all_gather(rank_3, 0),
                               context.all_gather(rank_3, 1),
                               context.all_gather(rank_3, -1)};
  });
  const std::int64_t n = replicas();
  for (const std::vector<Tensor>& of_replica : strategy_->local_results(gathered)) {
    expect_repeats(of_replica[0], {3 * n}, {1, 2, 3});
    expect_repeats(of_replica[1], {n, 3}, {1, 2, 3});
    expect_repeats(of_replica[2], {1, 3 * n}, {1, 2, 3});
    expect_repeats(of_replica[3], {n, 2, 2}, {1, 2, 1, 2});
    expect_repeats(of_replica[4], {1, 2 * n, 2}, {1, 2});
    expect_repeats(of_replica[5], {1, 2, 2 * n}, {1, 2});
  }
}

TEST_P(CollectivesOnEveryStrategy, AllGatherAcceptsUnequalLengthsAlongAxis) {
  const auto gathered = strategy_->run([] {
    ReplicaContext& context = ReplicaContext::current();
    const int r = context.replica_id();
    return std::pair(context.all_gather(filled({r + 1, 2}, r), 0),
                     context.all_gather(filled({1, r + 1}, r), 1));
  });
  const auto total = static_cast<std::int64_t>(triangle(replicas()));
  for (const auto& [rows, columns] : gathered) {
    EXPECT_EQ(rows.shape(), (Shape{total, 2}));
    EXPECT_EQ(numbers(rows), numbers_of_replicas(replicas(), 2));
    EXPECT_EQ(columns.shape(), (Shape{1, total}));
    EXPECT_EQ(numbers(columns), numbers_of_replicas(replicas(), 1));
  }
}

TEST_P(CollectivesOnEveryStrategy, AllGatherAcceptsSeveralValues) {
  const auto gathered = strategy_->run([] {
    ReplicaContext& context = ReplicaContext::current();
    const int r = context.replica_id();
    const std::vector<Tensor> values = {filled({1, r + 1}, r), matrix({1, 2, 2}, {1, 2, 1, 2})};
    return context.all_gather(values, 1);
  });
  for (const auto& of_replica : gathered) {
    ASSERT_EQ(of_replica.size(), 2U);
    EXPECT_EQ(of_replica[0].shape(), (Shape{1, static_cast<std::int64_t>(triangle(replicas()))}));
    EXPECT_EQ(numbers(of_replica[0]), numbers_of_replicas(replicas(), 1));
    expect_repeats(of_replica[1], {1, 2 * replicas(), 2}, {1, 2});
  }
}

TEST_P(CollectivesOnEveryStrategy, AllGatherOfSeveralValuesIsDifferentiable) {
  const auto gradients = strategy_->run([] {
    ReplicaContext& context = ReplicaContext::current();
    const Tensor x = matrix({2, 1}, {3, 5});
    const std::vector<Tensor> values = {x, matrix({2, 1}, {7, 9})};
    GradientTape tape;
    tape.watch(x);
    const std::vector<Tensor> gathered = context.all_gather(values, 1);
    const Tensor y = (gathered[0] + gathered[1]) * num(replica_number() + 1);
    return tape.gradient(y, x).dense();
  });
  for (const Tensor& gradient : gradients) {
    EXPECT_EQ(numbers(gradient), copies_of(triangle(replicas()), 2));
  }
}

TEST_P(CollectivesOnEveryStrategy, AllGatherGradientIsSplitByUnequalLengths) {
  const auto gradients = strategy_->run([] {
    ReplicaContext& context = ReplicaContext::current();
    const int r = context.replica_id();
    const Tensor x = filled({r + 1}, 1.0);
    GradientTape tape;
    tape.watch(x);
    const Tensor gathered = context.all_gather(x, 0);
    std::vector<float> weights;
    for (std::int64_t i = 0; i < gathered.num_elements(); ++i) {
      weights.push_back(static_cast<float>(i));
    }
    return tape.gradient(gathered * vec(weights), x).dense();
  });
  double position = 0;
  for (int r = 0; r < replicas(); ++r) {
    for (const double each : numbers(gradients[static_cast<std::size_t>(r)])) {
      EXPECT_EQ(each, replicas() * position++);
    }
  }
}

TEST_P(CollectivesOnEveryStrategy, GradientOfAllReduceIsAllReduceOfGradient) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    const auto gradients = strategy_->run([op] {
      const Tensor x = num(2.0);
      GradientTape tape;
      tape.watch(x);
      const Tensor y = ReplicaContext::current().all_reduce(op, x) * num(replica_number() + 1);
      return tape.gradient(y, x).dense();
    });
    const double sum = triangle(replicas());
    EXPECT_EQ(numbers(gradients),
              copies_of(op == ReduceOp::kSum ? sum : sum / replicas(), replicas()));
  }
}

TEST_P(CollectivesOnEveryStrategy, ReplicaGroupAllReduceIsDifferentiable) {
  const auto gradients = strategy_->run([] {
    const Tensor x = num(2.0);
    GradientTape tape;
    tape.watch(x);
    ReplicaGroup& group = ReplicaGroup::current("test");
    const Tensor y = group.all_reduce(ReduceOp::kSum, square(x));
    return tape.gradient(y, x).dense();
  });
  EXPECT_EQ(numbers(gradients), copies_of(4.0 * replicas(), replicas()));
}

TEST_P(CollectivesOnEveryStrategy, AllReduceKeepsOrderOfDenseAndSparseValues) {
  const auto results = strategy_->run([] {
    ReplicaContext& context = ReplicaContext::current();
    const std::vector<Gradient> values = {
        vec({1, 2}), IndexedSlices{filled({1, 2}, 1.0), filled({1}, 1, DType::kInt64), Shape{3, 2}},
        num(replica_number())};
    return context.all_reduce(ReduceOp::kSum, values);
  });
  for (const std::vector<Gradient>& of_replica : results) {
    ASSERT_EQ(of_replica.size(), 3U);
    EXPECT_EQ(numbers(of_replica[0].dense()),
              (std::vector<double>{1.0 * replicas(), 2.0 * replicas()}));
    ASSERT_TRUE(of_replica[1].is_slices());
    EXPECT_EQ(numbers(of_replica[1].to_dense())[2], replicas());
    EXPECT_EQ(of_replica[2].dense().item(), static_cast<float>(triangle(replicas() - 1)));
  }
}

/// Values that reached each of the two devices, in order of arrival.
struct Launches {
  Mutex mutex;
  std::array<std::vector<float>, 2> of_device;
};
Launches& launches() {
  static Launches one;
  return one;
}

/// Operation that delays launches, so that without a common order, two concurrent calls would reach
/// device 0 in the order 1, 2 and device 1 in the order 2, 1.
class DelayedOps final : public CrossDeviceOps {
 public:
  DelayedOps(const std::string& name, const Group& group)
      : ops_(build_cross_device_ops(make_cross_device_ops(name), group)) {}
  std::string_view name() const override { return "delayed"; }
  bool supports(ReduceOp op, DType dtype, DeviceType device) const override {
    return ops_->supports(op, dtype, device);
  }

 protected:
  void all_reduce_buffers(ReduceOp op, std::span<const ReplicaBuffer> buffers) override {
    const float value = buffers[0].as<float>()[0];
    const std::array<int, 2> moments = value == 1.0f ? std::array{0, 3} : std::array{1, 2};
    launch(0, value, moments[0]);
    launch(1, value, moments[1] - moments[0]);
    ops_->all_reduce_in_place(op, buffers);
  }

 private:
  static void launch(std::size_t device, float value, int delay) {
    Clock::system().sleep_for(delay * std::chrono::milliseconds(20));
    MutexLock lock(launches().mutex);
    launches().of_device[device].push_back(value);
  }
  const std::unique_ptr<CrossDeviceOps> ops_;
};

void register_delayed_ops() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const std::string name : {"canonical", "ring"}) {
      register_cross_device_ops("delayed_" + name,
                                [name](const Group& group, const CommunicationOptions&) {
                                  return std::make_unique<DelayedOps>(name, group);
                                });
    }
  });
}

// tests/gpu_ops/reductions_test.cc tests the order of launches with NCCL.
TEST(Collectives, ConcurrentLaunchesHaveSameOrderOnAllDevices) {
  register_delayed_ops();
  for (const char* ops : {"delayed_canonical", "delayed_ring"}) {
    LocalStrategyOptions options = on_cpus(2);
    options.cross_device_ops = make_cross_device_ops(ops);
    MirroredStrategy strategy(options);
    launches().of_device = {};
    const auto reduce_twice = [&](float value) {
      const std::pair<PerReplica<Tensor>, std::vector<Device>> pair = {
          PerReplica<Tensor>({Tensor(value), Tensor(value)}), strategy.worker_devices()};
      const auto sums = strategy.batch_reduce_to(ReduceOp::kSum, std::vector{pair, pair});
      ASSERT_EQ(sums.size(), 2U);
      for (const auto& sum : sums) EXPECT_EQ(numbers(sum), copies_of(2.0 * value, 2));
    };
    for (int round = 0; round < 3; ++round) {
      const auto other = Executor::system().start("other", [&] { reduce_twice(2.0f); });
      reduce_twice(1.0f);
      other->join();
    }
    EXPECT_EQ(launches().of_device[0].size(), 6U) << ops;
    EXPECT_EQ(launches().of_device[0], launches().of_device[1]) << ops;
  }
}

TEST(Collectives, AllGatherErrorNamesCall) {
  auto strategy = mirrored(2);
  EXPECT_INVALID(strategy->run([] {
    const std::int64_t width = ReplicaContext::current().replica_id() + 1;
    ReplicaContext::current().all_gather(filled({1, width}, 1.0), 0);
  }),
                 "all_gather mismatch");
  EXPECT_INVALID(strategy->run([] {
    const bool first = ReplicaContext::current().replica_id() == 0;
    ReplicaContext::current().all_gather(filled(first ? Shape{1} : Shape{1, 1}, 1.0), 0);
  }),
                 "all_gather mismatch");
  EXPECT_INVALID(strategy->run([] { ReplicaContext::current().all_gather(num(1.0), 0); }),
                 "a scalar has no axis");
  EXPECT_ERROR(strategy->gather(PerReplica<IndexedSlices>(), 0), kUnimplemented,
               "gather does not support IndexedSlices");
}

TEST(Collectives, AllReduceMaxHasNoGradient) {
  auto strategy = mirrored(2);
  EXPECT_ERROR(strategy->run([] {
    const Tensor x = num(1.0);
    GradientTape tape;
    tape.watch(x);
    return tape.gradient(ReplicaContext::current().all_reduce(ReduceOp::kMax, x), x);
  }),
               kUnimplemented, "all_reduce(MAX) at collectives_test.cc");
}

TEST(Collectives, ReplicaContextRejectsCallFromDifferentThread) {
  auto strategy = mirrored(2);
  ReplicaContext* contexts[2] = {};
  EXPECT_ERROR(strategy->run([&] {
    ReplicaContext& own = ReplicaContext::current();
    contexts[own.replica_id()] = &own;
    own.merge_call(
        [&](Strategy&, const PerReplica<int>&) {
          contexts[0]->all_reduce(ReduceOp::kSum, Tensor(1.0f));
        },
        0);
  }),
               kFailedPrecondition, "the replica's own thread");
}

}  // namespace tutti::strategy_tests::collectives_test
