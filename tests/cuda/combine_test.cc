// Values of replicas combined on a GPU have the bits of the canonical tree; copies, statistics.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>

#include "tests/cuda/device_call.h"
#include "tutti/cross_device_ops/canonical_tree.h"

namespace tutti {
namespace cuda_combine_test {

using testing::DeviceArena;
using testing::expect_error;
using testing::expect_same_bits;
using testing::random_values;
using testing::tensor_of;

struct ReplicaValues {
  ReplicaValues(DeviceArena& arena, std::size_t count, const Shape& shape, DType dtype,
                std::size_t misalignment) {
    for (std::size_t r = 0; r < count; ++r) {
      host.push_back(random_values(shape, dtype, -3, 3, r + 1));
      device.push_back(arena.upload(host.back(), misalignment));
      pointers.push_back(device.back().data);
    }
  }
  std::vector<Tensor> host;
  std::vector<DeviceTensor> device;
  std::vector<const void*> pointers;
};

TEST(CudaCombine, HasTheBitsOfTheCanonicalTree) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct, ReduceOp::kMean}) {
    for (const DType dtype : kAllDTypes) {
      if (dtype == DType::kBool && op != ReduceOp::kMin && op != ReduceOp::kMax) continue;
      if (op == ReduceOp::kMean && !is_floating(dtype)) continue;
      for (const std::size_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64}) {
        SCOPED_TRACE(concat(op, " of ", count, " ", dtype));
        DeviceArena arena;
        const Shape shape{count % 2 == 0 ? 301 : 1};
        const ReplicaValues values(arena, count, shape, dtype, count % 3 == 0 ? 1 : 0);
        const DeviceTensor result = arena.allocate(shape, dtype);
        const auto size = static_cast<std::size_t>(shape.num_elements());
        cuda::combine({op, dtype, values.pointers, result.data, size}, arena.stream());
        expect_same_bits(arena.download(result), reduce_tensors_along_tree(op, values.host, {}));
      }
    }
  }
}

TEST(CudaCombine, ReplacesOneOfItsInputsAndKeepsTheOthers) {
  DeviceArena arena;
  const ReplicaValues values(arena, 3, {1001}, DType::kFloat32, 0);
  cuda::combine({ReduceOp::kSum, DType::kFloat32, values.pointers, values.device[1].data, 1001},
                arena.stream());
  expect_same_bits(arena.download(values.device[1]),
                   reduce_tensors_along_tree(ReduceOp::kSum, values.host, {}));
  expect_same_bits(arena.download(values.device[2]), values.host[2]);
}

TEST(CudaCombine, NanWinsWhereverItStands) {
  DeviceArena arena;
  const Tensor a = tensor_of({3}, {1, std::nan(""), 2}, DType::kFloat32);
  const Tensor b = tensor_of({3}, {std::nan(""), 1, 3}, DType::kFloat32);
  const DeviceTensor result = arena.allocate({3}, DType::kFloat32);
  const std::vector<const void*> inputs{arena.upload(a).data, arena.upload(b).data};
  cuda::combine({ReduceOp::kMax, DType::kFloat32, inputs, result.data, 3}, arena.stream());
  testing::expect_tensor(arena.download(result), {3}, {std::nan(""), std::nan(""), 3});
}

TEST(CudaCombine, RefusesWhatItCannotDo) {
  DeviceArena arena;
  const ReplicaValues values(arena, 2, {3}, DType::kInt32, 0);
  void* const out = arena.allocate(64);
  expect_error(ErrorCode::kInvalidArgument, {"MEAN of integers"}, [&] {
    cuda::combine({ReduceOp::kMean, DType::kInt32, values.pointers, out, 3}, arena.stream());
  });
  expect_error(ErrorCode::kInvalidArgument, {"bool has MIN and MAX"}, [&] {
    cuda::combine({ReduceOp::kSum, DType::kBool, values.pointers, out, 3}, arena.stream());
  });
  expect_error(ErrorCode::kInvalidArgument, {"1 .. 64 inputs, got 0"}, [&] {
    cuda::combine({ReduceOp::kSum, DType::kInt32, {}, out, 3}, arena.stream());
  });
}

