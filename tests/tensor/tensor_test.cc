// Tensors: making, reading, views, identity, immutability, gradients as values.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/gradient.h"

namespace tutti {
namespace {

using testing::expect_error;
using testing::expect_tensor;

constexpr Device kSecondCpu{DeviceType::kCpu, 1};

TEST(Tensor, IsMadeFromValues) {
  expect_tensor(Tensor::from<float>({2, 2}, {1, 2, 3, 4}), {2, 2}, {1, 2, 3, 4});
  expect_tensor(Tensor::from({3}, std::vector<std::int64_t>{7, 8, 9}), {3}, {7, 8, 9});
  expect_tensor(Tensor::from<bool>({2}, {true, false}), {2}, {1, 0});
  expect_tensor(Tensor::from<float>({0, 3}, {}), {0, 3}, {});
  expect_tensor(Tensor(2.5f), {}, {2.5});
  EXPECT_EQ(Tensor(2.5f).dtype(), DType::kFloat32);
  EXPECT_INVALID(Tensor::from<float>({2, 3}, {1, 2, 3, 4, 5}), "expected 6 elements", "[2, 3]",
                 "got 5");
}

TEST(Tensor, HasANumberOfItsOwnWhicheverThreadMadeIt) {
  constexpr std::size_t kThreads = 4, kEach = 3000;
  std::vector<std::vector<std::uint64_t>> ids(kThreads);
  std::vector<std::unique_ptr<Thread>> threads;
  for (auto& own : ids) {
    threads.push_back(Executor::system().start("makes-tensors", [&own] {
      for (std::size_t i = 0; i < kEach; ++i) own.push_back(Tensor(1.0f).id());
    }));
  }
  for (const auto& thread : threads) thread->join();
  std::set<std::uint64_t> all = {0};  // that of no tensor
  for (const auto& own : ids) all.insert(own.begin(), own.end());
  EXPECT_EQ(all.size(), kThreads * kEach + 1);
}

// `x[0][1] = 3.0f` would change a tensor of its own, which is gone at the end of the line.
TEST(Tensor, AssignmentToTemporaryDoesNotCompile) {
  using Part = decltype(std::declval<Tensor&>()[0][1]);
  EXPECT_FALSE((std::is_assignable_v<Part, float>));
  EXPECT_FALSE((std::is_assignable_v<Part, Tensor>));
  EXPECT_FALSE((std::is_assignable_v<Part, const Tensor&>));
  EXPECT_FALSE((std::is_assignable_v<decltype(Tensor::zeros({2})), Tensor>));
  EXPECT_TRUE((std::is_assignable_v<Tensor&, float>));
  EXPECT_TRUE((std::is_assignable_v<Tensor&, Tensor>));
  EXPECT_TRUE((std::is_nothrow_move_constructible_v<Tensor>));
}

TEST(Tensor, IsFilledInEveryType) {
  for (DType dtype : kAllDTypes) {
    EXPECT_EQ(Tensor::zeros({3}, dtype).to_doubles(), (std::vector<double>{0, 0, 0}));
    EXPECT_EQ(Tensor::ones({2}, dtype).to_doubles(), (std::vector<double>{1, 1}));
    EXPECT_EQ(Tensor::scalar(1, dtype).shape(), Shape{});
    EXPECT_EQ(Tensor::zeros({0, 2}, dtype).num_elements(), 0);
  }
  EXPECT_EQ(Tensor::full({2}, -3.5, DType::kFloat64).to_doubles(), (std::vector{-3.5, -3.5}));
  EXPECT_EQ(Tensor::full({}, 5, DType::kBool).item_int(), 1);
}

TEST(Tensor, RefusesNumbersThatItsTypeCannotHold) {
  for (double value : {0.5, -1.0, 256.0, 1e300, std::nan("")}) {
    EXPECT_INVALID(Tensor::full({1}, value, DType::kUInt8), "Tensor::full", "uint8");
  }
  EXPECT_INVALID(Tensor::full({1}, 2147483648.0, DType::kInt32), "int32");
  EXPECT_INVALID(Tensor::full({1}, 9223372036854775808.0, DType::kInt64), "int64");
  EXPECT_EQ(Tensor::full({}, -2147483648.0, DType::kInt32).item_int(), -2147483648LL);
}

TEST(Tensor, ItemWantsExactlyOneElement) {
  EXPECT_EQ(Tensor::from<std::int64_t>({1, 1}, {42}).item_int(), 42);
  EXPECT_EQ(Tensor::from<double>({1}, {0.1}).item_double(), 0.1);
  EXPECT_EQ(Tensor::from<bool>({1}, {true}).item(), 1.0f);
  EXPECT_INVALID(Tensor::zeros({2}).item(), "Tensor::item", "[2]");
  EXPECT_INVALID(Tensor::zeros({0}).item_double(), "[0]");
}

TEST(Tensor, HostSpanWantsTheRightType) {
  const Tensor tensor = Tensor::zeros({2}, DType::kInt64);
  EXPECT_EQ(tensor.host_span<std::int64_t>().size(), 2u);
  EXPECT_INVALID(tensor.host_span<float>(), "expected float32", "int64", "[2]");
}

TEST(Tensor, UndefinedTensorsSaySo) {
  const Tensor tensor;
  EXPECT_FALSE(tensor.defined());
  EXPECT_EQ(tensor.id(), 0u);
  EXPECT_EQ(tensor.to_string(), "Tensor(undefined)");
  for (const auto& use : std::vector<std::function<void()>>{
           [&] { tensor.shape(); }, [&] { tensor.dtype(); }, [&] { tensor.device(); },
           [&] { tensor.item(); }, [&] { tensor.host_span<float>(); }, [&] { tensor.bytes(); },
           [&] { tensor.to(Device{}); }, [&] { tensor.detached_rows(0, 1); },
           [&] { tensor.alias(); }}) {
    expect_error(ErrorCode::kFailedPrecondition, {"undefined"}, use);
  }
}

TEST(Tensor, MovesBetweenDevicesShareStorageUnderANewIdentity) {
  const Tensor here = Tensor::from<float>({2}, {1, 2});
  const Tensor there = here.to(kSecondCpu);
  EXPECT_EQ(there.device(), kSecondCpu);
  EXPECT_EQ(there.bytes().data(), here.bytes().data());
  EXPECT_NE(there.id(), here.id());
  EXPECT_EQ(here.to("cpu:0").id(), here.id());
  EXPECT_ERROR(here.to({DeviceType::kGpu, 77}), kUnavailable, "gpu:77");
}

TEST(Tensor, CopiesShareIdentityAndAliasesDoNot) {
  const Tensor tensor = Tensor::zeros({2, 3});
  const Tensor copy = tensor;  // NOLINT: the copy is the point
  EXPECT_EQ(copy.id(), tensor.id());
  EXPECT_NE(tensor.alias().id(), tensor.id());
  EXPECT_NE(tensor.id(), Tensor::zeros({2, 3}).id());
  EXPECT_EQ(tensor.alias().bytes().data(), tensor.bytes().data());
}

TEST(Tensor, RowsAndReshapedAreViews) {
  const Tensor tensor = Tensor::from<std::int32_t>({3, 2}, {1, 2, 3, 4, 5, 6});
  const Tensor rows = tensor.detached_rows(1, 2);
  expect_tensor(rows, {2, 2}, {3, 4, 5, 6});
  EXPECT_EQ(rows.bytes().data(), tensor.bytes().data() + 8);
  expect_tensor(rows.detached_rows(1, 1), {1, 2}, {5, 6});
  expect_tensor(tensor.detached_rows(3, 0), {0, 2}, {});
  expect_tensor(rows.detached_reshape({4}), {4}, {3, 4, 5, 6});
  expect_tensor(Tensor::zeros({0, 2}).detached_rows(0, 0), {0, 2}, {});
  EXPECT_INVALID(tensor.detached_rows(2, 2), "rows", "[3, 2]", "first 2 and count 2");
  EXPECT_INVALID(tensor.detached_rows(-1, 1), "rows");
  EXPECT_INVALID(Tensor(1.0f).detached_rows(0, 1), "rows");
  EXPECT_INVALID(tensor.detached_reshape({4}), "[3, 2]", "[4]");
}

TEST(Tensor, PrintsForPeople) {
  EXPECT_EQ(Tensor::from<float>({2, 2}, {1, 2.5, -3, 4}).to_string(),
            "Tensor(shape=[2, 2], dtype=float32, device=cpu:0, [[1, 2.5], [-3, 4]])");
  EXPECT_EQ(Tensor::from<bool>({2}, {true, false}).to_string(),
            "Tensor(shape=[2], dtype=bool, device=cpu:0, [true, false])");
  EXPECT_EQ(Tensor::full({}, 7, DType::kUInt8).to_string(),
            "Tensor(shape=[], dtype=uint8, device=cpu:0, 7)");
  const std::string large = Tensor::zeros({100}).to_string();
  EXPECT_NE(large.find("0, ...]"), std::string::npos) << large;
  EXPECT_LT(large.size(), 200u);
  EXPECT_EQ(Tensor::zeros({0}).to_string(), "Tensor(shape=[0], dtype=float32, device=cpu:0, [])");
}

TEST(MutableTensor, WritesAfterFreezeDoNotReachTheTensor) {
  MutableTensor value({2}, DType::kFloat32, {});
  value.span<float>()[0] = 1.0f;
  value.span<float>()[1] = 2.0f;
  const Tensor before = value.freeze();
  EXPECT_EQ(before.bytes().data(), value.data());
  value.make_unique();
  value.span<float>()[0] = 9.0f;
  expect_tensor(before, {2}, {1, 2});
  expect_tensor(value.freeze(), {2}, {9, 2});
}

TEST(MutableTensor, MakeUniqueCopiesOnlyWhenShared) {
  MutableTensor value({2}, DType::kFloat32, {});
  const std::byte* storage = value.data();
  value.make_unique();
  EXPECT_EQ(value.data(), storage);
  { const Tensor view = value.freeze(); }
  value.make_unique();
  EXPECT_EQ(value.data(), storage);
  const Tensor view = value.freeze();
  value.make_unique();
  EXPECT_NE(value.data(), storage);
}

TEST(MutableTensor, AssignSharesWholeTensorsAndCopiesParts) {
  const Tensor source = Tensor::from<float>({4}, {1, 2, 3, 4});
  MutableTensor value({4}, DType::kFloat32, kSecondCpu);
  value.assign(source);
  EXPECT_EQ(value.data(), source.bytes().data());
  EXPECT_EQ(value.device(), kSecondCpu);
  value.make_unique();
  value.span<float>()[0] = 7.0f;
  expect_tensor(source, {4}, {1, 2, 3, 4});

  for (const Tensor& part : {source.detached_rows(0, 2), source.detached_rows(2, 2)}) {
    MutableTensor half({2}, DType::kFloat32, {});
    half.assign(part);
    EXPECT_NE(half.data(), part.bytes().data());
    expect_tensor(half.freeze(), {2}, part.to_doubles());
  }
  EXPECT_INVALID(value.assign(source.detached_rows(0, 2)), "assign", "[4]", "[2]");
  EXPECT_INVALID(value.assign(Tensor::zeros({4}, DType::kInt32)), "float32", "int32");
}

TEST(Gradient, KnowsItsKind) {
  const Gradient none;
  const Gradient dense(Tensor::ones({2}));
  const Gradient sparse(
      IndexedSlices{Tensor::ones({1, 2}), Tensor::from<std::int64_t>({1}, {0}), {3, 2}});
  EXPECT_TRUE(none.is_none());
  EXPECT_TRUE(Gradient(Tensor()).is_none());
  EXPECT_TRUE(dense.is_dense());
  EXPECT_TRUE(sparse.is_slices());
  expect_tensor(dense.to_dense(), {2}, {1, 1});
  EXPECT_ERROR(none.to_dense(), kFailedPrecondition, "none");
  EXPECT_ERROR(sparse.dense(), kFailedPrecondition, "IndexedSlices");
  EXPECT_ERROR(dense.slices(), kFailedPrecondition, "dense");
}

TEST(IndexedSlices, AddUpRowsThatOccurSeveralTimes) {
  const IndexedSlices slices{Tensor::from<float>({3, 2}, {1, 2, 10, 20, 100, 200}),
                             Tensor::from<std::int64_t>({3}, {2, 0, 2}),
                             {4, 2}};
  expect_tensor(slices.to_dense(), {4, 2}, {10, 20, 0, 0, 101, 202, 0, 0});
  const IndexedSlices empty{Tensor::zeros({0, 2}), Tensor::zeros({0}, DType::kInt64), {2, 2}};
  expect_tensor(empty.to_dense(), {2, 2}, {0, 0, 0, 0});
}

}  // namespace
}  // namespace tutti
