// Tests the encoding of replicas' values as bytes, and invalid bytes.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/multi_worker/worker_team.h"

#include "tests/strategy/strategy_helpers.h"

namespace tutti::strategy_tests {
namespace {

using internal::decode_values;
using internal::encode_values;
using internal::ReplicaValues;

ReplicaValues all_kinds() {
  const IndexedSlices slices{Tensor::from<float>({2, 1}, {5, 6}),
                             Tensor::from<std::int64_t>({2}, {3, 1}), Shape{4, 1}};
  return {
      {Tensor::from<float>({2, 2}, {1, 2, 3, 4}), slices, Gradient()},
      {Tensor::scalar(7.0, DType::kBFloat16), Tensor::zeros({0, 3}, DType::kInt32), Gradient()}};
}

TEST(WorkerValues, ComeBackAsTheyWere) {
  const ReplicaValues values = decode_values(encode_values(all_kinds()));
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(numbers(values[0][0].dense()), (std::vector<double>{1, 2, 3, 4}));
  EXPECT_EQ(values[0][0].dense().shape(), (Shape{2, 2}));
  EXPECT_EQ(numbers(values[0][1].slices().values), (std::vector<double>{5, 6}));
  EXPECT_EQ(numbers(values[0][1].slices().indices), (std::vector<double>{3, 1}));
  EXPECT_EQ(values[0][1].slices().dense_shape, (Shape{4, 1}));
  EXPECT_TRUE(values[0][2].is_none());
  EXPECT_EQ(values[1][0].dense().dtype(), DType::kBFloat16);
  EXPECT_EQ(values[1][1].dense().shape(), (Shape{0, 3}));
}

TEST(WorkerValues, BytesThatAreCutOrLongerAreRefused) {
  const std::string whole = encode_values(all_kinds());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_ERROR(decode_values(whole.substr(0, size)), kDataLoss,
                 "the values of another worker's replicas");
  }
  EXPECT_ERROR(decode_values(whole + "x"), kDataLoss, "1 bytes too many");
}

// Whatever the damaged numbers are, the result is an error or values, without a crash or excessive
// memory.
TEST(WorkerValues, DamagedNumbersAreAnErrorOrOtherValues) {
  const std::string whole = encode_values(all_kinds());
  int refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const char byte : {'\x7f', '\xff', '\x01'}) {
      std::string damaged = whole;
      damaged[at] = byte;
      try {
        decode_values(damaged);
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kDataLoss) << error.message();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace tutti::strategy_tests