TEST(CudaCombine, DivisionRoundsAsTheMeanOfTheCpu) {
  DeviceArena arena;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kInt32, DType::kUInt8}) {
    const Tensor x = random_values({77}, dtype, 0, 100);
    const DType result_type = is_floating(dtype) ? dtype : DType::kFloat32;
    const DeviceTensor result = arena.allocate({77}, result_type);
    cuda::divide(arena.upload(x), 3.0, result, arena.stream());
    // The mean of x and two zeros.
    const Tensor zero = Tensor::zeros({77}, dtype);
    const std::vector<Tensor> values{x, zero, zero};
    expect_same_bits(arena.download(result),
                     reduce_tensors_along_tree(ReduceOp::kMean, values, {}));
  }
}

TEST(CudaCopyMany, PacksAndUnpacksWhateverTheAlignment) {
  DeviceArena arena;
  std::vector<Tensor> parts;
  std::vector<DeviceCopy> copies;
  std::size_t total = 0;
  for (int i = 0; i < 300; ++i) {  // more than one launch takes
    const std::int64_t size = i == 7 ? 100'001 : i * i % 97;
    parts.push_back(random_values({size}, DType::kUInt8, 0, 255, static_cast<std::uint64_t>(i)));
    total += static_cast<std::size_t>(size);
  }
  auto* const packed = static_cast<std::byte*>(arena.allocate(total));
  std::size_t offset = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t bytes = parts[i].num_bytes();
    copies.push_back({packed + offset, arena.upload(parts[i], i % 5).data, bytes});
    offset += bytes;
  }
  cuda::copy_many(copies, arena.stream());
  std::vector<std::byte> actual(total);
  arena.read(actual.data(), packed, total);
  offset = 0;
  for (const Tensor& part : parts) {
    EXPECT_EQ(std::memcmp(actual.data() + offset, part.bytes().data(), part.num_bytes()), 0);
    offset += part.num_bytes();
  }
}

TEST(CudaStatistics, FindsWhatIsNotFinite) {
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    DeviceArena arena;
    std::vector<double> values(9000, 1.0);
    std::vector<DeviceTensor> tensors{arena.upload(tensor_of({9000}, values, dtype)),
                                      arena.upload(tensor_of({2}, {1, 2}, DType::kInt32))};
    auto* const result = static_cast<cuda::NonFinite*>(arena.allocate(sizeof(cuda::NonFinite)));
    cuda::NonFinite found;
    const auto search = [&] {
      cuda::find_non_finite(tensors, result, arena.stream());
      arena.read(&found, result, sizeof(found));
    };
    search();
    EXPECT_EQ(found.count, 0);
    EXPECT_EQ(found.first, -1);
    values[8999] = std::nan("");
    values[8998] = -std::numeric_limits<double>::infinity();
    tensors.push_back(arena.upload(tensor_of({9000}, values, dtype)));
    search();
    EXPECT_EQ(found.count, 2);
    EXPECT_EQ(found.first, 9000 + 2 + 8998);
  }
}

TEST(CudaStatistics, SumsOfSquaresAreExactToDoubleAndAccumulate) {
  DeviceArena arena;
  auto* const result = static_cast<double*>(arena.allocate(sizeof(double)));
  double expected = 0.0;
  bool is_first = true;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    for (const std::int64_t size : {0, 1, 5000, 20'000}) {
      const Tensor x = random_values({size}, dtype, -2, 2);
      for (const double value : x.to_doubles()) expected += value * value;
      const cuda::AccumulateOptions options{!is_first};
      cuda::sum_of_squares(arena.upload(x), result, options, arena, arena.stream());
      is_first = false;
    }
  }
  double actual = 0.0;
  arena.read(&actual, result, sizeof(actual));
  EXPECT_NEAR(actual, expected, 1e-9 * expected);
}

}  // namespace cuda_combine_test
}  // namespace tutti
