// Compares the canonical tree with a literal implementation of its definition, and tests sparse
// sums that use the tree.
// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/cross_device_ops/cdo_helpers.h"
#include "tests/cross_device_ops/engine_helpers.h"
#include "tutti/core/error.h"
#include "tutti/core/random.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/cross_device_ops/gradient_ops.h"

namespace tutti::canonical_tree_test {

using namespace cdo_tests;

template <class T>
std::vector<std::vector<T>> random_inputs(std::size_t replicas, std::size_t count) {
  std::vector<std::vector<T>> inputs(replicas, std::vector<T>(count));
  for (std::size_t r = 0; r < replicas; ++r) {
    const RandomStream stream(RandomKey{11, kUserPurpose, r});
    for (std::size_t i = 0; i < count; ++i) {
      // Magnitudes differ widely, so that a different order of additions changes the bits.
      inputs[r][i] = static_cast<T>(stream.normal(i) * std::pow(10.0, (r * 3 + i) % 7));
    }
  }
  return inputs;
}

template <class T>
void expect_tree_bits(std::size_t replicas, std::size_t count) {
  const auto inputs = random_inputs<T>(replicas, count);
  std::vector<const std::byte*> starts;
  for (const auto& input : inputs)
    starts.push_back(reinterpret_cast<const std::byte*>(input.data()));
  std::vector<T> output(count);
  reduce_along_tree(ReduceOp::kSum, dtype_of<T>(), starts,
                    reinterpret_cast<std::byte*>(output.data()), count);
  EXPECT_EQ(output, tree_sums(inputs)) << replicas << " replicas";
}

TEST(CanonicalTree, AddsNeighborsForAnyBlockSize) {
  for (std::size_t replicas = 1; replicas <= 17; ++replicas) expect_tree_bits<float>(replicas, 33);
  for (const std::size_t replicas : {2, 7, 64}) expect_tree_bits<double>(replicas, 5);
  for (const std::size_t count : {4095, 4096, 4097, 20000}) expect_tree_bits<float>(5, count);
}

TEST(CanonicalTree, ResultDiffersFromSequentialSum) {
  // Shows that comparing bits detects a different order: a sum from left to right has other bits.
  const auto inputs = random_inputs<float>(8, 100);
  const auto sums = tree_sums(inputs);
  int different = 0;
  for (std::size_t i = 0; i < 100; ++i) {
    float from_left = 0.0f;
    for (const auto& input : inputs) from_left += input[i];
    different += from_left != sums[i];
  }
  EXPECT_GT(different, 10);
}

TEST(CanonicalTree, OutputMayAliasFirstInput) {
  auto inputs = random_inputs<float>(5, 9000);
  const auto before = inputs;
  std::vector<const std::byte*> starts;
  for (auto& input : inputs) starts.push_back(reinterpret_cast<const std::byte*>(input.data()));
  reduce_along_tree(ReduceOp::kSum, DType::kFloat32, starts,
                    reinterpret_cast<std::byte*>(inputs[0].data()), 9000);
  EXPECT_EQ(inputs[0], tree_sums(before));
  for (std::size_t r = 1; r < 5; ++r) EXPECT_EQ(inputs[r], before[r]);
}

TEST(CanonicalTree, IntegersWrapAround) {
  constexpr auto kMax = std::numeric_limits<std::int32_t>::max();
  const std::vector<Tensor> values = {Tensor::from<std::int32_t>({2}, {kMax, 1 << 30}),
                                      Tensor::from<std::int32_t>({2}, {1, 8})};
  expect_tensor(reduce_tensors_along_tree(ReduceOp::kSum, values, {}), {2},
                {static_cast<double>(std::numeric_limits<std::int32_t>::min()), 1073741832.0});
  expect_tensor(reduce_tensors_along_tree(ReduceOp::kProduct, values, {}), {2},
                {static_cast<double>(kMax), 0.0});
  const std::vector<Tensor> bytes = {Tensor::from<std::uint8_t>({1}, {200}),
                                     Tensor::from<std::uint8_t>({1}, {100})};
  expect_tensor(reduce_tensors_along_tree(ReduceOp::kSum, bytes, {}), {1}, {44});
}

TEST(CanonicalTree, NaNFromAnyReplicaPropagatesToResult) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    for (std::size_t r = 0; r < 3; ++r) {
      std::vector<Tensor> values(3, Tensor(1.0f));
      values[r] = Tensor(std::numeric_limits<float>::quiet_NaN());
      EXPECT_TRUE(std::isnan(reduce_tensors_along_tree(op, values, {}).item())) << op << " " << r;
    }
  }
}

