// Parallel dense layers: each device computes with its part; results are concatenated or added.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/parallel/parallel_dense.h"

#include "core/names.h"
#include "model/parallel/parts.h"
#include "tutti/core/random.h"
#include "tutti/model/layers/core_layers.h"
#include "tutti/model/layers/size2d.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

using internal::canonical_sum;
using internal::dense_product;
using internal::like_input;
using internal::Part;
using internal::parts_of;
using internal::rows_of_features;

ActivationFunction elementwise(std::string_view who, const std::string& name) {
  internal::require(
      name != "softmax" && name != "log_softmax", who, ": the activation ", name,
      " needs all features of a row; expected an elementwise one; try a Softmax() behind it");
  return find_activation(name);
}

void check_units(std::string_view who, std::int64_t units, const ParallelDenseOptions& options) {
  if (units <= 0) fail(ErrorCode::kInvalidArgument, who, ": expected positive units, got ", units);
  (void)parts_of(who, units, options.devices.devices.size());
}

/// Returns some features of the rows of x, sliced on x's device.
Tensor features_of(const Tensor& x, Part part) {
  return slice(x, {0, part.first}, {-1, part.count});
}

}  // namespace

ParallelLayer::ParallelLayer(std::string_view who, ParallelDenseOptions options)
    : Layer(options.name, options.input_shape),
      options_(std::move(options)),
      activation_(elementwise(who, options_.activation)) {}

void ParallelLayer::add_parts(const std::string& name, const Initializer& initializer,
                              const Shape& whole, int axis) {
  const std::vector<Part> parts = parts_of(name, whole[axis], devices().size());
  const OneVariableNumber parts_of_one;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const DeviceScope scope(devices()[i]);
    add_weight(internal::part_initializer(initializer, whole, axis, parts[i]),
               whole.with_dim(axis, parts[i].count), {.name = concat(name, "/part_", i)});
  }
}

void ParallelLayer::add_bias_there(std::int64_t units) {
  if (!options_.use_bias) return;
  const DeviceScope scope(devices().front());
  add_weight(options_.bias_initializer, {units}, {.name = "bias"});
}

ColumnParallelDense::ColumnParallelDense(std::int64_t units, ParallelDenseOptions options)
    : LayerOf("ColumnParallelDense", std::move(options)), units_(units) {
  check_units("ColumnParallelDense", units, options_);
}

Shape ColumnParallelDense::build(const Shape& input) {
  internal::require_no_strategy("ColumnParallelDense");
  internal::require_features(input);
  add_parts("kernel", options_.kernel_initializer, {input[-1], units_}, 1);
  if (options_.use_bias) add_parts("bias", options_.bias_initializer, {units_}, 0);
  set_output_activation(activation_.name);
  return input.with_dim(-1, units_);
}

Tensor ColumnParallelDense::call(const Tensor& input, CallContext) const {
  const std::size_t count = devices().size();
  const Tensor x = rows_of_features(input, weight(0).shape()[0]);
  std::vector<Tensor> columns;
  for (std::size_t i = 0; i < count; ++i) {
    const DeviceScope scope(devices()[i]);
    const Tensor bias = options_.use_bias ? weight(count + i).value() : Tensor();
    columns.push_back(dense_product(x, weight(i).value(), bias, activation_));
  }
  const DeviceScope scope(input.device());
  return like_input(concat(columns, 1), input);
}

RowParallelDense::RowParallelDense(std::int64_t units, ParallelDenseOptions options)
    : LayerOf("RowParallelDense", std::move(options)), units_(units) {
  if (units <= 0 || options_.devices.devices.empty()) {
    fail(ErrorCode::kInvalidArgument, "RowParallelDense: expected positive units and one device ",
         "or more, got ", units, " and ", devices().size());
  }
}

Shape RowParallelDense::build(const Shape& input) {
  internal::require_no_strategy("RowParallelDense");
  internal::require_features(input);
  add_parts("kernel", options_.kernel_initializer, {input[-1], units_}, 0);
  add_bias_there(units_);
  set_output_activation(activation_.name);
  return input.with_dim(-1, units_);
}

Tensor RowParallelDense::call(const Tensor& input, CallContext) const {
  const std::int64_t features = input_shape()[-1];
  const NoDeviceScope where_the_input_is;
  const Tensor x = rows_of_features(input, features);
  const std::vector<Part> parts = parts_of("RowParallelDense", features, devices().size());
  std::vector<Tensor> sums;
  for (std::size_t i = 0; i < devices().size(); ++i) {
    const Tensor own = transfer(features_of(x, parts[i]), devices()[i]);
    sums.push_back(matmul(own, weight(i).value()));
  }
  const Tensor sum = canonical_sum(std::move(sums), input.device());
  const DeviceScope scope(input.device());
  const Tensor y = options_.use_bias ? sum + weight(devices().size()).value() : sum;
  return like_input(activation_(y), input);
}

ParallelDensePair::ParallelDensePair(std::int64_t hidden, std::int64_t units,
                                     ParallelDenseOptions options)
    : LayerOf("ParallelDensePair", std::move(options)), hidden_(hidden), units_(units) {
  check_units("ParallelDensePair", hidden, options_);
  internal::require(units > 0, "ParallelDensePair: expected positive units, got ", units);
}

Shape ParallelDensePair::build(const Shape& input) {
  internal::require_no_strategy("ParallelDensePair");
  internal::require_features(input);
  add_parts("hidden_kernel", options_.kernel_initializer, {input[-1], hidden_}, 1);
  if (options_.use_bias) add_parts("hidden_bias", options_.bias_initializer, {hidden_}, 0);
  add_parts("kernel", options_.kernel_initializer, {hidden_, units_}, 0);
  add_bias_there(units_);
  return input.with_dim(-1, units_);
}

Tensor ParallelDensePair::partial_result(std::size_t part, const Tensor& input) const {
  const std::size_t count = devices().size();
  const DeviceScope scope(devices().at(part));
  Tensor hidden_bias, bias;
  if (options_.use_bias) hidden_bias = weight(count + part).value();
  if (options_.use_bias && part == 0) bias = weight(second_kernel() + count).value();
  const Tensor hidden = dense_product(input, weight(part).value(), hidden_bias, activation_);
  return dense_product(hidden, weight(second_kernel() + part).value(), bias);
}

std::vector<Variable> ParallelDensePair::variables_of(std::size_t part) const {
  const std::size_t count = devices().size();
  std::vector<Variable> result = {weight(part)};
  if (options_.use_bias) result.push_back(weight(count + part));
  result.push_back(weight(second_kernel() + part));
  if (options_.use_bias && part == 0) result.push_back(weight(second_kernel() + count));
  return result;
}

Tensor ParallelDensePair::call(const Tensor& input, CallContext) const {
  const Tensor x = rows_of_features(input, weight(0).shape()[0]);
  std::vector<Tensor> sums;
  for (std::size_t part = 0; part < devices().size(); ++part) {
    sums.push_back(partial_result(part, transfer(x, devices()[part])));
  }
  const DeviceScope scope(input.device());
  return like_input(canonical_sum(std::move(sums), input.device()), input);
}

}  // namespace tutti
