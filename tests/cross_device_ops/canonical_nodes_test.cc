// Tests of parts of the canonical tree.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cross_device_ops/canonical_tree.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tutti/core/error.h"

namespace tutti {
namespace {

std::vector<std::pair<int, int>> node_pairs(int first, int count, int num_replicas) {
  std::vector<std::pair<int, int>> pairs;
  for (const CanonicalNode& node : canonical_nodes(first, count, num_replicas)) {
    pairs.emplace_back(node.first, node.count);
  }
  return pairs;
}

using Pairs = std::vector<std::pair<int, int>>;

TEST(CanonicalNodes, AreTheLargestWholeSubtrees) {
  EXPECT_EQ(node_pairs(0, 4, 4), (Pairs{{0, 4}}));
  EXPECT_EQ(node_pairs(2, 2, 4), (Pairs{{2, 2}}));
  EXPECT_EQ(node_pairs(0, 3, 6), (Pairs{{0, 2}, {2, 1}}));
  EXPECT_EQ(node_pairs(3, 3, 6), (Pairs{{3, 1}, {4, 2}}));
  EXPECT_EQ(node_pairs(1, 6, 8), (Pairs{{1, 1}, {2, 2}, {4, 2}, {6, 1}}));
  // The right edge: 4 and 5 are a whole subtree of six replicas, of eight they are half of one.
  EXPECT_EQ(node_pairs(4, 1, 5), (Pairs{{4, 1}}));
  EXPECT_EQ(node_pairs(2, 3, 5), (Pairs{{2, 2}, {4, 1}}));
}

TEST(CanonicalNodes, RefusesReplicasThatAreNotThere) {
  EXPECT_THROW(canonical_nodes(3, 2, 4), Error);
  EXPECT_THROW(canonical_nodes(-1, 2, 4), Error);
  EXPECT_THROW(canonical_nodes(0, 0, 4), Error);
}

// Every way to cut V replicas into three consecutive workers gives the bits of one process.
TEST(CanonicalNodes, CombineToTheBitsOfTheWholeTree) {
  constexpr std::size_t kCount = 9001;  // several blocks, and a part of one
  for (int replicas = 1; replicas <= 9; ++replicas) {
    std::vector<std::vector<float>> values;
    std::vector<const std::byte*> inputs;
    for (int r = 0; r < replicas; ++r) {
      std::vector<float> value(kCount);
      for (std::size_t i = 0; i < kCount; ++i) {
        value[i] = std::sin(static_cast<float>(i * 7 + 1) * (static_cast<float>(r) + 0.37f)) *
                   std::pow(10.0f, static_cast<float>((i + static_cast<std::size_t>(r)) % 9));
      }
      values.push_back(std::move(value));
    }
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
        // In place, in the last part.
        combine_nodes(ReduceOp::kSum, DType::kFloat32, nodes, partial_inputs,
                      reinterpret_cast<std::byte*>(partials.back().data()), kCount);
        ASSERT_EQ(partials.back(), expected)
            << replicas << " replicas cut at " << a << " and " << b;
      }
    }
  }
}

TEST(CanonicalNodes, CombineSaysWhoseValueIsMissing) {
  const float value = 1.0f;
  const std::byte* const input = reinterpret_cast<const std::byte*>(&value);
  const std::vector<CanonicalNode> nodes{{0, 1}, {2, 2}};
  float result = 0.0f;
  try {
    combine_nodes(ReduceOp::kSum, DType::kFloat32, nodes, std::vector{input, input},
                  reinterpret_cast<std::byte*>(&result), 1);
    FAIL() << "a sum without replica 1";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("replica 1"), std::string::npos) << error.message();
  }
}

}  // namespace
}  // namespace tutti
