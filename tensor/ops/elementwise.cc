// Elementwise operations, and gradients of activations: argument checks and dispatch.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/tensor/ops/elementwise.h"

#include <limits>

#include "tensor/op_checks.h"

namespace tutti {

// Elementwise operations: argument checks and dispatch.

namespace {

using namespace internal;

/// Element types that an operation accepts.
enum class Domain { kNumber, kFloating, kBool, kAny };

void check_domain(OpId op, const Tensor& x, Domain domain, const SourceLocation& where) {
  const DType dtype = x.dtype();
  if (domain == Domain::kAny) return;
  if (domain == Domain::kNumber && dtype != DType::kBool) return;
  if (domain == Domain::kFloating && is_floating(dtype)) return;
  if (domain == Domain::kBool && dtype == DType::kBool) return;
  const char* expected = domain == Domain::kNumber     ? "a numeric type"
                         : domain == Domain::kFloating ? "a floating-point type"
                                                       : "bool";
  fail_op(op, where, "expected ", expected, ", got ", dtype, " of shape ", x.shape(),
          "; call cast()");
}

Shape broadcast_shape(OpId op, const Tensor& a, const Tensor& b, const SourceLocation& where) {
  if (std::optional<Shape> shape = try_broadcast(a.shape(), b.shape())) return *shape;
  return broadcast(a.shape(), b.shape(), who(op, where));  // throws
}

Tensor unary(OpId op, const Operand& x, Domain domain, Attributes attributes = {}) {
  check_domain(op, defined(op, x), domain, x.where);
  return dispatch_unary(op, x, std::move(attributes));
}

OpCall binary_call(OpId op, const Operand& a, const Operand& b, Domain domain) {
  const bool a_follows = a.is_number && !b.is_number;
  OpCall call;
  call.op = op;
  call.where = a.where;
  call.inputs.reserve(2);
  call.inputs.push_back(a_follows ? number_like(op, a, defined(op, b)) : defined(op, a));
  call.inputs.push_back(b.is_number && !a.is_number ? number_like(op, b, a.tensor)
                                                    : defined(op, b));
  require_same_dtype(op, call.inputs[0], call.inputs[1], call.where);
  check_domain(op, call.inputs[0], domain, call.where);
  call.outputs.push_back(
      {broadcast_shape(op, call.inputs[0], call.inputs[1], call.where), call.inputs[0].dtype()});
  return call;
}

Tensor binary(OpId op, const Operand& a, const Operand& b, Domain domain = Domain::kNumber) {
  return dispatch_one(binary_call(op, a, b, domain));
}

Tensor comparison(OpId op, const Operand& a, const Operand& b, Domain domain = Domain::kNumber) {
  OpCall call = binary_call(op, a, b, domain);
  call.outputs[0].dtype = DType::kBool;
  return dispatch_one(std::move(call));
}

}  // namespace

Tensor add(const Operand& a, const Operand& b) { return binary(OpId::kAdd, a, b); }
Tensor subtract(const Operand& a, const Operand& b) { return binary(OpId::kSubtract, a, b); }
Tensor multiply(const Operand& a, const Operand& b) { return binary(OpId::kMultiply, a, b); }
Tensor divide(const Operand& a, const Operand& b) {
  return binary(OpId::kDivide, a, b, Domain::kFloating);
}
Tensor maximum(const Operand& a, const Operand& b) { return binary(OpId::kMaximum, a, b); }
Tensor minimum(const Operand& a, const Operand& b) { return binary(OpId::kMinimum, a, b); }
Tensor pow(const Operand& base, const Operand& exponent) {
  return binary(OpId::kPower, base, exponent);
}
Tensor floor_divide(const Operand& a, const Operand& b) { return binary(OpId::kFloorDivide, a, b); }
Tensor floor_mod(const Operand& a, const Operand& b) { return binary(OpId::kFloorMod, a, b); }
Tensor add_relu(const Operand& a, const Operand& b) { return binary(OpId::kAddRelu, a, b); }

Tensor equal(const Operand& a, const Operand& b) {
  return comparison(OpId::kEqual, a, b, Domain::kAny);
}
Tensor not_equal(const Operand& a, const Operand& b) {
  return comparison(OpId::kNotEqual, a, b, Domain::kAny);
}
Tensor less(const Operand& a, const Operand& b) { return comparison(OpId::kLess, a, b); }
Tensor less_equal(const Operand& a, const Operand& b) { return comparison(OpId::kLessEqual, a, b); }
Tensor greater(const Operand& a, const Operand& b) { return comparison(OpId::kGreater, a, b); }
Tensor greater_equal(const Operand& a, const Operand& b) {
  return comparison(OpId::kGreaterEqual, a, b);
}
Tensor logical_and(const Operand& a, const Operand& b) {
  return comparison(OpId::kLogicalAnd, a, b, Domain::kBool);
}
Tensor logical_or(const Operand& a, const Operand& b) {
  return comparison(OpId::kLogicalOr, a, b, Domain::kBool);
}
Tensor isnan(const Operand& x) { return not_equal(x, x); }
Tensor isinf(const Operand& x) {
  if (!is_floating(defined(OpId::kAbs, x).dtype())) return not_equal(x, x);
  const Operand size(abs(x), x.where);
  return equal(size, std::numeric_limits<double>::infinity());
}
Tensor isfinite(const Operand& x) {
  if (!is_floating(defined(OpId::kAbs, x).dtype())) return equal(x, x);
  const Operand size(abs(x), x.where);
  return less(size, std::numeric_limits<double>::infinity());
}
Tensor logical_not(const Operand& x) { return unary(OpId::kLogicalNot, x, Domain::kBool); }

Tensor bitwise_not(const Operand& x) {
  if (x.dtype() == DType::kBool) return logical_not(x);
  if (is_floating(x.dtype())) {
    fail(ErrorCode::kInvalidArgument, who("bitwise_not", x.where),
         ": expected integers or bool, got ", x.dtype(), "; call cast()");
  }
  const double all_ones = x.dtype() == DType::kUInt8 ? 255.0 : -1.0;
  return subtract(Operand(all_ones, x.where), x);
}

Tensor negate(const Operand& x) { return unary(OpId::kNegate, x, Domain::kNumber); }
Tensor exp(const Operand& x) { return unary(OpId::kExp, x, Domain::kFloating); }
Tensor log(const Operand& x) { return unary(OpId::kLog, x, Domain::kFloating); }
Tensor sqrt(const Operand& x) { return unary(OpId::kSqrt, x, Domain::kFloating); }
Tensor rsqrt(const Operand& x) { return unary(OpId::kRsqrt, x, Domain::kFloating); }
Tensor square(const Operand& x) { return unary(OpId::kSquare, x, Domain::kNumber); }
Tensor abs(const Operand& x) { return unary(OpId::kAbs, x, Domain::kNumber); }
Tensor sign(const Operand& x) { return unary(OpId::kSign, x, Domain::kNumber); }
Tensor reciprocal(const Operand& x) { return unary(OpId::kReciprocal, x, Domain::kFloating); }
Tensor floor(const Operand& x) { return unary(OpId::kFloor, x, Domain::kFloating); }
Tensor ceil(const Operand& x) { return unary(OpId::kCeil, x, Domain::kFloating); }
Tensor round(const Operand& x) { return unary(OpId::kRound, x, Domain::kFloating); }
Tensor erf(const Operand& x) { return unary(OpId::kErf, x, Domain::kFloating); }
Tensor log1p(const Operand& x) { return unary(OpId::kLog1p, x, Domain::kFloating); }
Tensor expm1(const Operand& x) { return unary(OpId::kExpm1, x, Domain::kFloating); }
Tensor sin(const Operand& x) { return unary(OpId::kSin, x, Domain::kFloating); }
Tensor cos(const Operand& x) { return unary(OpId::kCos, x, Domain::kFloating); }

Tensor relu(const Operand& x) { return unary(OpId::kRelu, x, Domain::kNumber); }
Tensor sigmoid(const Operand& x) { return unary(OpId::kSigmoid, x, Domain::kFloating); }
Tensor tanh(const Operand& x) { return unary(OpId::kTanh, x, Domain::kFloating); }
Tensor softplus(const Operand& x) { return unary(OpId::kSoftplus, x, Domain::kFloating); }
Tensor elu(const Operand& x) { return unary(OpId::kElu, x, Domain::kFloating); }
Tensor gelu(const Operand& x) { return unary(OpId::kGelu, x, Domain::kFloating); }
Tensor gelu_tanh(const Operand& x) { return unary(OpId::kGeluTanh, x, Domain::kFloating); }

Tensor clip(const Operand& x, double low, double high) {
  if (!(low <= high)) {
    fail_op(OpId::kClip, x.where, "expected low <= high, got ", low, " and ", high);
  }
  return unary(OpId::kClip, x, Domain::kNumber, ClipAttributes{low, high});
}

Tensor cast(const Operand& x, DType dtype) {
  const Tensor& tensor = defined(OpId::kCast, x);
  if (tensor.dtype() == dtype) return tensor;
  return dispatch_one(
      {OpId::kCast, {tensor}, {{tensor.shape(), dtype}}, CastAttributes{dtype}, x.where});
}

Tensor where(const Operand& condition, const Operand& a, const Operand& b) {
  constexpr OpId kOp = OpId::kWhere;
  require_dtype(kOp, condition, DType::kBool);
  if (a.is_number && b.is_number) {  // two numbers give float32 on the condition's device
    const Tensor like = Tensor::zeros({}, DType::kFloat32, condition.tensor.device());
    return where(condition, Operand(number_like(kOp, a, like), a.where),
                 Operand(number_like(kOp, b, like), b.where));
  }
  const Tensor first = a.is_number ? number_like(kOp, a, defined(kOp, b)) : defined(kOp, a);
  const Tensor second = b.is_number ? number_like(kOp, b, first) : defined(kOp, b);
  require_same_dtype(kOp, first, second, condition.where);
  const Shape values = broadcast_shape(kOp, first, second, condition.where);
  const std::optional<Shape> shape = try_broadcast(condition.shape(), values);
  if (!shape) {
    fail_op(kOp, condition.where,
            "shapes do not broadcast; expected equal sizes or 1 in each dimension, ",
            "got condition ", condition.shape(), ", ", first.shape(), " and ", second.shape());
  }
  return dispatch_one(
      {kOp, {condition.tensor, first, second}, {{*shape, first.dtype()}}, {}, condition.where});
}

Tensor stop_gradient(const Operand& x) { return dispatch_unary(OpId::kStopGradient, x); }

// Gradients of activations: argument checks and dispatch.

namespace {

Tensor activation_grad(OpId op, const Operand& dy, const Operand& y) {
  require_floating(op, dy);
  require_same_dtype(op, dy.tensor, defined(op, y), dy.where);
  if (dy.shape() != y.shape()) {
    fail_op(op, dy.where, "expected two tensors of equal shape, got ", dy.shape(), " and ",
            y.shape());
  }
  return dispatch_one({op, {dy.tensor, y.tensor}, {{dy.shape(), dy.dtype()}}, {}, dy.where});
}

}  // namespace

Tensor relu_grad(const Operand& dy, const Operand& y) {
  return activation_grad(OpId::kReluGrad, dy, y);
}
Tensor sigmoid_grad(const Operand& dy, const Operand& y) {
  return activation_grad(OpId::kSigmoidGrad, dy, y);
}
Tensor tanh_grad(const Operand& dy, const Operand& y) {
  return activation_grad(OpId::kTanhGrad, dy, y);
}
Tensor elu_grad(const Operand& dy, const Operand& y) {
  return activation_grad(OpId::kEluGrad, dy, y);
}
Tensor gelu_grad(const Operand& dy, const Operand& x) {
  return activation_grad(OpId::kGeluGrad, dy, x);
}
Tensor gelu_tanh_grad(const Operand& dy, const Operand& x) {
  return activation_grad(OpId::kGeluTanhGrad, dy, x);
}

}  // namespace tutti
