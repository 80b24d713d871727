// Gradients of operations, and the sum of those that reach one value.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "tutti/tensor/gradient.h"
#include "tutti/tensor/op.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {

// Gradients of slices: blocks of a tensor, put together once instead of padded one by one.

/// The gradient of a tensor of shape `whole` that is 0 but for `values`, which begin at `begin`.
struct GradientBlock {
  Tensor values;
  std::vector<std::int64_t> begin;
  Shape whole;
};

/// The block with zeros around it.
Tensor padded(const GradientBlock& block);

/// The sum of blocks of one tensor, in an order that depends on the blocks alone. Those that were
/// cut from one axis and do not overlap, as those of split() and unstack(), become one
/// concatenation, whose cost does not grow with their number. Computes with operations, so that
/// outer tapes see the sum.
Tensor joined(const std::vector<GradientBlock>& blocks);

/// Adds in the order of the calls. Sparse gradients are kept apart and concatenated in that order;
/// together with a dense one they become dense. Blocks are joined and added to dense ones. Computes
/// with operations, so that outer tapes see the sums.
class GradientSum {
 public:
  void add(const Gradient& gradient);
  void add(GradientBlock block) { blocks_.push_back(std::move(block)); }
  Gradient total() const;
  /// The total as a tensor; undefined when nothing was added.
  Tensor dense_total() const;
  void clear();

 private:
  IndexedSlices joined_slices() const;
  /// The dense gradients and the blocks.
  Tensor dense_part() const;

  Tensor dense_;
  std::vector<IndexedSlices> slices_;
  std::vector<GradientBlock> blocks_;
};

// The gradient of each operation, and what a tape keeps for it: OpId -> function.

/// What a gradient function is told of a recorded call. A tape keeps only those values that
/// used_inputs() and used_outputs() name (the other tensors are undefined); shapes and types are
/// always there.
struct GradientContext {
  const OpCall& call;
  std::span<const TensorSpec> input_specs;
  std::span<const Tensor> outputs;
  /// Undefined where no gradient flows into an output; at least one is defined.
  std::span<const Tensor> output_gradients;
  /// Whether a source depends on input i: other gradients need not be computed.
  std::span<const std::uint8_t> needed_inputs;

  const Tensor& in(std::size_t i) const;
  const Tensor& out(std::size_t i = 0) const;
  /// The gradient of the only output.
  const Tensor& dy() const { return output_gradients[0]; }
  const Shape& shape(std::size_t i) const { return input_specs[i].shape; }
  DType dtype(std::size_t i) const { return input_specs[i].dtype; }
  bool needs(std::size_t i) const { return needed_inputs[i] != 0; }
  std::size_t num_inputs() const { return input_specs.size(); }
  template <class T>
  const T& attributes_as() const {
    return call.attributes_as<T>();
  }
};

/// Returns one Gradient per input (none where there is no path or none is needed). Computes with
/// operations, so that an outer tape can differentiate again.
using GradientFunction = std::vector<Gradient> (*)(const GradientContext& context);

/// Values whose elements a gradient function reads: bit i stands for input (output) i.
inline constexpr std::uint32_t kNoTensor = 0, kFirstTensor = 0b1, kSecondTensor = 0b10;
inline constexpr std::uint32_t kEveryTensor = ~0u;

/// What a tape knows of an operation: its gradient, and which of its values must be kept for it.
struct OpGradient {
  OpId op = OpId::kCount;
  GradientFunction function = nullptr;
  std::uint32_t inputs = kNoTensor;
  std::uint32_t outputs = kNoTensor;
  bool is_constant = false;
};

// All of them, by topic: <topic>_gradients.cc.
std::span<const OpGradient> elementwise_gradients();
std::span<const OpGradient> linear_gradients();
std::span<const OpGradient> normalization_gradients();
std::span<const OpGradient> reduction_gradients();
std::span<const OpGradient> shape_gradients();

/// nullptr for an operation without gradient: is_constant_for_gradients() then tells a constant
/// (comparisons, argmax, one-hot, ...) from an operation whose gradient is not written.
GradientFunction find_gradient(OpId op);

/// Operations whose result is piecewise constant or not floating: they pass no gradient.
bool is_constant_for_gradients(OpId op);

/// What a tape must keep of this call, bit by bit.
std::uint32_t used_inputs(const OpCall& call);
std::uint32_t used_outputs(const OpCall& call);

using Gradients = std::vector<Gradient>;

/// The one gradient of an operation with one input.
inline Gradients single(Tensor gradient) { return Gradients{Gradient(std::move(gradient))}; }

/// `gradient` of a value that was broadcast, summed to the shape of input i.
Tensor unbroadcast(const GradientContext& context, std::size_t i, const Tensor& gradient);

/// dy of the value before `activation`, whose result is `y` (unused for kNone).
Tensor activation_gradient(FusedActivation activation, const Tensor& dy, const Tensor* y);

/// The gradient of a slice, not yet padded: many slices of one value are put together at once.
GradientBlock slice_block(const GradientContext& context);

}  // namespace tutti::internal
