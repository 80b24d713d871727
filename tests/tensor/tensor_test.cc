// Tests tensors (creation, access, views, identity), types, shapes and broadcasting, operators,
// indexing, and distributions of random tensors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/tensor.h"

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/gradient.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/ops/random_ops.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/shape.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::testing::tensor_test {

constexpr Device kSecondCpu{DeviceType::kCpu, 1};

TEST(Tensor, CanBeCreatedFromValues) {
  expect_tensor(Tensor::from<float>({2, 2}, {1, 2, 3, 4}), {2, 2}, {1, 2, 3, 4});
  expect_tensor(Tensor::from({3}, std::vector<std::int64_t>{7, 8, 9}), {3}, {7, 8, 9});
  expect_tensor(Tensor::from<bool>({2}, {true, false}), {2}, {1, 0});
  expect_tensor(Tensor::from<float>({0, 3}, {}), {0, 3}, {});
  expect_tensor(Tensor(2.5f), {}, {2.5});
  EXPECT_EQ(Tensor(2.5f).dtype(), DType::kFloat32);
  EXPECT_INVALID(Tensor::from<float>({2, 3}, {1, 2, 3, 4, 5}), "expected 6 elements", "[2, 3]",
                 "got 5");
}

TEST(Tensor, IdsAreUniqueAcrossThreads) {
  constexpr std::size_t kThreads = 4, kEach = 3000;
  std::vector<std::vector<std::uint64_t>> ids(kThreads);
  std::vector<std::unique_ptr<Thread>> threads;
  for (auto& own : ids) {
    threads.push_back(Executor::system().start("makes-tensors", [&own] {
      for (std::size_t i = 0; i < kEach; ++i) own.push_back(Tensor(1.0f).id());
    }));
  }
  for (const auto& thread : threads) thread->join();
  std::set<std::uint64_t> all = {0};  // 0 is the id of an undefined tensor
  for (const auto& own : ids) all.insert(own.begin(), own.end());
  EXPECT_EQ(all.size(), kThreads * kEach + 1);
}

// `x[0][1] = 3.0f` would change a temporary tensor, which is destroyed at the end of the statement.
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

TEST(Tensor, FillsTensorsOfEveryType) {
  for (DType dtype : kAllDTypes) {
    EXPECT_EQ(Tensor::zeros({3}, dtype).to_doubles(), (std::vector<double>{0, 0, 0}));
    EXPECT_EQ(Tensor::ones({2}, dtype).to_doubles(), (std::vector<double>{1, 1}));
    EXPECT_EQ(Tensor::scalar(1, dtype).shape(), Shape{});
    EXPECT_EQ(Tensor::zeros({0, 2}, dtype).num_elements(), 0);
  }
  EXPECT_EQ(Tensor::full({2}, -3.5, DType::kFloat64).to_doubles(), (std::vector{-3.5, -3.5}));
  EXPECT_EQ(Tensor::full({}, 5, DType::kBool).item_int(), 1);
}

TEST(Tensor, RejectsValuesOutsideTypeRange) {
  for (double value : {0.5, -1.0, 256.0, 1e300, std::nan("")}) {
    EXPECT_INVALID(Tensor::full({1}, value, DType::kUInt8), "Tensor::full", "uint8");
  }
  EXPECT_INVALID(Tensor::full({1}, 2147483648.0, DType::kInt32), "int32");
  EXPECT_INVALID(Tensor::full({1}, 9223372036854775808.0, DType::kInt64), "int64");
  EXPECT_EQ(Tensor::full({}, -2147483648.0, DType::kInt32).item_int(), -2147483648LL);
}

TEST(Tensor, ItemNeedsOneElementAndHostSpanNeedsMatchingType) {
  EXPECT_EQ(Tensor::from<std::int64_t>({1, 1}, {42}).item_int(), 42);
  EXPECT_EQ(Tensor::from<double>({1}, {0.1}).item_double(), 0.1);
  EXPECT_EQ(Tensor::from<bool>({1}, {true}).item(), 1.0f);
  EXPECT_INVALID(Tensor::zeros({2}).item(), "Tensor::item", "[2]");
  EXPECT_INVALID(Tensor::zeros({0}).item_double(), "[0]");
  const Tensor tensor = Tensor::zeros({2}, DType::kInt64);
  EXPECT_EQ(tensor.host_span<std::int64_t>().size(), 2u);
  EXPECT_INVALID(tensor.host_span<float>(), "expected float32", "int64", "[2]");
}

TEST(Tensor, UseOfUndefinedTensorFails) {
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

TEST(Tensor, MovingBetweenCpuDevicesSharesStorage) {
  const Tensor here = Tensor::from<float>({2}, {1, 2});
  const Tensor there = here.to(kSecondCpu);
  EXPECT_EQ(there.device(), kSecondCpu);
  EXPECT_EQ(there.bytes().data(), here.bytes().data());
  EXPECT_NE(there.id(), here.id());
  EXPECT_EQ(here.to("cpu:0").id(), here.id());
  EXPECT_ERROR(here.to({DeviceType::kGpu, 77}), kUnavailable, "gpu:77");
}

TEST(Tensor, CopiesShareIdentityButAliasesDoNot) {
  const Tensor tensor = Tensor::zeros({2, 3});
  const Tensor copy = tensor;  // NOLINT: the copy is the point
  EXPECT_EQ(copy.id(), tensor.id());
  EXPECT_NE(tensor.alias().id(), tensor.id());
  EXPECT_NE(tensor.id(), Tensor::zeros({2, 3}).id());
  EXPECT_EQ(tensor.alias().bytes().data(), tensor.bytes().data());
}

TEST(Tensor, RowRangesAndReshapedTensorsAreViews) {
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

TEST(Tensor, PrintsHumanReadableText) {
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

TEST(MutableTensor, WritesAfterFreezeDoNotAffectTensor) {
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

TEST(MutableTensor, AssignSharesWholeTensorsAndCopiesSlices) {
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

TEST(Gradient, ReportsItsKind) {
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

TEST(IndexedSlices, ToDenseAddsDuplicateRows) {
  const IndexedSlices slices{Tensor::from<float>({3, 2}, {1, 2, 10, 20, 100, 200}),
                             Tensor::from<std::int64_t>({3}, {2, 0, 2}),
                             {4, 2}};
  expect_tensor(slices.to_dense(), {4, 2}, {10, 20, 0, 0, 101, 202, 0, 0});
  const IndexedSlices empty{Tensor::zeros({0, 2}), Tensor::zeros({0}, DType::kInt64), {2, 2}};
  expect_tensor(empty.to_dense(), {2, 2}, {0, 0, 0, 0});
}

TEST(DType, MatchesNumPyNamesAndSizes) {
  const std::vector<std::pair<DType, std::pair<const char*, std::size_t>>> table = {
      {DType::kFloat32, {"float32", 4}},   {DType::kFloat64, {"float64", 8}},
      {DType::kInt32, {"int32", 4}},       {DType::kInt64, {"int64", 8}},
      {DType::kUInt8, {"uint8", 1}},       {DType::kBool, {"bool", 1}},
      {DType::kBFloat16, {"bfloat16", 2}}, {DType::kFloat16, {"float16", 2}}};
  for (const auto& [dtype, expected] : table) {
    EXPECT_EQ(to_string(dtype), expected.first);
    EXPECT_EQ(size_of(dtype), expected.second);
    EXPECT_EQ(parse_dtype(expected.first), dtype);
  }
  EXPECT_INVALID(parse_dtype("float8"), "float32, float64, int32", "'float8'");
}

TEST(DType, EnumValuesAreStable) {  // these values are part of the plugin ABI
  EXPECT_EQ(static_cast<int>(DType::kFloat32), 0);
  EXPECT_EQ(static_cast<int>(DType::kInt64), 3);
  EXPECT_EQ(static_cast<int>(DType::kBool), 5);
  EXPECT_EQ(static_cast<int>(DType::kBFloat16), 6);
  EXPECT_EQ(static_cast<int>(DType::kFloat16), 7);
}

TEST(ReduceOp, ParsesCaseInsensitively) {
  EXPECT_EQ(parse_reduce_op("sum"), ReduceOp::kSum);
  EXPECT_EQ(parse_reduce_op("Mean"), ReduceOp::kMean);
  EXPECT_EQ(to_string(ReduceOp::kProduct), "PRODUCT");
  EXPECT_INVALID(parse_reduce_op("average"), "SUM, MEAN, MIN, MAX, PRODUCT", "'average'");
}

TEST(OpId, EveryOperationHasUniqueName) {
  std::vector<std::string> names;
  for (int op = 0; op < static_cast<int>(OpId::kCount); ++op) {
    names.emplace_back(to_string(static_cast<OpId>(op)));
  }
  EXPECT_EQ(to_string(OpId::kScatterRows), "scatter_rows");
  EXPECT_EQ(to_string(OpId::kMatMul), "matmul");
  std::ranges::sort(names);
  EXPECT_EQ(std::ranges::adjacent_find(names), names.end());
}

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape{}.num_elements(), 1);
  EXPECT_EQ((Shape{2, 3, 4}).num_elements(), 24);
  EXPECT_EQ((Shape{0, 3}).num_elements(), 0);
  EXPECT_EQ((Shape{std::int64_t{1} << 62, 0}).num_elements(), 0);
  EXPECT_EQ((Shape{INT64_MAX, 1}).num_elements(), INT64_MAX);
}

// A dimension of 0 does not prevent the error, because products of the other dimensions are used as
// strides and row sizes.
TEST(Shape, RejectsElementCountOverflow) {
  constexpr std::int64_t kHuge = INT64_MAX;
  for (const std::vector<std::int64_t>& dims : std::vector<std::vector<std::int64_t>>{
           {std::int64_t{1} << 62, 2}, {0, kHuge, kHuge}, {kHuge, 0, kHuge}, {kHuge, kHuge, 0}}) {
    EXPECT_EQ(Shape::count(dims), std::nullopt);
    EXPECT_INVALID(const Shape shape{std::span<const std::int64_t>(dims)},
                   concat("[", join(dims), "]"), "more elements");
  }
  const Shape fits{0, kHuge};
  EXPECT_INVALID(fits.with_front(2), "more elements");
  EXPECT_INVALID(fits.with_dim(0, 2), "more elements");
  EXPECT_INVALID(broadcast({kHuge, 1}, {1, 2}, "test"), "more elements");
  const std::int64_t with_zero[] = {0, 3, 4};
  EXPECT_EQ(Shape::count(with_zero), 12);
  EXPECT_EQ(Shape::count({}), 1);
}

TEST(Shape, RejectsNegativeAndTooManyDimensions) {
  EXPECT_INVALID((Shape{2, -1}), "[2, -1]");
  EXPECT_INVALID((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), "at most 8");
  EXPECT_INVALID((Shape{1, 1, 1, 1, 1, 1, 1, 1}).with_front(2), "at most 8");
}

TEST(Shape, NegativeAxesCountFromTheEnd) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.dim(-1), 4);
  EXPECT_EQ(shape[0], 2);
  EXPECT_EQ(shape.normalized_axis(-3, "test"), 0);
  EXPECT_INVALID(shape.normalized_axis(3, "my op"), "my op", "axis 3", "[2, 3, 4]");
  EXPECT_INVALID(shape.dim(-4), "axis -4");
}

TEST(Shape, ReplacesRemovesAndPrependsAxes) {
  const Shape shape{2, 3, 4};
  EXPECT_EQ(shape.with_dim(1, 7), (Shape{2, 7, 4}));
  EXPECT_EQ(shape.without_axis(0), (Shape{3, 4}));
  EXPECT_EQ(shape.without_axis(-1), (Shape{2, 3}));
  EXPECT_EQ(shape.with_front(5), (Shape{5, 2, 3, 4}));
  EXPECT_EQ(shape.to_string(), "[2, 3, 4]");
  EXPECT_NE(shape, (Shape{2, 3}));
}

TEST(Shape, BroadcastsLikeNumPy) {
  EXPECT_EQ(broadcast({2, 3}, {3}, "test"), (Shape{2, 3}));
  EXPECT_EQ(broadcast({2, 1}, {1, 5}, "test"), (Shape{2, 5}));
  EXPECT_EQ(broadcast({}, {4}, "test"), (Shape{4}));
  EXPECT_EQ(broadcast({0, 3}, {1, 3}, "test"), (Shape{0, 3}));
  EXPECT_EQ(broadcast({0}, {1}, "test"), (Shape{0}));
  EXPECT_FALSE(try_broadcast({2, 3}, {4}));
  EXPECT_FALSE(try_broadcast({0}, {2}));
  EXPECT_INVALID(broadcast({2, 3}, {4}, "my op"), "my op", "[2, 3]", "[4]");
}

constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;

TEST(TensorShorthand, InitializerListCreatesTensor) {
  const Tensor t = {1.f, 2.f, 3.5f};
  EXPECT_EQ(t.dtype(), DType::kFloat32);
  expect_tensor(t, {3}, {1, 2, 3.5});
  const Tensor nothing = {};
  EXPECT_FALSE(nothing.defined());
}

TEST(TensorShorthand, IndicesRemoveAxesButRangesDoNot) {
  const Tensor x = cast(arange(24), DType::kFloat32).reshape({2, 3, 4});
  expect_tensor(x[1], {3, 4}, {12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
  expect_tensor(x[-1][0], {4}, {12, 13, 14, 15});
  expect_tensor(x[{0, 2, 3}], {}, {11});
  expect_tensor(x[Range{0, 1}], {1, 3, 4}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
  expect_tensor(x[{Range{}, 1, Range{-2}}], {2, 2}, {6, 7, 18, 19});
  expect_tensor(x[{1, Range{2, 9}}], {1, 4}, {20, 21, 22, 23});
  EXPECT_EQ((x[{Range{2, 1}}].shape()), (Shape{0, 3, 4}));
  expect_error(kInvalid, {concat("operator[] at tensor_test.cc:", __LINE__ + 1), "axis 0", "got 2"},
               [&] { x[2]; });
  EXPECT_INVALID((x[{0, 0, 0, 0}]), "operator[] at tensor_test.cc:", "[2, 3, 4]", "at most 3");
  EXPECT_INVALID((x[{0, -4}]), "-3 .. 2", "axis 1");
}

TEST(TensorShorthand, MembersMatchReductionFunctions) {
  const Tensor x = random_values({3, 4}, DType::kFloat64, -2, 2);
  expect_same_bits(x.sum(), reduce_sum(x));
  expect_same_bits(x.mean(1, true), reduce_mean(x, {.axes = {1}, .keep_dims = true}));
  expect_same_bits(reduce_sum(x, 1), reduce_sum(x, {.axes = {1}}));
  expect_same_bits(reduce_max(x, -1, true), x.max(1, true));
  expect_same_bits(x.min(0), reduce_min(x, 0));
  expect_same_bits(x.reshape({2, -1}), reshape(x, {2, 6}));
  expect_error(kInvalid, {concat("reduce_sum at tensor_test.cc:", __LINE__ + 1)},
               [&] { x.sum(2); });
}

TEST(TensorShorthand, OperatorsCompareAndAssignElementwise) {
  const Tensor a = {1.f, 2.f, 3.f};
  expect_tensor(a < 2, {3}, {1, 0, 0});
  expect_tensor(2 <= a, {3}, {0, 1, 1});
  expect_tensor(a == a, {3}, {1, 1, 1});
  expect_tensor(a != Tensor{1.f, 0.f, 3.f}, {3}, {0, 1, 0});
  expect_tensor(a > 2.5, {3}, {0, 0, 1});
  expect_tensor(a >= 3, {3}, {0, 0, 1});
  Tensor b = a;
  b += 1;
  b *= b;
  b -= a;
  b /= 2.0;
  expect_tensor(b, {3}, {1.5, 3.5, 6.5});
  expect_tensor(a, {3}, {1, 2, 3});  // assignments to the copy do not change the original
}

TEST(IntegerArithmetic, DivisionFloorsAndRemainderHasDivisorSign) {
  const Tensor a = Tensor::from<std::int32_t>({8}, {7, -7, 7, -7, 6, -6, 5, 0});
  const Tensor b = Tensor::from<std::int32_t>({8}, {2, 2, -2, -2, 3, 3, 0, 5});
  expect_tensor(floor_divide(a, b), {8}, {3, -4, -4, 3, 2, -2, 0, 0});
  expect_tensor(a % b, {8}, {1, 1, -1, -1, 0, 0, 0, 0});
  const auto lowest = std::numeric_limits<std::int64_t>::min();
  const Tensor edge = Tensor::from<std::int64_t>({2}, {lowest, lowest + 1});
  expect_same_bits(floor_divide(edge, -1),
                   Tensor::from<std::int64_t>({2}, {lowest, -(lowest + 1)}));
  expect_tensor(edge % -1, {2}, {0, 0});
  const Tensor large = Tensor::from<std::int64_t>({1}, {(std::int64_t{1} << 62) + 1});
  EXPECT_EQ((large % 10).item_int(), 5);  // the number exceeds the precision of a double
  expect_tensor(Tensor::from<std::uint8_t>({2}, {200, 7}) % 64, {2}, {8, 7});
}

TEST(IntegerArithmetic, PowersWrapAround) {
  const Tensor base = Tensor::from<std::int32_t>({6}, {3, -2, 0, 7, 10, 1});
  const Tensor exponent = Tensor::from<std::int32_t>({6}, {4, 5, 0, 1, 10, 1000});
  expect_tensor(tutti::pow(base, exponent), {6}, {81, -32, 1, 7, 1410065408, 1});
  const Tensor down = Tensor::from<std::int32_t>({4}, {1, -1, -1, 2});
  expect_tensor(tutti::pow(down, Tensor::from<std::int32_t>({4}, {-3, -3, -2, -1})), {4},
                {1, -1, 1, 0});
}

TEST(Creation, RangeExcludesStop) {
  EXPECT_EQ(arange(5).dtype(), DType::kInt64);
  expect_tensor(arange(5), {5}, {0, 1, 2, 3, 4});
  expect_tensor(arange(2, 9, 3), {3}, {2, 5, 8});
  expect_tensor(arange(5, 0, -2), {3}, {5, 3, 1});
  expect_tensor(arange(3, 3), {0}, {});
  EXPECT_EQ(arange(0.0, 1.0, 0.25).dtype(), DType::kFloat32);
  expect_tensor(arange(0.0, 1.0, 0.25), {4}, {0, 0.25, 0.5, 0.75});
  expect_tensor(arange(0, 3, 1, DType::kFloat64), {3}, {0, 1, 2});
  EXPECT_INVALID(arange(0, 3, 0), "arange", "step");
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(arange(kLeast, kMost, kMost).num_elements(), 3);
  EXPECT_EQ(arange(kMost, kLeast, kLeast).num_elements(), 2);
  EXPECT_INVALID(arange(kLeast, kMost), "arange", "2^48");
  EXPECT_INVALID(arange(0.0, std::nan("")), "arange", "finite");
}

TEST(Creation, LinspaceIncludesStop) {
  expect_tensor(linspace(0, 1, 5), {5}, {0, 0.25, 0.5, 0.75, 1});
  expect_tensor(linspace(3, -3, 3, DType::kInt32), {3}, {3, 0, -3});
  expect_tensor(linspace(2, 9, 1), {1}, {2});
  const Tensor thirds = linspace(0, 0.1, 4, DType::kFloat64);
  EXPECT_EQ(thirds.to_doubles()[3], 0.1);
  EXPECT_INVALID(linspace(0, 1, -1), "linspace", "-1");
}

TEST(Creation, CreatesEyeZerosLikeAndOnesLike) {
  expect_tensor(eye(2), {2, 2}, {1, 0, 0, 1});
  expect_tensor(eye(2, 3, DType::kInt32), {2, 3}, {1, 0, 0, 0, 1, 0});
  expect_tensor(eye(3, 2), {3, 2}, {1, 0, 0, 1, 0, 0});
  EXPECT_EQ(eye(0).shape(), (Shape{0, 0}));
  const Tensor x = Tensor::full({2, 1}, 7, DType::kInt32);
  expect_same_bits(zeros_like(x), Tensor::zeros({2, 1}, DType::kInt32));
  expect_same_bits(ones_like(x), Tensor::ones({2, 1}, DType::kInt32));
}

TEST(Creation, TrilAndTriuAcceptDiagonalOffset) {
  const Tensor x = arange(1, 10).reshape({3, 3});
  expect_tensor(tril(x, 1), {3, 3}, {1, 2, 0, 4, 5, 6, 7, 8, 9});
  expect_tensor(tril(x, -1), {3, 3}, {0, 0, 0, 4, 0, 0, 7, 8, 0});
  expect_tensor(triu(x, 1), {3, 3}, {0, 2, 3, 0, 0, 6, 0, 0, 0});
  EXPECT_INVALID(tril(Tensor::zeros({3})), "tril at tensor_test.cc", "[3]");
}

TEST(Sorting, SortsNanLastAndKeepsOrderOfTies) {
  const double nan = std::nan("");
  const Tensor x = tensor_of({6}, {2, nan, -1, 2, 0, -1}, DType::kFloat32);
  expect_tensor(sort(x), {6}, {-1, -1, 0, 2, 2, nan});
  expect_tensor(argsort(x), {6}, {2, 5, 4, 0, 3, 1});
  expect_tensor(argsort(x, {.descending = true}), {6}, {1, 0, 3, 4, 2, 5});
  const Tensor lowest = Tensor::from<std::int32_t>({3}, {5, std::numeric_limits<int>::min(), -5});
  expect_tensor(sort(lowest), {3}, {-2147483648.0, -5, 5});
  expect_tensor(sort(Tensor::from<std::uint8_t>({3}, {200, 0, 7})), {3}, {0, 7, 200});
  EXPECT_EQ(sort(Tensor::zeros({2, 0})).shape(), (Shape{2, 0}));
  EXPECT_INVALID(sort(Tensor::zeros({2}), {.axis = 1}), "sort at tensor_test.cc");
}

TEST(Scattering, AddsDuplicatesAndReportsOutOfRangeIndices) {
  const Tensor at = Tensor::from<std::int64_t>({3, 1}, {0, 2, 0});
  expect_tensor(scatter(at, Tensor{1.f, 2.f, 3.f}, {3}), {3}, {4, 0, 2});
  expect_tensor(scatter(Tensor::from<std::int64_t>({2, 0}, {}), Tensor{1.f, 2.f}, {}), {}, {3});
  EXPECT_INVALID(scatter(Tensor::from<std::int64_t>({1, 1}, {3}), Tensor{1.f}, {3}),
                 "scatter at tensor_test.cc", "axis 0", "got 3");
  // A coordinate is out of range, although the linear index is not.
  EXPECT_INVALID(scatter(Tensor::from<std::int64_t>({1, 2}, {0, 4}), Tensor{1.f}, {2, 3}), "axis 1",
                 "got 4");
  EXPECT_INVALID(scatter(at, Tensor{1.f, 2.f}, {3}), "values [2]");
}

TEST(BooleanMask, SelectsNoRowsOrAllElements) {
  const Tensor x = random_values({3, 2}, DType::kFloat32, -1, 1);
  EXPECT_EQ(boolean_mask(x, Tensor::zeros({3}, DType::kBool)).shape(), (Shape{0, 2}));
  expect_same_bits(boolean_mask(x, Tensor::ones({3, 2}, DType::kBool)), x.reshape({6}));
  EXPECT_INVALID(boolean_mask(x, Tensor::ones({2}, DType::kBool)), "boolean_mask at tensor_test.cc",
                 "[2]", "[3, 2]");
}

TEST(Nonzero, ReturnsCoordinatesInRowMajorOrder) {
  expect_tensor(nonzero(Tensor::from<float>({2, 3}, {0, 2, 0, NAN, 0, -1})), {3, 2},
                {0, 1, 1, 0, 1, 2});
  expect_tensor(nonzero(Tensor::from<bool>({3}, {true, false, true})), {2, 1}, {0, 2});
  EXPECT_EQ(nonzero(Tensor::zeros({2, 2})).shape(), (Shape{0, 2}));
  EXPECT_EQ(nonzero(Tensor(5.f)).shape(), (Shape{1, 0}));
}

TEST(Unique, KeepsOrderOfFirstAppearance) {
  const UniqueResult found = unique(Tensor::from<std::int32_t>({6}, {4, 1, 4, 7, 1, 4}));
  expect_tensor(found.values, {3}, {4, 1, 7});
  expect_tensor(found.indices, {6}, {0, 1, 0, 2, 1, 0});
  expect_tensor(unique(Tensor{0.f, -0.f, 2.f}).values, {2}, {0, 2});
  EXPECT_EQ(unique(Tensor{NAN, NAN}).values.shape(), (Shape{2}));
  EXPECT_EQ(unique(Tensor::zeros({0})).values.shape(), (Shape{0}));
  EXPECT_INVALID(unique(Tensor::zeros({2, 1})), "unique at tensor_test.cc", "[n]", "[2, 1]",
                 "reshape");
}

TEST(Logsumexp, IsExactWhenSumOverflows) {
  const double inf = std::numeric_limits<double>::infinity();
  expect_tensor(reduce_logsumexp(tensor_of({2}, {1000, 1000}, DType::kFloat64)), {},
                {1000 + std::log(2.0)}, 1e-15);
  expect_tensor(reduce_logsumexp(tensor_of({2}, {-inf, -inf}, DType::kFloat32)), {}, {-inf});
  expect_tensor(reduce_logsumexp(tensor_of({2}, {inf, 1}, DType::kFloat32)), {}, {inf});
  expect_tensor(reduce_logsumexp(Tensor::zeros({0}, DType::kFloat64)), {}, {-inf});
}

TEST(Einsum, ErrorsQuoteTheEquation) {
  const Tensor a = Tensor::zeros({2, 3});
  EXPECT_INVALID(einsum("ij,jk->ik", {a, a}), "einsum at tensor_test.cc", "\"ij,jk->ik\"", "'j'",
                 "expected 3", "got 2");
  EXPECT_INVALID(einsum("ij,jk", {a}), "one operand per term (2 in total), got 1");
  EXPECT_INVALID(einsum("ijk", {a}), "rank 3", "'ijk'", "[2, 3]");
  EXPECT_INVALID(einsum("ij->iz", {a}), "'z'", "not an axis");
  EXPECT_INVALID(einsum("ij->ii", {a}), "'i'", "more than once");
  EXPECT_INVALID(einsum("i?", {a}), "letters");
  EXPECT_INVALID(einsum("i", {Tensor::zeros({2}, DType::kInt32)}), "int32");
}

TEST(DefaultRandomKey, RepeatsAfterReseedingAndDiffersBetweenCalls) {
  set_random_seed(3);
  const Tensor first = random_normal({2, 3}), second = random_normal({2, 3});
  EXPECT_EQ(first.shape(), (Shape{2, 3}));
  EXPECT_NE(first.to_doubles(), second.to_doubles());
  set_random_seed(3);
  expect_same_bits(random_normal({2, 3}), first);
  const RandomContextScope replica({.seed = 3, .step = 1, .replica = 1});
  EXPECT_NE(random_normal({2, 3}).to_doubles(), first.to_doubles());
  set_random_seed(0);
}

TEST(RandomCategorical, DrawsFollowClassProbabilities) {
  const std::vector<double> probabilities = {0.1, 0.2, 0.7};
  const Tensor logits = tutti::log(tensor_of({1, 3}, probabilities, DType::kFloat64));
  constexpr std::int64_t kCount = 20'000;
  const Tensor drawn = random_categorical(logits, kCount, {.seed = 5, .purpose = kUserPurpose});
  ASSERT_EQ(drawn.shape(), (Shape{1, kCount}));
  std::vector<double> shares(3, 0.0);
  for (const double drawn_class : drawn.to_doubles()) {
    shares[static_cast<std::size_t>(drawn_class)] += 1.0 / kCount;
  }
  // The tolerance is five standard deviations.
  for (std::size_t c = 0; c < 3; ++c) {
    const double deviation = std::sqrt(probabilities[c] * (1 - probabilities[c]) / kCount);
    EXPECT_NEAR(shares[c], probabilities[c], 5 * deviation);
  }
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor never = tensor_of({2, 2}, {0, -inf, -inf, 0}, DType::kFloat32);
  expect_tensor(random_categorical(never, 2), {2, 2}, {0, 0, 1, 1});
  EXPECT_INVALID(random_categorical(Tensor::zeros({3}), 1), "random_categorical at tensor_test.cc",
                 "[3]");
}

constexpr DType kTypes[] = {DType::kFloat32, DType::kFloat64};
constexpr RandomKey kKey{7, kUserPurpose, 1, 2, 3};
constexpr RandomKey kOtherKey{7, kUserPurpose, 1, 2, 4};
constexpr std::int64_t kCount = 100000;

struct Statistics {
  explicit Statistics(const Tensor& x) {
    const std::vector<double> values = x.to_doubles();
    low = *std::min_element(values.begin(), values.end());
    high = *std::max_element(values.begin(), values.end());
    for (double value : values) mean += value / static_cast<double>(values.size());
    for (double value : values) {
      variance += (value - mean) * (value - mean) / static_cast<double>(values.size());
    }
  }
  double low, high, mean = 0.0, variance = 0.0;
};

TEST(RandomUniform, FillsTheIntervalEvenly) {
  for (DType dtype : kTypes) {
    const Statistics s(random_uniform({kCount}, kKey, -2, 4, dtype));
    EXPECT_GE(s.low, -2.0);
    EXPECT_LT(s.high, 4.0);
    EXPECT_NEAR(s.low, -2.0, 1e-3);
    EXPECT_NEAR(s.high, 4.0, 1e-3);
    EXPECT_NEAR(s.mean, 1.0, 0.03);      // the standard error is 0.0055
    EXPECT_NEAR(s.variance, 3.0, 0.05);  // 36 / 12
  }
}

// For the largest u, 1 + u would round to 2. If the limits are adjacent floats, half of all values
// would round to the upper limit.
TEST(RandomUniform, NeverReachesTheUpperLimit) {
  const float high = std::nextafter(1.0f, 2.0f);
  const Statistics s(random_uniform({1000}, kKey, 1.0, static_cast<double>(high)));
  EXPECT_EQ(s.low, 1.0);
  EXPECT_EQ(s.high, 1.0);
  expect_tensor(random_uniform({3}, kKey, 5, 5), {3}, {5, 5, 5});
}

TEST(RandomUniform, SixteenBitValuesNeverRoundUpToLimit) {
  const std::pair<double, double> intervals[] = {{0.0, 1.0}, {-2.0, -1.0}, {-1.0, 0.0}, {1.0, 1.3}};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const auto& [low, high] : intervals) {
      SCOPED_TRACE(concat(dtype, " ", low, " ", high));
      const Statistics s(random_uniform({kCount}, kKey, low, high, dtype));
      EXPECT_GE(s.low, low);
      EXPECT_LT(s.high, high);
      EXPECT_NEAR(s.high, high, 0.01);
    }
  }
}

/// Class 1 has a probability of practically 0. If the noise had only 16 bits, class 1 would be
/// drawn occasionally.
TEST(RandomCategorical, SixteenBitLogitsNeverSelectImpossibleClass) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const Tensor logits = cast(Tensor::from<float>({1, 2}, {0.0f, -100.0f}), dtype);
    EXPECT_EQ(reduce_sum(random_categorical(logits, kCount, kKey)).item_int(), 0);
  }
}

TEST(RandomNormal, HasSpecifiedMeanAndStandardDeviation) {
  for (DType dtype : kTypes) {
    const Statistics s(random_normal({kCount}, kKey, 3, 2, dtype));
    EXPECT_NEAR(s.mean, 3.0, 0.04);      // the standard error is 0.0063
    EXPECT_NEAR(s.variance, 4.0, 0.12);  // the standard error is 0.018
    EXPECT_GT(s.high, 3.0 + 3.5 * 2);
  }
}

TEST(TruncatedNormal, IsWithinTwoStandardDeviations) {
  for (DType dtype : kTypes) {
    const Statistics s(truncated_normal({kCount}, kKey, 1, 0.5, dtype));
    EXPECT_GE(s.low, 0.0);
    EXPECT_LE(s.high, 2.0);
    EXPECT_NEAR(s.low, 0.0, 0.01);
    EXPECT_NEAR(s.mean, 1.0, 0.01);
    // A standard normal truncated at 2 has variance 0.7737.
    EXPECT_NEAR(s.variance, 0.25 * 0.7737, 0.005);
  }
}

TEST(RandomTensors, ElementsDependOnlyOnKeyAndIndex) {
  for (DType dtype : kTypes) {
    const auto uniform = [&](const Shape& shape, const RandomKey& key) {
      return random_uniform(shape, key, 0, 1, dtype);
    };
    const auto normal = [&](const Shape& shape, const RandomKey& key) {
      return random_normal(shape, key, 0, 1, dtype);
    };
    const auto truncated = [&](const Shape& shape, const RandomKey& key) {
      return truncated_normal(shape, key, 0, 1, dtype);
    };
    const auto check = [&](const auto& make) {
      const Tensor all = make(Shape{1000}, kKey);
      expect_same_bits(make(Shape{1000}, kKey), all);
      expect_same_bits(make(Shape{7}, kKey), all.detached_rows(0, 7));
      expect_same_bits(make(Shape{10, 100}, kKey), all.detached_reshape({10, 100}));
      const auto values = all.to_doubles(), others = make(Shape{1000}, kOtherKey).to_doubles();
      int equal = 0;
      for (std::size_t i = 0; i < values.size(); ++i) equal += values[i] == others[i];
      EXPECT_LT(equal, 3);
      EXPECT_EQ(make(Shape{0, 5}, kKey).shape(), (Shape{0, 5}));
    };
    check(uniform);
    check(normal);
    check(truncated);
  }
}

// In C++, `{}` is a common way to omit a middle argument, so `{}` must not always denote the same
// key.
TEST(RandomTensors, EmptyBracesCreateFreshKey) {
  using Make = std::function<Tensor()>;
  const Tensor ones = Tensor::ones({64});
  const Tensor logits = Tensor::zeros({1, 1000});
  const std::vector<std::pair<Make, Make>> braces_and_without = {
      {[] { return random_uniform({8}, {}, 0.0, 10.0); },
       [] { return random_uniform({8}, next_random_key(), 0.0, 10.0); }},
      {[] { return random_normal({8}, {}, 1.0, 2.0); },
       [] { return random_normal({8}, next_random_key(), 1.0, 2.0); }},
      {[] { return truncated_normal({8}, {}, 1.0, 2.0); },
       [] { return truncated_normal({8}, next_random_key(), 1.0, 2.0); }},
      {[&] { return dropout(ones, 0.5, {}); },
       [&] { return dropout(ones, 0.5, next_random_key()); }},
      {[&] { return random_categorical(logits, 8, {}); },
       [&] { return random_categorical(logits, 8); }},
  };
  for (const auto& [braces, without] : braces_and_without) {
    set_random_seed(1);
    const auto first = braces().to_doubles(), second = braces().to_doubles();
    EXPECT_NE(first, second);
    set_random_seed(1);
    EXPECT_EQ(without().to_doubles(), first);
    EXPECT_EQ(without().to_doubles(), second);
  }
  // A key whose values equal those of RandomKey{} is still an explicit key.
  EXPECT_EQ(random_uniform({8}, RandomKey{}).to_doubles(),
            random_uniform({8}, {.seed = 0}).to_doubles());
}

TEST(RandomTensors, RejectInvalidArguments) {
  EXPECT_INVALID(random_uniform({3}, kKey, 2, 1), "random_uniform", "2", "1");
  EXPECT_INVALID(random_normal({3}, kKey, 0, 1, DType::kInt32), "random_normal", "int32");
}

// The gradient of dropout is dropout of dy with the same key, so both must have the same mask.
TEST(Dropout, MaskDependsOnlyOnKeyAndIndex) {
  for (DType dtype : kTypes) {
    const Tensor a = random_values({2500}, dtype, 1, 2, 1);
    const Tensor b = random_values({50, 50}, dtype, 1, 2, 2);
    const auto as = dropout(a, 0.5, kKey).to_doubles(), bs = dropout(b, 0.5, kKey).to_doubles();
    const auto others = dropout(a, 0.5, kOtherKey).to_doubles();
    int differing = 0;
    for (std::size_t i = 0; i < as.size(); ++i) {
      EXPECT_EQ(as[i] == 0.0, bs[i] == 0.0) << i;
      differing += (as[i] == 0.0) != (others[i] == 0.0);
    }
    EXPECT_GT(differing, 1000);
    expect_same_bits(dropout(a.detached_rows(0, 1500), 0.5, kKey),
                     dropout(a, 0.5, kKey).detached_rows(0, 1500));
  }
}

TEST(Dropout, HandlesBoundaryRates) {
  const Tensor x = random_values({100}, DType::kFloat32, -1, 1);
  expect_same_bits(dropout(x, 0.0, kKey), x);
  const float inf = std::numeric_limits<float>::infinity();
  for (double value : dropout(Tensor::full({100}, inf), 0.5, kKey).to_doubles()) {
    EXPECT_TRUE(value == 0.0 || value == static_cast<double>(inf)) << value;
  }
  EXPECT_EQ(dropout(Tensor::zeros({0, 4}), 0.5, kKey).shape(), (Shape{0, 4}));
  EXPECT_INVALID(dropout(x, 1.0, kKey), "dropout at tensor_test.cc:", "[0, 1)", "got 1");
  EXPECT_INVALID(dropout(Tensor::zeros({3}, DType::kInt64), 0.5, kKey), "int64");
}

}  // namespace tutti::testing::tensor_test
