// Initializers against Keras's: moments and largest values, for the random numbers are others.
// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "tests/parity/parity_record.h"
#include "tutti/model/layers/initializers.h"
#include "tutti/tensor/ops/matmul.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti::parity {
namespace {

namespace init = initializers;

const std::map<std::string, Shape>& kernels() {
  static const std::map<std::string, Shape> table = {
      {"matrix", {300, 500}}, {"image", {5, 5, 64, 96}}, {"vector", {150000}}};
  return table;
}

/// The random initializers of initializer_cases.py.
const std::map<std::string, Initializer>& initializer_table() {
  static const std::map<std::string, Initializer> table = {
      {"glorot_uniform", init::glorot_uniform()},
      {"glorot_normal", init::glorot_normal()},
      {"he_uniform", init::he_uniform()},
      {"he_normal", init::he_normal()},
      {"lecun_uniform", init::lecun_uniform()},
      {"lecun_normal", init::lecun_normal()},
      {"random_uniform", init::random_uniform()},
      {"random_uniform_limits", init::random_uniform(-0.25, 0.75)},
      {"random_normal", init::random_normal()},
      {"random_normal_mean", init::random_normal(0.5, 0.25)},
      {"truncated_normal", init::truncated_normal()},
      {"variance_scaling", init::variance_scaling()},
      {"variance_scaling_out_uniform",
       init::variance_scaling({.scale = 3.0,
                               .mode = init::FanMode::kOut,
                               .distribution = init::Distribution::kUniform})},
      {"variance_scaling_average_untruncated",
       init::variance_scaling({.scale = 0.5,
                               .mode = init::FanMode::kAverage,
                               .distribution = init::Distribution::kUntruncatedNormal})},
  };
  return table;
}

/// Those that leave nothing to chance.
const std::map<std::string, Initializer>& fixed_initializer_table() {
  static const std::map<std::string, Initializer> table = {{"zeros", init::zeros()},
                                                           {"ones", init::ones()},
                                                           {"constant", init::constant(0.375)},
                                                           {"identity", init::identity(1.5)}};
  return table;
}

Tensor drawn(const Initializer& initializer, const Shape& shape) {
  return initializer.for_shape(shape)(InitializerContext{});
}

class InitializerParity : public ::testing::TestWithParam<std::string> {};

TEST_P(InitializerParity, HasKerasMomentsAndLimits) {
  for (const auto& [kernel, shape] : kernels()) {
    const auto expected = record_of("initializers").at(GetParam() + "/" + kernel).to_doubles();
    const auto values = drawn(initializer_table().at(GetParam()), shape).to_doubles();
    const auto count = static_cast<double>(values.size());
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    double squares = 0.0, largest = 0.0;
    for (const double value : values) {
      squares += (value - mean) * (value - mean);
      largest = std::max(largest, std::abs(value));
    }
    // 150,000 values: means differ by 0.0037 standard deviations at one sigma, deviations by 0.3 %.
    EXPECT_NEAR(mean, expected[0], 0.02 * expected[1]) << kernel;
    EXPECT_NEAR(std::sqrt(squares / count), expected[1], 0.012 * expected[1]) << kernel;
    const bool cut = GetParam().find("random_normal") == std::string::npos &&
                     GetParam().find("untruncated") == std::string::npos;
    EXPECT_NEAR(largest, expected[2], (cut ? 0.005 : 0.25) * expected[2]) << kernel;
  }
}

INSTANTIATE_TEST_SUITE_P(All, InitializerParity, ::testing::ValuesIn(names_of(initializer_table())),
                         [](const auto& info) { return info.param; });

TEST(InitializerParityOfFixedValues, IsKeras) {
  for (const auto& [name, initializer] : fixed_initializer_table())
    expect_close(drawn(initializer, {3, 4}), record_of("initializers").at(name + "/equal"), 0.0,
                 name);
}

TEST(InitializerParityOfOrthogonal, HasKerasProducts) {
  const std::map<std::string, Shape> shapes = {
      {"tall", {12, 5}}, {"wide", {5, 12}}, {"image", {2, 3, 4, 7}}};
  for (const auto& [name, shape] : shapes) {
    const Tensor matrix = reshape(drawn(init::orthogonal(1.5), shape), {-1, shape[-1]});
    const bool tall = matrix.shape()[0] >= matrix.shape()[1];
    const Tensor gram = matmul(matrix, matrix, {.transpose_a = tall, .transpose_b = !tall});
    const auto expected = record_of("initializers").at("orthogonal/" + name).to_doubles();
    EXPECT_THAT(gram.to_doubles(), ::testing::Pointwise(::testing::DoubleNear(1e-5), expected));
  }
}

TEST(InitializerParityTable, HasTheCasesOfTheRecord) {
  std::set<std::string> names = names_of(initializer_table());
  names.merge(names_of(fixed_initializer_table()));
  names.insert("orthogonal");
  EXPECT_EQ(names, record_of("initializers").cases());
}

}  // namespace
}  // namespace tutti::parity
