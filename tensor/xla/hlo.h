// Writes StableHLO text, one value at a time.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/tensor/dtype.h"
#include "tutti/tensor/reduce_op.h"
#include "tutti/tensor/shape.h"

namespace tutti::internal {

/// Element types of StableHLO: those of tensors, and two for random bits.
enum class HloType { kF32, kF64, kI32, kI64, kU8, kPred, kBF16, kF16, kU32, kU64 };
HloType hlo_type(DType dtype);
std::string_view to_string(HloType type);  // "f32", "ui8", "i1"
bool is_floating(HloType type);
/// Returns text such as "tensor<2x3xf32>".
std::string tensor_type(const Shape& shape, HloType type);

class HloText;

/// A value of the program: its name, shape and type. Operators and the functions below append to
/// the text; operands have the same shape and type. Formulas for numbers
/// (tensor/cpu/elementwise_functions.h) also accept these values.
struct Hlo {
  Hlo() = default;
  /// Creates a number, which takes the shape and type of the value with which it is combined.
  Hlo(double value) : full_of(value) {}
  Hlo(HloText* text_, int number_, const Shape& shape_, HloType type_)
      : text(text_), number(number_), shape(shape_), type(type_) {}

  HloText* text = nullptr;  // nullptr for a number
  int number = 0;           // index of the value; -1 - i for argument i of the program
  Shape shape;
  HloType type = HloType::kF32;
  double full_of = 0.0;

  std::string name() const;
};

/// Number of padding elements before, after and between the elements of an axis.
struct HloPadding {
  std::int64_t low = 0, high = 0, interior = 0;
};
/// Window of reduce_window() and select_and_scatter(), with one entry per axis.
struct HloWindow {
  /// Returns a window of one element, with strides of 1 and no padding.
  static HloWindow of_one_element(int rank) {
    const auto axes = static_cast<std::size_t>(rank);
    const std::vector<std::int64_t> ones(axes, 1);
    return {ones, ones, std::vector<std::pair<std::int64_t, std::int64_t>>(axes)};
  }
  std::vector<std::int64_t> size, stride;
  std::vector<std::pair<std::int64_t, std::int64_t>> padding;
};
/// Parameters of convolution(); `axes` as in StableHLO, "[b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]".
struct HloConvolution {
  std::string_view axes;
  std::int64_t stride[2] = {1, 1};
  HloPadding padding[2];  // low and high
  std::int64_t lhs_dilation[2] = {1, 1}, rhs_dilation[2] = {1, 1};
  std::int64_t feature_groups = 1, batch_groups = 1;
};

/// The body of a program. Each function appends one operation (a few append several) and returns
/// its result; the caller ensures that shapes match.
class HloText {
 public:
  const std::string& text() const { return text_; }

  Hlo constant(double value, const Shape& shape, HloType type);
  /// Returns a constant of an unsigned type.
  Hlo bits(std::uint64_t value, const Shape& shape, HloType type);
  /// Returns 0, 1, 2, ... along `axis`.
  Hlo iota(int axis, const Shape& shape, HloType type);

  /// Appends "stablehlo.NAME", whose operands and result have the same type.
  Hlo same(std::string_view name, std::initializer_list<Hlo> operands);
  Hlo erf(const Hlo& x);
  /// `direction`: EQ, NE, LT, LE, GT, GE.
  Hlo compare(std::string_view direction, const Hlo& a, const Hlo& b);
  Hlo select(const Hlo& condition, const Hlo& a, const Hlo& b);
  Hlo convert(const Hlo& x, HloType type);

  /// Broadcasts by numpy's rule: axes are matched from the last one.
  Hlo broadcast(const Hlo& x, const Shape& shape);
  /// Broadcasts axis i of x to axis axes[i]; the other axes of the result are new.
  Hlo broadcast(const Hlo& x, const Shape& shape, std::span<const int> axes);
  Hlo reshape(const Hlo& x, const Shape& shape);
  Hlo transpose(const Hlo& x, std::span<const std::int64_t> permutation);
  Hlo slice(const Hlo& x, std::span<const std::int64_t> begin, const Shape& shape);
  Hlo pad(const Hlo& x, double value, std::span<const HloPadding> padding);
  Hlo concatenate(std::span<const Hlo> values, int axis);
  Hlo reverse(const Hlo& x, std::span<const int> axes);

  /// Reduces over `axes` with "add", "maximum", ..., starting from `initial`, and removes these
  /// axes.
  Hlo reduce(std::string_view by, const Hlo& x, double initial, std::uint32_t axes);
  /// Returns the index (int64) of the first largest (or smallest) element along `axis`, and removes
  /// this axis.
  Hlo arg_extreme(bool largest, const Hlo& x, int axis);
  /// Returns the k largest elements along the last axis, and their int32 indices.
  std::pair<Hlo, Hlo> top_k(const Hlo& x, std::int64_t k);
  Hlo reduce_window(std::string_view by, const Hlo& x, double initial, const HloWindow& window,
                    const Shape& shape);
  /// Gradient of a maximum over windows: adds each element of `dy` at the position of the first
  /// maximum in its window.
  Hlo select_and_scatter(const Hlo& x, const Hlo& dy, const HloWindow& window);

  /// Sums products over the contracted axes. The result has the batch axes, then the remaining axes
  /// of a, then those of b.
  Hlo dot(const Hlo& a, const Hlo& b, std::initializer_list<std::int64_t> batch_a,
          std::initializer_list<std::int64_t> batch_b, std::int64_t contract_a,
          std::int64_t contract_b, const Shape& shape);
  Hlo convolution(const Hlo& x, const Hlo& filter, const HloConvolution& how, const Shape& shape);

