// Table of gradient functions by operation, and sums of gradients.
// SPDX-License-Identifier: Apache-2.0
#include "autograd/gradients.h"

#include <algorithm>
#include <array>
#include <map>

#include "tutti/core/error.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::internal {

const Tensor& GradientContext::in(std::size_t i) const {
  TUTTI_CHECK(i < call.inputs.size() && call.inputs[i].defined(), "gradient of ",
              to_string(call.op), ": input ", i, " was not kept");
  return call.inputs[i];
}

const Tensor& GradientContext::out(std::size_t i) const {
  TUTTI_CHECK(i < outputs.size() && outputs[i].defined(), "gradient of ", to_string(call.op),
              ": output ", i, " was not kept");
  return outputs[i];
}

namespace {

using Table = std::array<OpGradient, static_cast<std::size_t>(OpId::kCount)>;

/// Operations through which no gradient flows, mostly because their results are piecewise constant
/// or not floating-point.
constexpr OpId kConstantOps[] = {
    OpId::kSign,        OpId::kFloor,      OpId::kCeil,      OpId::kRound,
    OpId::kFloorDivide, OpId::kLogicalNot, OpId::kEqual,     OpId::kNotEqual,
    OpId::kLess,        OpId::kLessEqual,  OpId::kGreater,   OpId::kGreaterEqual,
    OpId::kLogicalAnd,  OpId::kLogicalOr,  OpId::kReduceAny, OpId::kReduceAll,
    OpId::kArgMax,      OpId::kArgMin,     OpId::kOneHot,    OpId::kStopGradient};

Table all_gradients() {
  Table table;
  for (const OpId op : kConstantOps) table[static_cast<std::size_t>(op)].is_constant = true;
  for (const auto topic : {elementwise_gradients(), linear_gradients(), normalization_gradients(),
                           reduction_gradients(), shape_gradients()}) {
    for (const OpGradient& each : topic) table[static_cast<std::size_t>(each.op)] = each;
  }
  return table;
}

const OpGradient& entry_of(OpId op) {
  static const Table table = all_gradients();
  return table[static_cast<std::size_t>(op)];
}

/// Returns true if a product or convolution has no fused activation, in which case its gradients do
/// not need its result.
bool is_without_activation(const OpCall& call) {
  if (call.op == OpId::kMatMul) {
    return call.attributes_as<MatMulAttributes>().activation == FusedActivation::kNone;
  }
  return call.op == OpId::kConv2d &&
         call.attributes_as<Conv2dAttributes>().activation == FusedActivation::kNone;
}

}  // namespace

GradientFunction find_gradient(OpId op) { return entry_of(op).function; }

bool is_constant_for_gradients(OpId op) { return entry_of(op).is_constant; }

std::uint32_t used_inputs(const OpCall& call) { return entry_of(call.op).inputs; }

std::uint32_t used_outputs(const OpCall& call) {
  return is_without_activation(call) ? kNoTensor : entry_of(call.op).outputs;
}

namespace {

constexpr int kSeveral = -1;

/// Returns the only axis along which the block is shorter than the tensor, or 0 if there is none;
/// kSeveral if there are several such axes or the tensor is a scalar.
int axis_of(const GradientBlock& block) {
  int found = 0;
  int count = 0;
  for (int axis = 0; axis < block.whole.rank(); ++axis) {
    if (block.values.shape().dim(axis) == block.whole.dim(axis)) continue;
    found = axis;
    ++count;
  }
  return count > 1 || block.whole.rank() == 0 ? kSeveral : found;
}

/// Blocks in order along an axis, without overlaps; zeros fill the gaps between them.
struct Row {
  std::vector<Tensor> parts;
  std::int64_t end = 0;

