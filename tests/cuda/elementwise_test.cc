// Elementwise operations on GPUs give the bits of the CPU.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/device_call.h"

namespace tutti {
namespace cuda_elementwise_test {

using testing::compare_with_cpu;
using testing::device_test_call;
using testing::random_values;
using testing::tensor_of;

std::vector<OpId> ops_from(OpId first, OpId last) {
  std::vector<OpId> ops;
  for (int op = static_cast<int>(first); op <= static_cast<int>(last); ++op) {
    ops.push_back(static_cast<OpId>(op));
  }
  return ops;
}

TEST(CudaElementwise, UnaryOperationsGiveTheBitsOfTheCpu) {
  for (const OpId op : ops_from(OpId::kNegate, OpId::kLogicalNot)) {
    int num_kernels = 0;
    for (const DType dtype : kAllDTypes) {
      for (const std::int64_t size : {0, 1, 3, 8, 33, 1027}) {
        const Tensor x = random_values({size}, dtype, -4, 4);
        const OpCall call = device_test_call(op, {x}, {{x.shape(), dtype}});
        num_kernels += compare_with_cpu(call);
        compare_with_cpu(call, {}, 1);
      }
    }
    EXPECT_GT(num_kernels, 0) << to_string(op);
  }
}

TEST(CudaElementwise, SpecialNumbersGoThroughAsOnTheCpu) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> values{std::nan(""), inf, -inf, 0.0, -0.0, 1e-40, -1e-40, 2.5, -0.5};
  for (const OpId op : ops_from(OpId::kNegate, OpId::kGeluTanh)) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16}) {
      const Tensor x = tensor_of({9}, values, dtype);
      // NaN payloads and signs are not promised: values are compared, not bits.
      compare_with_cpu(device_test_call(op, {x}, {{x.shape(), dtype}}), {1.0});
    }
  }
  for (const OpId op : {OpId::kMaximum, OpId::kMinimum, OpId::kLess, OpId::kEqual}) {
    const Tensor x = tensor_of({9, 1}, values, DType::kFloat32);
    const Tensor y = tensor_of({1, 9}, values, DType::kFloat32);
    const DType result = op == OpId::kLess || op == OpId::kEqual ? DType::kBool : DType::kFloat32;
    compare_with_cpu(device_test_call(op, {x, y}, {{{9, 9}, result}}), {1.0});
  }
}

const std::pair<Shape, Shape> kBroadcasts[] = {{{1000}, {1000}},
                                               {{33}, {}},
                                               {{}, {33}},
                                               {{9, 16}, {16}},
                                               {{16}, {9, 16}},
                                               {{9, 16}, {9, 1}},
                                               {{9, 17}, {17}},
                                               {{9, 1}, {9, 17}},
                                               {{9, 1}, {1, 17}},
                                               {{3, 1, 5}, {4, 1}},
                                               {{1}, {1}},
                                               {{4, 4, 1}, {4, 4, 4}},
                                               {{2, 3, 4, 5}, {3, 1, 5}},
                                               {{}, {}},
                                               {{0, 3}, {3}},
                                               {{2, 6, 16}, {2, 1, 16}},
                                               {{2, 1, 8}, {1, 5, 8}},
                                               {{2, 1, 3, 1, 4}, {5, 1, 2, 4}}};

TEST(CudaElementwise, BinaryOperationsBroadcastAndGiveTheBitsOfTheCpu) {
  for (const OpId op : ops_from(OpId::kAdd, OpId::kGeluTanhGrad)) {
    int num_kernels = 0;
    const bool gives_bool = op >= OpId::kEqual && op <= OpId::kLogicalOr;
    for (const DType dtype : kAllDTypes) {
      for (const auto& [a_shape, b_shape] : kBroadcasts) {
        const Tensor a = random_values(a_shape, dtype, -3, 3, 1);
        const Tensor b = random_values(b_shape, dtype, -3, 3, 2);
        const OpCall call = device_test_call(
            op, {a, b}, {{broadcast(a_shape, b_shape, "test"), gives_bool ? DType::kBool : dtype}});
        num_kernels += compare_with_cpu(call);
        if (op <= OpId::kSubtract) compare_with_cpu(call, {}, 3);
      }
    }
    EXPECT_GT(num_kernels, 0) << to_string(op);
  }
}

