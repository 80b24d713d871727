// all_reduce and all_gather inside replicas, with gradients (RED, GAT, GRD scenarios).
// SPDX-License-Identifier: Apache-2.0
#include "tests/strategy/strategy_helpers.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/autograd/replica_group.h"

namespace tutti::strategy_tests {
namespace {

using CollectivesOfAll = AllStrategies;
INSTANTIATE_TEST_SUITE_P(, CollectivesOfAll, ::testing::ValuesIn(all_strategies()), case_name);

/// 1 + 2 + ... + n
double triangle(int n) { return n * (n + 1) / 2.0; }

Tensor matrix(const Shape& shape, const std::vector<float>& values) {
  return Tensor::from<float>(shape, values, ReplicaContext::current().device());
}

TEST_P(CollectivesOfAll, GAT_09_AllGatherGivesEveryReplicaTheWhole) {
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
  const std::vector<Shape> shapes = {{3 * n},   {n, 3},        {1, 3 * n},
                                     {n, 2, 2}, {1, 2 * n, 2}, {1, 2, 2 * n}};
  for (const std::vector<Tensor>& of_replica : gathered) {
    for (std::size_t i = 0; i < shapes.size(); ++i) EXPECT_EQ(of_replica[i].shape(), shapes[i]);
    for (std::int64_t i = 0; i < 3 * n; ++i) {
      EXPECT_EQ(numbers(of_replica[0])[static_cast<std::size_t>(i)], 1 + i % 3);
    }
  }
}

TEST_P(CollectivesOfAll, GAT_10_LengthsAlongTheAxisMayDiffer) {
  const auto gathered = strategy_->run([] {
    ReplicaContext& context = ReplicaContext::current();
    const std::int64_t length = context.replica_id() + 1;
    return std::pair(
        context.all_gather(Tensor::ones({length, 2}, DType::kFloat32, context.device()), 0),
        context.all_gather(Tensor::ones({1, length}, DType::kFloat32, context.device()), 1));
  });
  const auto total = static_cast<std::int64_t>(triangle(replicas()));
  for (const auto& [rows, columns] : gathered) {
    EXPECT_EQ(rows.shape(), (Shape{total, 2}));
    EXPECT_EQ(columns.shape(), (Shape{1, total}));
  }
}

TEST_P(CollectivesOfAll, GAT_11_SeveralValuesAtOnce) {
  const auto gathered = strategy_->run([] {
    ReplicaContext& context = ReplicaContext::current();
    const std::vector<Tensor> values = {
        Tensor::ones({1, context.replica_id() + 1}, DType::kFloat32, context.device()),
        matrix({1, 2, 2}, {1, 2, 1, 2})};
    return context.all_gather(values, 1);
  });
  for (const auto& of_replica : gathered) {
    EXPECT_EQ(of_replica[0].shape(), (Shape{1, static_cast<std::int64_t>(triangle(replicas()))}));
    EXPECT_EQ(of_replica[1].shape(), (Shape{1, 2 * replicas(), 2}));
  }
}

TEST_P(CollectivesOfAll, GAT_14_GradientOfAllGatherIsTheOwnPartOfTheSum) {
  const auto gradients = strategy_->run([] {
    ReplicaContext& context = ReplicaContext::current();
    const Tensor x = matrix({2, 1}, {3, 5});
    GradientTape tape;
    tape.watch(x);
    const Tensor y = context.all_gather(x, 1) * num(replica_number() + 1);
    return tape.gradient(y, x).dense();
  });
  for (const Tensor& gradient : gradients) {
    EXPECT_EQ(gradient.shape(), (Shape{2, 1}));
    EXPECT_EQ(numbers(gradient), copies_of(triangle(replicas()), 2));
  }
}

TEST_P(CollectivesOfAll, GAT_15_GradientOfAllGatherOfSeveralValues) {
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

TEST_P(CollectivesOfAll, GAT_14_UnevenPartsGetTheirOwnGradient) {
  const auto gradients = strategy_->run([] {
    ReplicaContext& context = ReplicaContext::current();
    const int r = context.replica_id();
    const Tensor x = Tensor::ones({r + 1}, DType::kFloat32, context.device());
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

TEST_P(CollectivesOfAll, GradientOfAllReduceIsAllReduceOfTheGradient) {
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

TEST_P(CollectivesOfAll, TheReplicaGroupOfLayersDifferentiatesToo) {
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

TEST_P(CollectivesOfAll, DenseAndSparseValuesKeepTheCallersOrder) {
  const auto results = strategy_->run([] {
    ReplicaContext& context = ReplicaContext::current();
    const Device device = context.device();
    const std::vector<Gradient> values = {
        vec({1, 2}),
        IndexedSlices{Tensor::ones({1, 2}, DType::kFloat32, device),
                      Tensor::from<std::int64_t>({1}, {1}, device), Shape{3, 2}},
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

TEST(Collectives, GRD_07_AllReduceOfPerReplicaValues) {
  auto strategy = mirrored(2);
  const PerReplica<float> scalars({1, 3});
  const PerReplica<std::vector<float>> vectors({{39, 2}, {3, 41}});
  const auto reduce = [&](ReduceOp op) {
    return strategy->run(
        [op](float scalar, const std::vector<float>& vector) {
          const std::vector<Gradient> values = {num(scalar), vec(vector)};
          return ReplicaContext::current().all_reduce(op, values);
        },
        scalars, vectors);
  };
  for (const auto& of_replica : reduce(ReduceOp::kSum)) {
    EXPECT_EQ(of_replica[0].dense().item(), 4.0f);
    EXPECT_EQ(numbers(of_replica[1].dense()), (std::vector<double>{42, 43}));
  }
  for (const auto& of_replica : reduce(ReduceOp::kMean)) {
    EXPECT_EQ(of_replica[0].dense().item(), 2.0f);
    EXPECT_EQ(numbers(of_replica[1].dense()), (std::vector<double>{21, 21.5}));
  }
}

TEST(Collectives, GAT_13_ErrorsOfAllGatherNameIt) {
  auto strategy = mirrored(2);
  testing::HangWatchdog watchdog("all_gather errors");
  EXPECT_TUTTI_ERROR(strategy->run([] {
    const std::int64_t width = ReplicaContext::current().replica_id() + 1;
    const Device device = ReplicaContext::current().device();
    ReplicaContext::current().all_gather(Tensor::ones({1, width}, DType::kFloat32, device), 0);
  }),
                     ErrorCode::kInvalidArgument, "all_gather mismatch");
  EXPECT_TUTTI_ERROR(strategy->run([] {
    const Device device = ReplicaContext::current().device();
    const bool first = ReplicaContext::current().replica_id() == 0;
    ReplicaContext::current().all_gather(
        Tensor::ones(first ? Shape{1} : Shape{1, 1}, DType::kFloat32, device), 0);
  }),
                     ErrorCode::kInvalidArgument, "all_gather mismatch");
  EXPECT_TUTTI_ERROR(strategy->run([] { ReplicaContext::current().all_gather(num(1.0), 0); }),
                     ErrorCode::kInvalidArgument, "a scalar has no axis");
  EXPECT_TUTTI_ERROR(strategy->gather(PerReplica<IndexedSlices>(), 0), ErrorCode::kUnimplemented,
                     "gather does not support IndexedSlices");
}

TEST(Collectives, OtherReductionsHaveNoGradient) {
  auto strategy = mirrored(2);
  EXPECT_TUTTI_ERROR(strategy->run([] {
    const Tensor x = num(1.0);
    GradientTape tape;
    tape.watch(x);
    return tape.gradient(ReplicaContext::current().all_reduce(ReduceOp::kMax, x), x);
  }),
                     ErrorCode::kUnimplemented, "all_reduce(MAX) at collectives_test.cc");
}

TEST(Collectives, AContextIsUsedByItsOwnThread) {
  auto strategy = mirrored(2);
  ReplicaContext* contexts[2] = {};
  EXPECT_TUTTI_ERROR(strategy->run([&] {
    ReplicaContext& own = ReplicaContext::current();
    contexts[own.replica_id()] = &own;
    own.merge_call(
        [&](Strategy&, const PerReplica<int>&) {
          contexts[0]->all_reduce(ReduceOp::kSum, Tensor(1.0f));
        },
        0);
  }),
                     ErrorCode::kFailedPrecondition, "the replica's own thread");
}

}  // namespace
}  // namespace tutti::strategy_tests
