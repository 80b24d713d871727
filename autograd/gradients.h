// Gradients of operations, and sums of gradients.
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

// Gradients of slices, kept as blocks of a tensor and joined at once instead of being padded one by
// one.

/// Gradient of a tensor of shape `whole` that is 0 except for `values` at offset `begin`.
struct GradientBlock {
  Tensor values;
  std::vector<std::int64_t> begin;
  Shape whole;
};

/// Returns the block, padded with zeros to the shape of the whole tensor.
Tensor padded(const GradientBlock& block);

/// Returns the sum of blocks of one tensor, in an order that depends only on the blocks. Blocks
/// along one axis that do not overlap, such as those of split() and unstack(), become one
/// concatenation, whose cost is independent of their number. Uses operations, so that outer tapes
/// record the sum.
Tensor joined(const std::vector<GradientBlock>& blocks);

/// Sum of gradients, which are added in the order of the add() calls. Sparse gradients are
/// concatenated in that order; they become dense when a dense gradient is added. GradientBlocks are
/// joined and added to the dense gradients. Uses operations, so that outer tapes record the sums.
class GradientSum {
 public:
  void add(const Gradient& gradient);
  void add(GradientBlock block) { blocks_.push_back(std::move(block)); }
  Gradient total() const;
  /// Returns the total as a tensor; undefined if nothing was added.
  Tensor dense_total() const;
  void clear();

 private:
  IndexedSlices joined_slices() const;
  /// Returns the sum of the dense gradients and the blocks.
  Tensor dense_part() const;

  Tensor dense_;
  std::vector<IndexedSlices> slices_;
  std::vector<GradientBlock> blocks_;
};

// Gradients of operations, and the values that a tape keeps for them.

/// Arguments of a gradient function: the recorded call and the gradients of its outputs. A tape
/// keeps all shapes and types, but only the values in used_inputs() and used_outputs(); other
/// tensors are undefined.
struct GradientContext {
  const OpCall& call;
  std::span<const TensorSpec> input_specs;
  std::span<const Tensor> outputs;
  /// Gradients of the outputs; undefined for an output that no gradient reaches. At least one is
  /// defined.
  std::span<const Tensor> output_gradients;
  /// One flag per input: nonzero if the input depends on a source and therefore needs a gradient.
  std::span<const std::uint8_t> needed_inputs;

  const Tensor& in(std::size_t i) const;
  const Tensor& out(std::size_t i = 0) const;
  /// Returns the gradient of the only output.
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

/// Returns one Gradient per input, which is empty if the input is not needed or gets no gradient.
/// Uses operations, so that outer tapes can differentiate again.
using GradientFunction = std::vector<Gradient> (*)(const GradientContext& context);

/// Sets of inputs, or of outputs, whose elements a gradient function reads; bit i stands for input
/// or output i.
inline constexpr std::uint32_t kNoTensor = 0, kFirstTensor = 0b1, kSecondTensor = 0b10;
inline constexpr std::uint32_t kEveryTensor = ~0u;

/// Row of the gradient table: an operation's gradient function, and the inputs and outputs that a
/// tape must keep for it.
struct OpGradient {
  OpId op = OpId::kCount;
  GradientFunction function = nullptr;
  std::uint32_t inputs = kNoTensor;
  std::uint32_t outputs = kNoTensor;
  bool is_constant = false;
};

// Rows of the gradient table by topic; each group is defined in <topic>_gradients.cc.
std::span<const OpGradient> elementwise_gradients();
std::span<const OpGradient> linear_gradients();
std::span<const OpGradient> normalization_gradients();
std::span<const OpGradient> reduction_gradients();
std::span<const OpGradient> shape_gradients();

/// Returns the gradient function of an operation; null if there is none.
/// is_constant_for_gradients() then distinguishes constants (comparisons, argmax, one-hot, ...)
/// from missing gradients.
GradientFunction find_gradient(OpId op);

/// Returns true if no gradient flows through the operation: its result is piecewise constant or not
/// floating-point, or it is stop_gradient().
bool is_constant_for_gradients(OpId op);

/// Return bit masks of the inputs and the outputs of this call that a tape must keep.
std::uint32_t used_inputs(const OpCall& call);
std::uint32_t used_outputs(const OpCall& call);

using Gradients = std::vector<Gradient>;

/// Returns the gradients of an operation with one input.
inline Gradients single(Tensor gradient) { return Gradients{Gradient(std::move(gradient))}; }

/// Sums `gradient`, which has the shape of the broadcast value, down to the shape of input i.
Tensor unbroadcast(const GradientContext& context, std::size_t i, const Tensor& gradient);

/// Returns the gradient with respect to the argument of `activation`, whose result `y` has gradient
/// `dy`. `y` is not used for kNone.
Tensor activation_gradient(FusedActivation activation, const Tensor& dy, const Tensor* y);

/// Returns the gradient of a slice without padding it to the shape of the whole value, so that the
/// gradients of many slices of one value can be joined at once.
GradientBlock slice_block(const GradientContext& context);

}  // namespace tutti::internal