TEST(CanonicalTree, MeanDividesByTheNumberOfValues) {
  const std::vector<Tensor> floats = {Tensor(1.0f), Tensor(2.0f), Tensor(4.0f)};
  expect_tensor(reduce_tensors_along_tree(ReduceOp::kMean, floats, cpu(2)), {}, {7.0f / 3.0f});
  EXPECT_EQ(reduce_tensors_along_tree(ReduceOp::kMean, floats, cpu(2)).device(), cpu(2));
  const std::vector<Tensor> integers = {Tensor::from<std::int64_t>({2}, {1, 1 << 25}),
                                        Tensor::from<std::int64_t>({2}, {2, 1})};
  const Tensor mean = reduce_tensors_along_tree(ReduceOp::kMean, integers, {});
  EXPECT_EQ(mean.dtype(), DType::kFloat32);  // integers are divided without truncation
  expect_tensor(mean, {2}, {1.5, 16777216.0});
  // The sum, 180,000, exceeds float16's maximum of 65,504.
  const std::vector<Tensor> halves(3, Tensor::full({2}, 60000, DType::kFloat16));
  const Tensor of_halves = reduce_tensors_along_tree(ReduceOp::kMean, halves, {});
  EXPECT_EQ(of_halves.dtype(), DType::kFloat16);
  expect_tensor(of_halves, {2}, {60000, 60000});
}

TEST(CanonicalTree, RefusesMeanOfBuffersAndEmptyInput) {
  float value = 1.0f;
  const std::byte* const inputs[] = {reinterpret_cast<std::byte*>(&value)};
  EXPECT_ERROR(reduce_along_tree(ReduceOp::kMean, DType::kFloat32, inputs,
                                 reinterpret_cast<std::byte*>(&value), 1),
               kInternal, "MEAN");
  EXPECT_INVALID(reduce_tensors_along_tree(ReduceOp::kSum, {}, {}), "none");
}

std::vector<std::pair<int, int>> node_pairs(int first, int count, int num_replicas) {
  std::vector<std::pair<int, int>> pairs;
  for (const CanonicalNode& node : canonical_nodes(first, count, num_replicas)) {
    pairs.emplace_back(node.first, node.count);
  }
  return pairs;
}

using Pairs = std::vector<std::pair<int, int>>;

TEST(CanonicalNodes, AreLargestCompleteSubtrees) {
  EXPECT_EQ(node_pairs(0, 4, 4), (Pairs{{0, 4}}));
  EXPECT_EQ(node_pairs(2, 2, 4), (Pairs{{2, 2}}));
  EXPECT_EQ(node_pairs(0, 3, 6), (Pairs{{0, 2}, {2, 1}}));
  EXPECT_EQ(node_pairs(3, 3, 6), (Pairs{{3, 1}, {4, 2}}));
  EXPECT_EQ(node_pairs(1, 6, 8), (Pairs{{1, 1}, {2, 2}, {4, 2}, {6, 1}}));
  // In the last two cases, replica 4 is the last of five, so it is a complete subtree by itself.
  EXPECT_EQ(node_pairs(4, 1, 5), (Pairs{{4, 1}}));
  EXPECT_EQ(node_pairs(2, 3, 5), (Pairs{{2, 2}, {4, 1}}));
  EXPECT_THROW(canonical_nodes(3, 2, 4), Error);
  EXPECT_THROW(canonical_nodes(-1, 2, 4), Error);
  EXPECT_THROW(canonical_nodes(0, 0, 4), Error);
}

// Each process reduces one of three consecutive ranges of replicas; the result is bit-identical to
// the result of one process.
TEST(CanonicalNodes, CombiningGivesSameBitsAsFullTree) {
  constexpr std::size_t kCount = 9001;  // several blocks and a partial block
  for (int replicas = 1; replicas <= 9; ++replicas) {
    const auto values = random_inputs<float>(static_cast<std::size_t>(replicas), kCount);
    std::vector<const std::byte*> inputs;
    for (const auto& value : values) {
      inputs.push_back(reinterpret_cast<const std::byte*>(value.data()));
    }
    std::vector<float> expected(kCount);
    reduce_along_tree(ReduceOp::kSum, DType::kFloat32, inputs,
                      reinterpret_cast<std::byte*>(expected.data()), kCount);
    for (int a = 1; a <= replicas; ++a) {
      for (int b = a; b <= replicas; ++b) {
        std::vector<CanonicalNode> nodes;
        for (const auto& [first, end] :
             {std::pair(0, a), std::pair(a, b), std::pair(b, replicas)}) {
          if (first == end) continue;
          for (const auto& node : canonical_nodes(first, end - first, replicas)) {
            nodes.push_back(node);
          }
        }
        std::vector<std::vector<float>> partials(nodes.size(), std::vector<float>(kCount));
        std::vector<const std::byte*> partial_inputs;
        for (std::size_t n = 0; n < nodes.size(); ++n) {
          const auto own = std::span(inputs).subspan(static_cast<std::size_t>(nodes[n].first),
                                                     static_cast<std::size_t>(nodes[n].count));
          reduce_along_tree(ReduceOp::kSum, DType::kFloat32, own,
                            reinterpret_cast<std::byte*>(partials[n].data()), kCount);
          partial_inputs.push_back(reinterpret_cast<const std::byte*>(partials[n].data()));
        }
        // The output buffer is also the last input.
        combine_nodes(ReduceOp::kSum, DType::kFloat32, nodes, partial_inputs,
                      reinterpret_cast<std::byte*>(partials.back().data()), kCount);
        ASSERT_EQ(partials.back(), expected)
            << replicas << " replicas cut at " << a << " and " << b;
      }
    }
  }
}

