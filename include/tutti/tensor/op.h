// Operations: identifiers, attributes, operands and calls.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <concepts>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>

#include "tutti/core/random.h"
#include "tutti/core/source_location.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

// Identifiers, attributes and calls of operations.

/// Identifier of an operation that has a kernel. The public functions (tensor/ops/*.h) check their
/// arguments and dispatch an OpCall.
// clang-format off
enum class OpId : std::uint8_t {
  // elementwise, one input
  kNegate, kExp, kLog, kSqrt, kRsqrt, kSquare, kAbs, kSign, kReciprocal, kFloor, kCeil, kRound,
  kErf, kLog1p, kExpm1, kSin, kCos,
  kRelu, kSigmoid, kTanh, kSoftplus, kElu, kGelu, kGeluTanh, kLogicalNot, kCast, kClip,
  // elementwise, two inputs, broadcasting; comparisons and logic return bool
  kAdd, kSubtract, kMultiply, kDivide, kMaximum, kMinimum, kPower, kAddRelu,
  kFloorDivide, kFloorMod,
  kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kLogicalAnd, kLogicalOr,
  // elementwise gradients: (dy, x or y)
  kReluGrad, kSigmoidGrad, kTanhGrad, kEluGrad, kGeluGrad, kGeluTanhGrad,
  // three inputs that broadcast
  kWhere,
  // reductions over axes
  kReduceSum, kReduceMean, kReduceMax, kReduceMin, kReduceProduct, kReduceAny, kReduceAll,
  kArgMax, kArgMin,
  // linear algebra; (a, b [, bias])
  kMatMul,
  // convolution; (x, filter [, bias]), (dy, filter), (x, dy), (dy)
  kConv2d, kConv2dBackwardInput, kConv2dBackwardFilter, kBiasGrad,
  // pooling
  kMaxPool, kMaxPoolGrad, kAveragePool, kAveragePoolGrad,
  // normalisation
  kBatchNormTraining, kBatchNormGrad, kBatchNormInference, kLrn, kLrnGrad,
  kGroupNorm, kGroupNormGrad,
  // softmax and losses
  kSoftmax, kLogSoftmax, kSoftmaxGrad, kLogSoftmaxGrad,
  kSoftmaxCrossEntropy, kSparseSoftmaxCrossEntropy, kSparseSoftmaxCrossEntropyGrad,
  kSigmoidCrossEntropy,
  // attention; inputs: (query, key, value) and (query, key, value, result, sums, dy)
  kAttention, kAttentionGrad,
  // shape
  kReshape, kTranspose, kSlice, kPad, kConcat, kBroadcastTo, kOneHot, kGather, kStopGradient,
  kScatterRows, kReverse, kCumulativeSum, kTopK,
  // images
  kUpsample, kUpsampleGrad,
  // random
  kDropout,
  kCount
};
// clang-format on

/// Returns the operation's name: "matmul", "conv2d", ...
std::string_view to_string(OpId op);

/// Treatment of windows that extend beyond the image. SAME pads (with zeros, for convolutions) so
/// that the output has ceil(input / stride) elements per axis; VALID does not pad.
enum class Padding : std::uint8_t { kValid, kSame };

/// Function applied to the result of matmul or conv2d in the same pass.
enum class FusedActivation : std::uint8_t { kNone, kRelu, kSigmoid, kTanh };