  void fill(const GradientBlock& like, std::size_t axis, std::int64_t until) {
    if (until == end) return;
    const Shape gap = like.whole.with_dim(static_cast<int>(axis), until - end);
    parts.push_back(Tensor::zeros(gap, like.values.dtype(), like.values.device()));
    end = until;
  }
  void append(const GradientBlock& block, std::size_t axis) {
    fill(block, axis, block.begin[axis]);
    parts.push_back(block.values);
    end += block.values.shape().dim(static_cast<int>(axis));
  }
};

/// Appends each block to the first row that ends before it, so that overlapping blocks are in
/// different rows.
std::vector<Row> rows_of(std::vector<const GradientBlock*> blocks, std::size_t axis) {
  std::ranges::stable_sort(blocks, {}, [&](const GradientBlock* b) { return b->begin[axis]; });
  std::vector<Row> rows;
  for (const GradientBlock* block : blocks) {
    auto row =
        std::ranges::find_if(rows, [&](const Row& each) { return each.end <= block->begin[axis]; });
    if (row == rows.end()) row = rows.insert(rows.end(), Row());
    row->append(*block, axis);
  }
  const GradientBlock& any = *blocks.front();
  for (Row& row : rows) row.fill(any, axis, any.whole.dim(static_cast<int>(axis)));
  return rows;
}

}  // namespace

Tensor padded(const GradientBlock& block) {
  std::vector<std::int64_t> after;
  for (int axis = 0; axis < block.whole.rank(); ++axis) {
    after.push_back(block.whole.dim(axis) - block.begin[static_cast<std::size_t>(axis)] -
                    block.values.shape().dim(axis));
  }
  return pad(block.values, block.begin, after);
}

Tensor joined(const std::vector<GradientBlock>& blocks) {
  Tensor sum;
  const auto add_to_sum = [&](const Tensor& x) { sum = sum.defined() ? add(sum, x) : x; };
  std::map<int, std::vector<const GradientBlock*>> by_axis;
  for (const GradientBlock& block : blocks) by_axis[axis_of(block)].push_back(&block);
  for (const auto& [axis, members] : by_axis) {
    if (axis == kSeveral || members.size() == 1) {
      for (const GradientBlock* block : members) add_to_sum(padded(*block));
    } else {
      for (const Row& row : rows_of(members, static_cast<std::size_t>(axis)))
        add_to_sum(row.parts.size() == 1 ? row.parts.front() : concat(row.parts, axis));
    }
  }
  return sum;
}

void GradientSum::add(const Gradient& gradient) {
  if (gradient.is_slices()) {
    slices_.push_back(gradient.slices());
  } else if (gradient.is_dense()) {
    dense_ = dense_.defined() ? tutti::add(dense_, gradient.dense()) : gradient.dense();
  }
}

IndexedSlices GradientSum::joined_slices() const {
  if (slices_.size() == 1) return slices_.front();
  std::vector<Tensor> values, indices;
  for (const IndexedSlices& slices : slices_) {
    values.push_back(slices.values);
    indices.push_back(slices.indices);
  }
  return {concat(values, 0), concat(indices, 0), slices_.front().dense_shape};
}

Tensor GradientSum::dense_part() const {
  if (blocks_.empty()) return dense_;
  const Tensor joined_blocks = joined(blocks_);
  return dense_.defined() ? tutti::add(dense_, joined_blocks) : joined_blocks;
}

Gradient GradientSum::total() const {
  if (!dense_.defined() && blocks_.empty())
    return slices_.empty() ? Gradient() : Gradient(joined_slices());
  return Gradient(dense_total());
}

Tensor GradientSum::dense_total() const {
  const Tensor dense = dense_part();
  if (slices_.empty()) return dense;
  const IndexedSlices slices = joined_slices();
  const Tensor scattered = scatter_rows(slices.values, slices.indices, slices.dense_shape);
  return dense.defined() ? tutti::add(dense, scattered) : scattered;
}

void GradientSum::clear() {
  dense_ = Tensor();
  slices_.clear();
  blocks_.clear();
}

}  // namespace tutti::internal
