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

/// Tensors of every floating type and many sizes, and integers between: more than one launch takes.
std::vector<Tensor> tensors_to_measure() {
  std::vector<Tensor> tensors;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    for (const std::int64_t size : {0, 1, 4096, 8195}) {  // a block is 4096
      tensors.push_back(random_values({size}, dtype, -2, 2, tensors.size()));
    }
  }
  for (std::int64_t i = 0; i < 100; ++i) {  // more than one launch takes
    tensors.push_back(random_values({i % 7, 3}, DType::kFloat32, -2, 2, tensors.size()));
  }
  return tensors;
}

TEST(CudaStatistics, CountsWhatIsNotFinite) {
  const double inf = std::numeric_limits<double>::infinity();
  DeviceArena arena;
  std::vector<DeviceTensor> tensors;
  std::vector<std::int64_t> expected;
  const auto add = [&](const Tensor& tensor, std::int64_t count) {
    tensors.push_back(arena.upload(tensor, tensors.size() % 3));
    expected.push_back(count);
  };
  for (const Tensor& tensor : tensors_to_measure()) {
    add(tensor, 0);
    add(tensor_of({2}, {1, 2}, DType::kInt32), 0);
  }
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    std::vector<double> values(9000, 65504.0);
    values[0] = std::nan("");
    values[8998] = -inf;
    values[8999] = inf;
    add(tensor_of({9000}, values, dtype), 3);
  }
  const DeviceTensor counts =
      arena.allocate({static_cast<std::int64_t>(tensors.size())}, DType::kInt64);
  cuda::count_non_finite(tensors, static_cast<std::int64_t*>(counts.data), arena.stream());
  expect_same_bits(arena.download(counts), Tensor::from<std::int64_t>(counts.shape, expected));
}

TEST(CudaStatistics, SumsOfSquaresAreExactToDouble) {
  DeviceArena arena;
  std::vector<DeviceTensor> tensors;
  std::vector<double> expected;
  for (const Tensor& tensor : tensors_to_measure()) {
    tensors.push_back(arena.upload(tensor, tensors.size() % 3));
    double sum = 0.0;
    for (const double value : tensor.to_doubles()) sum += value * value;
    expected.push_back(sum);
  }
  const DeviceTensor sums =
      arena.allocate({static_cast<std::int64_t>(tensors.size())}, DType::kFloat64);
  const auto calculate = [&] {
    cuda::sums_of_squares(tensors, static_cast<double*>(sums.data), arena, arena.stream());
    return arena.download(sums);
  };
  const Tensor actual = calculate();
  testing::expect_tensor(actual, sums.shape, expected, 1e-12);
  expect_same_bits(calculate(), actual);
}

}  // namespace cuda_combine_test
}  // namespace tutti