TEST(CudaElementwise, WhereMovesEveryType) {
  const Shape shapes[] = {{6, 40}, {40}, {6, 1}, {}};
  for (const DType dtype : kAllDTypes) {
    for (const Shape& c_shape : shapes) {
      for (const Shape& a_shape : shapes) {
        const Shape shape = broadcast(c_shape, a_shape, "test");
        const OpCall call = device_test_call(
            OpId::kWhere,
            {random_values(c_shape, DType::kBool, 0, 1), random_values(a_shape, dtype, 0, 9, 2),
             random_values(shape, dtype, 0, 9, 3)},
            {{shape, dtype}});
        EXPECT_TRUE(compare_with_cpu(call));
      }
    }
  }
}

TEST(CudaElementwise, CastsBetweenAllTypesGiveTheBitsOfTheCpu) {
  const double inf = std::numeric_limits<double>::infinity();
  std::vector<double> values{0.0,
                             -0.0,
                             0.49,
                             -0.51,
                             1.0,
                             254.9,
                             256.0,
                             -1.0,
                             3e9,
                             -3e9,
                             1e19,
                             -1e19,
                             inf,
                             -inf,
                             70000.0,
                             1e-6,
                             2.0 + 0x1p-8,
                             1.0 + 0x1p-11,
                             1.0 + 3 * 0x1p-11,
                             65519.9,
                             1e-7};
  for (const DType from : kAllDTypes) {
    for (const DType to : kAllDTypes) {
      for (const Tensor& x : {is_floating(from) ? tensor_of({21}, values, from)
                                                : random_values({21}, from, -300, 300),
                              random_values({1030}, from, -500, 500)}) {
        compare_with_cpu(device_test_call(OpId::kCast, {x}, {{x.shape(), to}}, CastAttributes{to}));
      }
    }
  }
}

TEST(CudaElementwise, ClipRoundsItsBoundsForIntegers) {
  for (const DType dtype : kAllDTypes) {
    for (const auto& [low, high] : {std::pair{-1.5, 2.5}, {0.0, 1e30}, {-1e30, 0.3}}) {
      const Tensor x = random_values({101}, dtype, -4, 4);
      compare_with_cpu(
          device_test_call(OpId::kClip, {x}, {{x.shape(), dtype}}, ClipAttributes{low, high}));
    }
  }
}

TEST(CudaElementwise, ALaunchIsLimitedButNotWhatItComputes) {
  const std::int64_t size = 65'535 * 256 + 1000;  // one element per thread where nothing is aligned
  const Tensor x = random_values({size}, DType::kUInt8, 0, 200);
  compare_with_cpu(device_test_call(OpId::kSquare, {x}, {{x.shape(), DType::kUInt8}}), {}, 1);
}

TEST(CudaElementwise, DropoutHasTheMaskOfTheCpu) {
  const RandomKey key{17, kDropoutPurpose, 3, 2, 1};
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    for (const std::int64_t size : {1, 5, 64, 4099}) {
      const Tensor x = random_values({size}, dtype, -4, 4);
      const OpCall call =
          device_test_call(OpId::kDropout, {x}, {{x.shape(), dtype}}, DropoutAttributes{0.3, key});
      EXPECT_TRUE(compare_with_cpu(call));
      compare_with_cpu(call, {}, 1);
    }
  }
}

TEST(CudaElementwise, ACapturedDropoutTakesItsKeyFromTheDevice) {
  const RandomKey captured{1, kDropoutPurpose, 1, 1, 1}, replayed{1, kDropoutPurpose, 2, 1, 1};
  const Tensor x = random_values({500}, DType::kFloat32, 1, 2);
  OpCall call = device_test_call(OpId::kDropout, {x}, {{x.shape(), DType::kFloat32}},
                                 DropoutAttributes{0.5, captured});
  const Tensor actual = testing::run_on_device(call, {0, &replayed})[0];
  testing::expect_same_bits(testing::run_on_device(call)[0],
                            run_kernel(reference_kernels(), call)[0]);
  call.attributes = DropoutAttributes{0.5, replayed};
  testing::expect_same_bits(actual, run_kernel(reference_kernels(), call)[0]);
}

TEST(CudaElementwise, SigmoidCrossEntropyGivesTheBitsOfTheCpu) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    const Tensor labels = random_values({40, 3}, dtype, 0, 1);
    const Tensor logits = random_values({40, 3}, dtype, -30, 30, 2);
    EXPECT_TRUE(compare_with_cpu(
        device_test_call(OpId::kSigmoidCrossEntropy, {labels, logits}, {{{40, 3}, dtype}})));
  }
}

}  // namespace cuda_elementwise_test
}  // namespace tutti
