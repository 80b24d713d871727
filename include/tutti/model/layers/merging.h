// Layers that combine several tensors into one.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct MergingOptions {
  std::string name = "";
};

/// Base class of layers with at least two inputs: `Add()({a, b, c})`. The examples of all inputs
/// must have the same rank and broadcastable shapes.
class Merging : public MultiLayer {
 protected:
  using Operation = Tensor (*)(const Tensor& a, const Tensor& b);
  /// With mask_use kOwn and masks on all inputs, a step of the result is unmasked if it is unmasked
  /// in any input.
  Merging(Operation merge, MaskUse mask_use, MergingOptions options)
      : MultiLayer(std::move(options.name)), merge_(merge), mask_use_(mask_use) {}
  std::vector<Shape> build_all(std::span<const Shape> inputs) override;
  std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const override;
  MaskUse mask_use() const override { return mask_use_; }

 private:
  void merge_masks(std::span<const Tensor> inputs, const Tensor& result) const;

  Operation merge_;
  MaskUse mask_use_;
};

/// a + b + ...
class Add : public LayerOf<Add, Merging> {
 public:
  explicit Add(MergingOptions options = {});
};
/// a - b; takes exactly two inputs.
class Subtract : public LayerOf<Subtract, Merging> {
 public:
  explicit Subtract(MergingOptions options = {});

 protected:
  std::vector<Shape> build_all(std::span<const Shape> inputs) override;
};
/// a * b * ...
class Multiply : public LayerOf<Multiply, Merging> {
 public:
  explicit Multiply(MergingOptions options = {});
};
/// Mean of the inputs.
class Average : public LayerOf<Average, Merging> {
 public:
  explicit Average(MergingOptions options = {});

 protected:
  std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const override;
};
/// Elementwise maximum of the inputs.
class Maximum : public LayerOf<Maximum, Merging> {
 public:
  explicit Maximum(MergingOptions options = {});
};
/// Elementwise minimum of the inputs.
class Minimum : public LayerOf<Minimum, Merging> {
 public:
  explicit Minimum(MergingOptions options = {});
};

struct ConcatenateOptions {
  /// Axis along which to concatenate; the batch is axis 0, as in Keras, and -1 is the last axis. 0
  /// throws kInvalidArgument.
  int axis = -1;
  std::string name = "";
};

/// Concatenation of the inputs along an axis; the other dimensions must be equal.
class Concatenate : public LayerOf<Concatenate, MultiLayer> {
 public:
  explicit Concatenate(ConcatenateOptions options = {});

 protected:
  std::vector<Shape> build_all(std::span<const Shape> inputs) override;
  std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const override;
  MaskUse mask_use() const override { return MaskUse::kOwn; }

 private:
  int axis_;
};

struct DotOptions {
  /// Axes of the first and of the second input that are summed over; axis 0 is the batch.
  std::pair<int, int> axes = {-1, -1};
  /// If true, first scales the vectors along these axes to length 1; the results are then cosines.
  bool normalize = false;
  std::string name = "";
};

/// Dot products of two inputs along one axis of each, e.g. [batch, a..., n] and [batch, n, b...]
/// with axes {-1, 1} -> [batch, a..., b...]; [batch, n] and [batch, n] -> [batch, 1].
class Dot : public LayerOf<Dot, MultiLayer> {
 public:
  explicit Dot(DotOptions options = {});

 protected:
  std::vector<Shape> build_all(std::span<const Shape> inputs) override;
  std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const override;

 private:
  DotOptions options_;
};

}  // namespace tutti
