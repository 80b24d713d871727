// Operations as data: the identifiers, their attributes, what they take, and one call.
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

// Operations as data: the identifiers, their attributes and one call.

/// Every operation that has a kernel. Public functions (tensor/ops/*.h) check their arguments and
/// make an OpCall of these.
// clang-format off
enum class OpId : std::uint8_t {
  // elementwise, one input
  kNegate, kExp, kLog, kSqrt, kRsqrt, kSquare, kAbs, kSign, kReciprocal, kFloor, kCeil, kRound,
  kErf, kLog1p, kExpm1, kSin, kCos,
  kRelu, kSigmoid, kTanh, kSoftplus, kElu, kGelu, kGeluTanh, kLogicalNot, kCast, kClip,
  // elementwise, two inputs, broadcasting; comparisons and logic give bool
  kAdd, kSubtract, kMultiply, kDivide, kMaximum, kMinimum, kPower, kAddRelu,
  kFloorDivide, kFloorMod,
  kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kLogicalAnd, kLogicalOr,
  // elementwise gradients: (dy, x or y)
  kReluGrad, kSigmoidGrad, kTanhGrad, kEluGrad, kGeluGrad, kGeluTanhGrad,
  // three inputs, broadcasting
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
  // attention; (query, key, value), (query, key, value, result, sums, dy)
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

/// "matmul", "conv2d", ...
std::string_view to_string(OpId op);

/// How a window that leaves the image is treated: SAME pads with zeros so that the output has
/// ceil(input / stride) elements; VALID does not pad.
enum class Padding : std::uint8_t { kValid, kSame };

/// A function applied to the result of matmul or conv2d in the same pass.
enum class FusedActivation : std::uint8_t { kNone, kRelu, kSigmoid, kTanh };

/// Of clip().
struct ClipAttributes {
  double low = 0.0, high = 0.0;
};
/// Of cast().
struct CastAttributes {
  DType to = DType::kFloat32;
};
/// Of reductions.
struct AxesAttributes {
  std::uint32_t axes = 0;  // bit i: axis i
  bool keep_dims = false;
};
/// Of matmul() and dense().
struct MatMulAttributes {
  bool transpose_a = false, transpose_b = false;
  FusedActivation activation = FusedActivation::kNone;
};
/// Explicit padding, so that kernels need not know SAME from VALID. input: NHWC; filter: HWIO,
/// where I is the input channels of one group.
struct Conv2dAttributes {
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t pad_top = 0, pad_bottom = 0, pad_left = 0, pad_right = 0;
  FusedActivation activation = FusedActivation::kNone;
  std::int64_t dilation_h = 1, dilation_w = 1, groups = 1;
  bool operator==(const Conv2dAttributes&) const = default;
};
/// Padding counts for nothing.
struct Pool2dAttributes {
  std::int64_t window_h = 2, window_w = 2, stride_h = 2, stride_w = 2;
  std::int64_t pad_top = 0, pad_bottom = 0, pad_left = 0, pad_right = 0;
};
/// Of batch_norm_training() and batch_norm_inference().
struct BatchNormAttributes {
  double epsilon = 1e-3;
};
/// x is seen as [batch, positions, groups, channels of a group]: each pair of a batch row and a
/// group has its own statistics.
struct GroupNormAttributes {
  std::int64_t positions = 1, groups = 1;
  double epsilon = 1e-3;
};
/// Of attention().
struct AttentionAttributes {
  double scale = 1.0;
  bool is_causal = false;
  std::int64_t steps_before = 0;
};
/// tf.nn.local_response_normalization: y = x / (bias + alpha * sum of x^2 over 2*depth_radius+1
/// channels)^beta.
struct LrnAttributes {
  std::int64_t depth_radius = 5;
  double bias = 1.0, alpha = 1.0, beta = 0.5;
};
/// Of transpose().
struct TransposeAttributes {
  std::array<std::int8_t, Shape::kMaxRank> permutation{};
};
/// The size is the output's shape.
struct SliceAttributes {
  std::array<std::int64_t, Shape::kMaxRank> begin{};
};
/// Of pad(): elements before each axis.
struct PadAttributes {
  std::array<std::int64_t, Shape::kMaxRank> before{};
  double value = 0.0;
};
/// Of operations along one axis.
struct AxisAttributes {
  int axis = 0;
};
/// Of cumulative_sum().
struct CumulativeSumAttributes {
  int axis = 0;
  bool exclusive = false, reverse = false;
};
/// How an enlarged image takes its pixels: from the nearest one, or linearly from the two nearest
/// in each direction, pixel centres being at half numbers.
enum class Interpolation : std::uint8_t { kNearest, kBilinear };
/// Of upsample2d().
struct UpsampleAttributes {
  std::int64_t factor_h = 2, factor_w = 2;
  Interpolation interpolation = Interpolation::kNearest;
};
/// Of one_hot().
struct OneHotAttributes {
  double on = 1.0, off = 0.0;
};
/// Of dropout().
struct DropoutAttributes {
  double rate = 0.5;
  RandomKey key;
  const void* step_key = nullptr;  // device memory that holds the key of each step (StepRecorder)
};

/// What an operation needs to know besides its inputs; nothing for most.
using Attributes =
    std::variant<std::monostate, ClipAttributes, CastAttributes, AxesAttributes, MatMulAttributes,
                 Conv2dAttributes, Pool2dAttributes, BatchNormAttributes, LrnAttributes,
                 TransposeAttributes, SliceAttributes, PadAttributes, AxisAttributes,
                 OneHotAttributes, DropoutAttributes, GroupNormAttributes, CumulativeSumAttributes,
                 UpsampleAttributes, AttentionAttributes>;

/// A tensor without its elements.
struct TensorSpec {
  Shape shape;
  DType dtype = DType::kFloat32;
};

/// One checked call of an operation. Inputs are on one device.
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

// What operations take: a tensor and the line that passed it.

/// Made implicitly from a Tensor, a Variable or a number, so that an error can name the caller's
/// line.
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
  /// A plain number takes dtype and device of the operation's other operand; `number` is its full
  /// value.
  bool is_number = false;
  double number = 0.0;

  const Shape& shape() const { return tensor.shape(); }
  DType dtype() const { return tensor.dtype(); }

 private:
  /// A number is put on a device where it is known which: here that would be work for a GPU.
  template <class T>
  static Tensor tensor_of(const T& value) {
    if constexpr (std::is_arithmetic_v<T>) {
      return Tensor::from<float>({}, {static_cast<float>(value)}, Device{});
    } else {
      return value;
    }
  }
};

/// "train.cc:41".
std::string to_string(const SourceLocation& where);

}  // namespace tutti
