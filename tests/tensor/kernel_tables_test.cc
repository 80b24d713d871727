// The fast kernels give the bits of the reference kernels.
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "tensor/kernel_table.h"
#include "tests/support/tensor_matchers.h"
#include "tests/tensor/random_values.h"

namespace tutti {
namespace kernel_tables_test {

using testing::expect_same_bits;
using testing::random_values;

std::vector<OpId> ops_between(OpId first, OpId last) {
  std::vector<OpId> ops;
  for (int op = static_cast<int>(first); op <= static_cast<int>(last); ++op) {
    ops.push_back(static_cast<OpId>(op));
  }
  return ops;
}

/// Runs `call` on both tables, if there is a kernel. Returns whether there is.
bool compare(const OpCall& call) {
  const DType dtype = call.inputs[0].dtype();
  const bool exists = reference_kernels().find(call.op, dtype) != nullptr;
  EXPECT_EQ(exists, cpu_kernels().find(call.op, dtype) != nullptr) << to_string(call.op);
  if (!exists) return false;
  SCOPED_TRACE(concat(to_string(call.op), " ", dtype, " ", call.inputs[0].shape(), " ",
                      call.inputs.back().shape()));
  expect_same_bits(run_kernel(cpu_kernels(), call)[0], run_kernel(reference_kernels(), call)[0]);
  return true;
}

OpCall make_call(OpId op, std::vector<Tensor> inputs, const Shape& shape, DType dtype,
                 Attributes attributes = {}) {
  OpCall call;
  call.op = op;
  call.inputs = std::move(inputs);
  call.outputs = {{shape, dtype}};
  call.attributes = std::move(attributes);
  return call;
}

TEST(KernelTables, UnaryOperationsAgree) {
  for (OpId op : ops_between(OpId::kNegate, OpId::kLogicalNot)) {
    int num_kernels = 0;
    for (DType dtype : kAllDTypes) {
      for (std::int64_t size : {1, 7, 8, 16, 33, 1000}) {
        const Tensor x = random_values({size}, dtype, -4, 4);
        num_kernels += compare(make_call(op, {x}, x.shape(), dtype));
      }
    }
    EXPECT_GT(num_kernels, 0) << to_string(op);
  }
}

TEST(KernelTables, BinaryOperationsAgree) {
  const std::pair<Shape, Shape> shapes[] = {
      {{1000}, {1000}},          {{33}, {}},        {{}, {33}},
      {{9, 17}, {17}},           {{17}, {9, 17}},   {{9, 17}, {9, 1}},
      {{9, 1}, {9, 17}},         {{9, 1}, {1, 17}}, {{3, 1, 5}, {4, 1}},
      {{2, 3, 4, 5}, {3, 1, 5}}, {{1}, {1}},        {{4, 4, 1}, {4, 4, 4}}};
  for (OpId op : ops_between(OpId::kAdd, OpId::kGeluTanhGrad)) {
    int num_kernels = 0;
    const bool gives_bool = op >= OpId::kEqual && op <= OpId::kLogicalOr;
    for (DType dtype : kAllDTypes) {
      for (const auto& [a_shape, b_shape] : shapes) {
        const Tensor a = random_values(a_shape, dtype, -3, 3, 1);
        const Tensor b = random_values(b_shape, dtype, -3, 3, 2);
        num_kernels += compare(make_call(op, {a, b}, broadcast(a_shape, b_shape, "test"),
                                         gives_bool ? DType::kBool : dtype));
      }
    }
    EXPECT_GT(num_kernels, 0) << to_string(op);
  }
}

TEST(KernelTables, WhereAgrees) {
  const Shape shapes[] = {{6, 40}, {40}, {6, 1}, {}};
  for (DType dtype : kAllDTypes) {
    for (const Shape& c_shape : shapes) {
      for (const Shape& a_shape : shapes) {
        for (const Shape& b_shape : shapes) {
          const Shape shape = broadcast(c_shape, broadcast(a_shape, b_shape, "a"), "c");
          compare(make_call(
              OpId::kWhere,
              {random_values(c_shape, DType::kBool, 0, 1), random_values(a_shape, dtype, 0, 9, 2),
               random_values(b_shape, dtype, 0, 9, 3)},
              shape, dtype));
        }
      }
    }
  }
}

TEST(KernelTables, ReductionsAgreeBitByBit) {
  // Lengths around the lanes (16), the tile (64) and the block (1024) of the order of additions.
  const Shape shapes[] = {{1},         {15},       {16},       {17},        {1023},
                          {1025},      {5000},     {3, 1, 70}, {40, 65},    {2, 1030, 3},
                          {2, 3, 130}, {2100, 66}, {3, 4, 5},  {2, 3, 4, 5}};
  for (OpId op : {OpId::kReduceSum, OpId::kReduceMean, OpId::kReduceMax, OpId::kReduceMin,
                  OpId::kReduceProduct, OpId::kReduceAny, OpId::kReduceAll}) {
    int num_kernels = 0;
    for (DType dtype : kAllDTypes) {
      for (const Shape& shape : shapes) {
        const Tensor x = random_values(shape, dtype, -1.1, 1.1);
        for (std::uint32_t axes = 0; axes < 1u << shape.rank(); ++axes) {
          Shape reduced = shape;
          for (int axis = 0; axis < shape.rank(); ++axis) {
            if (axes >> axis & 1u) reduced = reduced.with_dim(axis, 1);
          }
          num_kernels += compare(make_call(op, {x}, reduced, dtype, AxesAttributes{axes, true}));
        }
      }
    }
    EXPECT_GT(num_kernels, 0) << to_string(op);
  }
}

TEST(KernelTables, IndicesOfExtremesAgree) {
  for (OpId op : {OpId::kArgMax, OpId::kArgMin}) {
    for (DType dtype : kAllDTypes) {
      for (const Shape& shape : {Shape{1}, Shape{50}, Shape{4, 1, 9}, Shape{3, 20, 5}}) {
        const Tensor x = random_values(shape, dtype, 0, 9);  // whole numbers: many equals
        for (int axis = 0; axis < shape.rank(); ++axis) {
          compare(
              make_call(op, {x}, shape.without_axis(axis), DType::kInt64, AxisAttributes{axis}));
        }
      }
    }
  }
}

}  // namespace kernel_tables_test
}  // namespace tutti