TEST(CanonicalNodes, CombineErrorNamesMissingReplica) {
  const float value = 1.0f;
  const std::byte* const input = reinterpret_cast<const std::byte*>(&value);
  const std::vector<CanonicalNode> nodes{{0, 1}, {2, 2}};
  float result = 0.0f;
  EXPECT_THAT(thrown::error_of([&] {
                combine_nodes(ReduceOp::kSum, DType::kFloat32, nodes, std::vector{input, input},
                              reinterpret_cast<std::byte*>(&result), 1);
              }),
              ::testing::HasSubstr("replica 1"));
}

using engine_tests::TypedBytes;
using internal::combine;

constexpr ReduceOp kEveryOp[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                                 ReduceOp::kProduct};

TEST(Combine, MatchesTreeForEveryAliasingAndAlignment) {
  for (const DType dtype : kAllDTypes) {
    for (const ReduceOp op : kEveryOp) {
      if (dtype == DType::kBool && (op == ReduceOp::kSum || op == ReduceOp::kProduct)) continue;
      for (const std::size_t offset : {0, 1}) {
        for (const std::size_t count : {0, 1, 7, 5000}) {
          TypedBytes a(dtype, count, offset), b(dtype, count, 0), expected(dtype, count);
          TypedBytes out(dtype, count, offset);
          for (std::size_t i = 0; i < count; ++i) {
            a.set(i, dtype == DType::kBool ? i % 2 : static_cast<double>(i % 100) - 0.25);
            b.set(i, dtype == DType::kBool ? i % 3 == 0 : static_cast<double>(i % 7) + 0.5);
          }
          const std::byte* const inputs[] = {a.data(), b.data()};
          reduce_along_tree(op, dtype, inputs, expected.data(), count);
          combine(op, dtype, a.data(), b.data(), out.data(), count);
          EXPECT_TRUE(out.same_bytes(expected)) << op << " " << dtype << " " << count;
          TypedBytes left = a, right = b;
          combine(op, dtype, left.data(), b.data(), left.data(), count);
          combine(op, dtype, a.data(), right.data(), right.data(), count);
          EXPECT_TRUE(left.same_bytes(expected)) << op << " " << dtype << " into the left";
          EXPECT_TRUE(right.same_bytes(expected)) << op << " " << dtype << " into the right";
        }
      }
    }
  }
}

TEST(Combine, PreservesOperandOrderOfZerosAndPropagatesNaN) {
  const float zero = 0.0f, minus = -0.0f, nan = std::numeric_limits<float>::quiet_NaN();
  const auto result = [](ReduceOp op, float a, float b) {
    float out = 0.0f;
    combine(op, DType::kFloat32, reinterpret_cast<const std::byte*>(&a),
            reinterpret_cast<const std::byte*>(&b), reinterpret_cast<std::byte*>(&out), 1);
    return out;
  };
  // If both operands are equal, the left operand is returned.
  EXPECT_FALSE(std::signbit(result(ReduceOp::kMin, zero, minus)));
  EXPECT_TRUE(std::signbit(result(ReduceOp::kMax, minus, zero)));
  for (const ReduceOp op : kEveryOp) {
    EXPECT_TRUE(std::isnan(result(op, nan, 1.0f))) << op;
    EXPECT_TRUE(std::isnan(result(op, 1.0f, nan))) << op;
  }
}

TEST(Combine, IntegersWrapAroundAndInvalidCallsAreRefused) {
  TypedBytes a(DType::kInt32, 1), b(DType::kInt32, 1);
  a.set(0, std::numeric_limits<std::int32_t>::max());
  b.set(0, 1);
  combine(ReduceOp::kSum, DType::kInt32, a.data(), b.data(), a.data(), 1);
  EXPECT_EQ(a.get(0), std::numeric_limits<std::int32_t>::min());
  bool value = true;
  auto* const data = reinterpret_cast<std::byte*>(&value);
  EXPECT_INVALID(combine(ReduceOp::kSum, DType::kBool, data, data, data, 1), "bool", "MIN or MAX",
                 "SUM");
  float number = 1.0f;
  auto* const bytes = reinterpret_cast<std::byte*>(&number);
  EXPECT_ERROR(combine(ReduceOp::kMean, DType::kFloat32, bytes, bytes, bytes, 1), kInternal,
               "MEAN");
}

