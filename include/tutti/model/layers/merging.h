// Layers that make one tensor of several.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>

#include "tutti/model/layers/layer_of.h"

namespace tutti {

struct MergingOptions {
  std::string name = "";
};

/// A layer of at least two inputs, called `Add()({a, b, c})`. Examples of different shapes
/// broadcast (dimensions are compared from the last one; equal or 1 fits).
class Merging : public MultiLayer {
 protected:
  using Operation = Tensor (*)(const Tensor& a, const Tensor& b);
  /// kOwn: steps of the result count that count in any input, when all have masks.
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
/// a - b, of exactly two.
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
/// The sum divided by the number of inputs.
class Average : public LayerOf<Average, Merging> {
 public:
  explicit Average(MergingOptions options = {});

 protected:
  std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const override;
};
/// The largest input, element by element.
class Maximum : public LayerOf<Maximum, Merging> {
 public:
  explicit Maximum(MergingOptions options = {});
};
/// The smallest input, element by element.
class Minimum : public LayerOf<Minimum, Merging> {
 public:
  explicit Minimum(MergingOptions options = {});
};

struct ConcatenateOptions {
  /// Counts the batch as axis 0, as in Keras; -1 is the last. 0 is refused.
  int axis = -1;
  std::string name = "";
};

/// The inputs behind one another along an axis; the other dimensions are equal.
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
  /// The axes of the first and the second input that are summed over, the batch counted as axis 0.
  std::pair<int, int> axes = {-1, -1};
  /// Vectors along these axes are scaled to length 1 first: the cosine.
  bool normalize = false;
  std::string name = "";
};

/// Sums of products along an axis of two inputs: [batch, a..., n] and [batch, n, b...] -> [batch,
/// a..., b...]; [batch, n] and [batch, n] -> [batch, 1].
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