  /// Returns the rows of `table` at `indices`. `shape` is the shape of `indices`, followed by that
  /// of a row. Indices are clamped.
  Hlo gather_rows(const Hlo& table, const Hlo& indices, const Shape& shape);
  /// Adds `values` to rows `indices` of a tensor of zeros, [n, ...]; ignores indices out of range.
  Hlo scatter_rows(const Hlo& values, const Hlo& indices, const Shape& shape);

  /// Reduces over all replicas, in replica order on devices that guarantee an order (CPUs).
  Hlo all_reduce(std::string_view by, const Hlo& x, int num_replicas);
  Hlo all_gather(const Hlo& x, int axis, int num_replicas);

 private:
  Hlo next(const Shape& shape, HloType type) { return {this, next_++, shape, type}; }
  /// Appends a line that consists of a name ("%5 = "), the parts of an operation and the type of
  /// its result. Returns the result.
  template <class... Parts>
  Hlo line(const Shape& shape, HloType type, const Parts&... parts);
  std::string region(std::string_view by, HloType type);

  std::string text_;
  int next_ = 0;
};

/// Appends the operation "stablehlo.NAME" on one value, or on two, one of which may be a number.
Hlo hlo_op(std::string_view name, const Hlo& x);
Hlo hlo_op(std::string_view name, const Hlo& a, const Hlo& b);
Hlo hlo_comparison(std::string_view direction, const Hlo& a, const Hlo& b);

inline Hlo operator+(const Hlo& a, const Hlo& b) { return hlo_op("add", a, b); }
inline Hlo operator-(const Hlo& a, const Hlo& b) { return hlo_op("subtract", a, b); }
inline Hlo operator*(const Hlo& a, const Hlo& b) { return hlo_op("multiply", a, b); }
inline Hlo operator/(const Hlo& a, const Hlo& b) { return hlo_op("divide", a, b); }
inline Hlo operator&(const Hlo& a, const Hlo& b) { return hlo_op("and", a, b); }
inline Hlo operator|(const Hlo& a, const Hlo& b) { return hlo_op("or", a, b); }
inline Hlo operator^(const Hlo& a, const Hlo& b) { return hlo_op("xor", a, b); }
inline Hlo operator==(const Hlo& a, const Hlo& b) { return hlo_comparison("EQ", a, b); }
inline Hlo operator!=(const Hlo& a, const Hlo& b) { return hlo_comparison("NE", a, b); }
inline Hlo operator<(const Hlo& a, const Hlo& b) { return hlo_comparison("LT", a, b); }
inline Hlo operator<=(const Hlo& a, const Hlo& b) { return hlo_comparison("LE", a, b); }
inline Hlo operator>(const Hlo& a, const Hlo& b) { return hlo_comparison("GT", a, b); }
inline Hlo operator>=(const Hlo& a, const Hlo& b) { return hlo_comparison("GE", a, b); }
inline Hlo operator-(const Hlo& x) { return hlo_op("negate", x); }
inline Hlo operator!(const Hlo& x) { return hlo_op("not", x); }
inline Hlo& operator+=(Hlo& a, const Hlo& b) { return a = a + b; }
inline Hlo& operator-=(Hlo& a, const Hlo& b) { return a = a - b; }

// Functions called by the formulas for numbers.
inline Hlo sqrt(const Hlo& x) { return hlo_op("sqrt", x); }
inline Hlo exp(const Hlo& x) { return hlo_op("exponential", x); }
inline Hlo exp_of(const Hlo& x) { return hlo_op("exponential", x); }
inline Hlo expm1(const Hlo& x) { return hlo_op("exponential_minus_one", x); }
inline Hlo log(const Hlo& x) { return hlo_op("log", x); }
inline Hlo log1p(const Hlo& x) { return hlo_op("log_plus_one", x); }
inline Hlo floor(const Hlo& x) { return hlo_op("floor", x); }
inline Hlo ceil(const Hlo& x) { return hlo_op("ceil", x); }
inline Hlo nearbyint(const Hlo& x) { return hlo_op("round_nearest_even", x); }
inline Hlo sin(const Hlo& x) { return hlo_op("sine", x); }
inline Hlo cos(const Hlo& x) { return hlo_op("cosine", x); }
inline Hlo tanh_of(const Hlo& x) { return hlo_op("tanh", x); }
inline Hlo larger(const Hlo& a, const Hlo& b) { return hlo_op("maximum", a, b); }
inline Hlo smaller(const Hlo& a, const Hlo& b) { return hlo_op("minimum", a, b); }
inline Hlo pow(const Hlo& a, const Hlo& b) { return hlo_op("power", a, b); }
inline Hlo fmod(const Hlo& a, const Hlo& b) { return hlo_op("remainder", a, b); }
Hlo abs(const Hlo& x);
Hlo erf(const Hlo& x);
/// Returns `a` where the condition holds, else `b`. One of `a` and `b` may be a number.
Hlo choose(const Hlo& condition, const Hlo& a, const Hlo& b);
template <std::invocable B>
Hlo choose(const Hlo& condition, const Hlo& a, const B& b) {
  return choose(condition, a, b());
}

/// Returns the name of the StableHLO operation for `op`: "add" for SUM and MEAN, otherwise
/// "maximum", "minimum" or "multiply".
std::string_view hlo_name(ReduceOp op);

}  // namespace tutti::internal