TEST(Combine, TreeAcceptsAnyAlignment) {
  for (const DType dtype : kAllDTypes) {
    TypedBytes a(dtype, 9000, 1), b(dtype, 9000, 0), c(dtype, 9000, 3), out(dtype, 9000, 1);
    for (std::size_t i = 0; i < 9000; ++i) {
      a.set(i, static_cast<double>(i % 2));
      b.set(i, static_cast<double>(i % 3 == 0));
      c.set(i, static_cast<double>(i % 5 == 0));
    }
    const std::byte* const inputs[] = {a.data(), b.data(), c.data()};
    reduce_along_tree(ReduceOp::kMax, dtype, inputs, out.data(), 9000);
    reduce_along_tree(ReduceOp::kMax, dtype, inputs, a.data(), 9000);
    for (std::size_t i = 0; i < 9000; ++i) {
      ASSERT_EQ(out.get(i), i % 2 || i % 3 == 0 || i % 5 == 0) << dtype << " " << i;
    }
    EXPECT_TRUE(a.same_bytes(out)) << dtype;
  }
}

template <class T>
IndexedSlices random_slices(std::uint64_t seed, std::int64_t n, const Shape& dense_shape) {
  const RandomStream stream(RandomKey{seed, kUserPurpose});
  const Shape shape = dense_shape.with_dim(0, n);
  std::vector<T> values(static_cast<std::size_t>(shape.num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<T>(stream.normal(i) * std::pow(10.0, i % 5));
  }
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < n; ++i) {
    indices.push_back(static_cast<std::int64_t>(stream.below(
        1000 + static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(dense_shape[0]))));
  }
  return {Tensor::from<T>(shape, values), Tensor::from<std::int64_t>({n}, indices), dense_shape};
}

template <class T>
void expect_bits_of_the_dense_sum(std::size_t replicas, const Shape& dense_shape) {
  std::vector<IndexedSlices> slices;
  std::vector<Tensor> dense;
  for (std::size_t r = 0; r < replicas; ++r) {
    // some replicas have no rows
    const auto rows = static_cast<std::int64_t>(r % 3 == 1 ? 0 : 20 + r);
    slices.push_back(random_slices<T>(r + 1, rows, dense_shape));
    dense.push_back(slices.back().to_dense());
  }
  const IndexedSlices sum = sum_slices_canonically(slices, cpu(1));
  const auto indices = sum.indices.host_span<std::int64_t>();
  EXPECT_TRUE(std::ranges::is_sorted(indices));
  EXPECT_EQ(std::ranges::adjacent_find(indices), indices.end());
  EXPECT_EQ(sum.values.device(), cpu(1));
  expect_same_bits(sum.to_dense(), reduce_tensors_along_tree(ReduceOp::kSum, dense, {}));
}

TEST(SparseSum, MatchesDenseSumAndAddsDuplicatesInOrder) {
  for (std::size_t replicas = 1; replicas <= 8; ++replicas) {
    expect_bits_of_the_dense_sum<float>(replicas, {11, 3});
    expect_bits_of_the_dense_sum<double>(replicas, {50, 2, 2});
    expect_bits_of_the_dense_sum<float>(replicas, {7});
  }
  // In float, 1e8 + 1 - 1e8 is 0 if added from left to right, and 1 if the large values are added
  // first.
  const IndexedSlices first = rows_of({1e8f, 1.0f, -1e8f}, {2, 2, 2}, {4, 1});
  const IndexedSlices second = rows_of({5.0f, 7.0f}, {0, 2}, {4, 1});
  const std::vector<IndexedSlices> both = {first, second};
  const Gradient sum = sum_slices_canonically(both, {});
  expect_rows(sum, {5.0, 7.0}, {0, 2});
}

TEST(SparseSum, AcceptsSlicesWithoutRowsAndRefusesDifferentShapes) {
  const std::vector<IndexedSlices> empty = {rows_of({}, {}, {4, 2}), rows_of({}, {}, {4, 2})};
  const Gradient sum = sum_slices_canonically(empty, {});
  expect_rows(sum, {}, {});
  expect_tensor(sum.to_dense(), {4, 2}, std::vector<double>(8, 0.0));
  const std::vector<IndexedSlices> shapes = {rows_of({1}, {0}, {4, 1}), rows_of({1}, {0}, {5, 1})};
  EXPECT_INVALID(sum_slices_canonically(shapes, {}), "[4, 1]", "[5, 1]", "replica 1");
  EXPECT_INVALID(sum_slices_canonically({}, {}), "none");
}

}  // namespace tutti::canonical_tree_test