/// Attributes of clip().
struct ClipAttributes {
  double low = 0.0, high = 0.0;
};
/// Attributes of cast().
struct CastAttributes {
  DType to = DType::kFloat32;
};
/// Attributes of reductions.
struct AxesAttributes {
  std::uint32_t axes = 0;  // bit mask; bit i is set for axis i
  bool keep_dims = false;
};
/// Attributes of matmul() and dense().
struct MatMulAttributes {
  bool transpose_a = false, transpose_b = false;
  FusedActivation activation = FusedActivation::kNone;
  /// If true, sums the products over the batch: a [..., k, m] and b [..., k, n] -> [m, n], as in
  /// the gradient of a kernel. Requires transpose_a and equal leading dimensions.
  bool sum_over_batch = false;
};
/// Attributes of conv2d(). The padding is given in pixels, so kernels need not distinguish SAME and
/// VALID. input: NHWC; filter: HWIO, where I is the number of input channels of one group.
struct Conv2dAttributes {
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t pad_top = 0, pad_bottom = 0, pad_left = 0, pad_right = 0;
  FusedActivation activation = FusedActivation::kNone;
  std::int64_t dilation_h = 1, dilation_w = 1, groups = 1;
  bool operator==(const Conv2dAttributes&) const = default;
};
/// Attributes of a pooling operation. Maxima and averages ignore padding.
struct Pool2dAttributes {
  std::int64_t window_h = 2, window_w = 2, stride_h = 2, stride_w = 2;
  std::int64_t pad_top = 0, pad_bottom = 0, pad_left = 0, pad_right = 0;
};
/// Attributes of batch_norm_training() and batch_norm_inference().
struct BatchNormAttributes {
  double epsilon = 1e-3;
};
/// Attributes of group_norm(). x is viewed as [batch, positions, groups, channels of a group]; each
/// pair of a batch row and a group has its own statistics.
struct GroupNormAttributes {
  std::int64_t positions = 1, groups = 1;
  double epsilon = 1e-3;
};
/// Attributes of attention().
struct AttentionAttributes {
  double scale = 1.0;
  bool is_causal = false;
  std::int64_t steps_before = 0;
};
/// Attributes of tf.nn.local_response_normalization: y = x / (bias + alpha * sum of x^2 over
/// 2*depth_radius+1 channels)^beta.
struct LrnAttributes {
  std::int64_t depth_radius = 5;
  double bias = 1.0, alpha = 1.0, beta = 0.5;
};
/// Attributes of transpose().
struct TransposeAttributes {
  std::array<std::int8_t, Shape::kMaxRank> permutation{};
};
/// Attributes of slice(). The size of the slice is the shape of the output.
struct SliceAttributes {
  std::array<std::int64_t, Shape::kMaxRank> begin{};
};
/// Attributes of pad(); `before` is the number of elements added at the beginning of each axis.
struct PadAttributes {
  std::array<std::int64_t, Shape::kMaxRank> before{};
  double value = 0.0;
};
/// Attributes of operations along one axis.
struct AxisAttributes {
  int axis = 0;
};
/// Attributes of cumulative_sum().
struct CumulativeSumAttributes {
  int axis = 0;
  bool exclusive = false, reverse = false;
};
/// Interpolation for enlarging images: the nearest pixel, or linear interpolation of the two
/// nearest pixels in each direction, with pixel centres at half-integers.
enum class Interpolation : std::uint8_t { kNearest, kBilinear };
/// Attributes of upsample2d().
struct UpsampleAttributes {
  std::int64_t factor_h = 2, factor_w = 2;
  Interpolation interpolation = Interpolation::kNearest;
};
/// Attributes of one_hot().
struct OneHotAttributes {
  double on = 1.0, off = 0.0;
};
/// Attributes of dropout().
struct DropoutAttributes {
  double rate = 0.5;
  RandomKey key;
  const void* step_key = nullptr;  // device memory with the current step's key (StepRecorder)
};

/// Parameters of an operation besides its inputs; most operations have none.
using Attributes =
    std::variant<std::monostate, ClipAttributes, CastAttributes, AxesAttributes, MatMulAttributes,
                 Conv2dAttributes, Pool2dAttributes, BatchNormAttributes, LrnAttributes,
                 TransposeAttributes, SliceAttributes, PadAttributes, AxisAttributes,
                 OneHotAttributes, DropoutAttributes, GroupNormAttributes, CumulativeSumAttributes,
                 UpsampleAttributes, AttentionAttributes>;

/// Shape and element type of a tensor.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::kFloat32;
};

/// One call of an operation, with checked arguments. When a kernel runs, all inputs are on one
/// device.
struct OpCall {
  OpId op = OpId::kCount;
  std::vector<Tensor> inputs;
  std::vector<TensorSpec> outputs;
  Attributes attributes;
  SourceLocation where = SourceLocation::current();

  template <class T>
  const T& attributes_as() const {
    return std::get<T>(attributes);
  }
};

// Operands.

/// Operand of an operation, with the source line of the call for error messages. Converts
/// implicitly from a Tensor, a Variable or a number.
struct Operand {
  template <class T>
  requires(std::convertible_to<const T&, Tensor> && !std::same_as<T, Operand>)
      Operand(const T& value, SourceLocation location = SourceLocation::current())  // NOLINT
      : tensor(tensor_of(value)), where(location) {
    if constexpr (std::is_arithmetic_v<T>) {
      is_number = true;
      number = static_cast<double>(value);
    }
  }

  Tensor tensor;
  SourceLocation where;
  /// True for a plain number, which takes the dtype and device of the other operand. `number` is
  /// its value before rounding to float32.
  bool is_number = false;
  double number = 0.0;

  const Shape& shape() const { return tensor.shape(); }
  DType dtype() const { return tensor.dtype(); }

 private:
  /// Converts a number to a tensor on the CPU, because creating it on a GPU would queue work there.
  /// The operation later moves the tensor to its own device.
  template <class T>
  static Tensor tensor_of(const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      return Tensor::from<float>({}, {static_cast<float>(value)}, Device{});
    } else {
      return value;
    }
  }
};

/// Returns the file and the line: "train.cc:41".
std::string to_string(const SourceLocation& where);

}  // namespace tutti
