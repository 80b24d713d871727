// Initial values of weights.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "tutti/autograd/value_generator.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/json.h"

namespace tutti {

/// Initial values of a weight, given by a name (see the constructor), a function from
/// initializers::, or a custom function of the shape. Each value depends only on the seed and on
/// the indices of the variable and the element. A value type.
class Initializer {
 public:
  using Function = std::function<Tensor(const Shape&, const InitializerContext&)>;
  /// Function that returns the distribution of the values of a weight of the given shape.
  using Distribution = std::function<ValueGenerator(const Shape&)>;

  /// `name`: zeros, ones, glorot_uniform, glorot_normal, he_uniform, he_normal, lecun_uniform,
  /// lecun_normal, orthogonal, identity, uniform (random_uniform), normal (random_normal),
  /// truncated_normal, variance_scaling, constant (0). Throws kInvalidArgument for any other name,
  /// listing these.
  Initializer(const char* name) : Initializer(std::string(name)) {}
  Initializer(const std::string& name);
  /// `call`: the call that recreates the initializer, as Model::save() writes it: ["constant",
  /// 0.5].
  Initializer(std::string name, Function function, Json call = {})
      : name_(std::move(name)), call_(std::move(call)), function_(std::move(function)) {}
  /// Creates an initializer from a distribution, which lets a process generate only the rows that
  /// it stores.
  Initializer(std::string name, Distribution distribution, Json call = {})
      : name_(std::move(name)), call_(std::move(call)), distribution_(std::move(distribution)) {}

  const std::string& name() const { return name_; }
  /// Returns the call that recreates the initializer. For a custom initializer, returns [name], for
  /// which from_json() returns an initializer of zeros; saved files contain the actual values.
  Json to_json() const;
  static Initializer from_json(const Json& call);
  /// Returns the initializer for this shape. Values are drawn in float32, then converted to
  /// `dtype`.
  Variable::Initializer for_shape(const Shape& shape, DType dtype = DType::kFloat32) const;

 private:
  std::string name_;
  Json call_;                  // null for a custom initializer
  Function function_;          // null if distribution_ is set
  Distribution distribution_;  // null if function_ is set
};

/// Keras's initializers with its defaults. For a kernel [..., in, out], fan_in and fan_out are `in`
/// and `out` times the product of the leading dimensions.
namespace initializers {

/// Fan by which the variance is divided.
enum class FanMode { kIn, kOut, kAverage };
/// Distribution of the values.
enum class Distribution { kUniform, kTruncatedNormal, kUntruncatedNormal };
/// Options for variance_scaling().
struct VarianceScalingOptions {
  double scale = 1.0;
  FanMode mode = FanMode::kIn;
  Distribution distribution = Distribution::kTruncatedNormal;
};
/// Returns an initializer that draws values with variance scale / fan.
Initializer variance_scaling(VarianceScalingOptions options = {});

/// Return initializers that set every element to 0, 1 or `value`.
Initializer zeros();
Initializer ones();
Initializer constant(double value);
/// Returns an initializer that copies `values`, which must have the weight's shape.
Initializer values(const Tensor& values);
/// Returns an initializer that draws uniformly from [low, high).
Initializer random_uniform(double low = -0.05, double high = 0.05);
/// Normal distribution with the given mean and standard deviation.
Initializer random_normal(double mean = 0.0, double stddev = 0.05);
/// Normal distribution; values more than two standard deviations from the mean are redrawn.
Initializer truncated_normal(double mean = 0.0, double stddev = 0.05);
/// Uniform distribution in [-a, a) with a = sqrt(6 / (fan_in + fan_out)).
Initializer glorot_uniform();
/// Truncated normal distribution with variance 2 / (fan_in + fan_out).
Initializer glorot_normal();
/// Uniform distribution in [-a, a) with a = sqrt(6 / fan_in).
Initializer he_uniform();
/// Truncated normal distribution with variance 2 / fan_in.
Initializer he_normal();
/// Uniform distribution in [-a, a) with a = sqrt(3 / fan_in).
Initializer lecun_uniform();
/// Truncated normal distribution with variance 1 / fan_in.
Initializer lecun_normal();
/// Returns an initializer of weights that, as a matrix [product of the leading dimensions, last
/// dimension], have orthonormal columns or rows (whichever are fewer), multiplied by `gain`.
/// Requires: rank >= 2.
Initializer orthogonal(double gain = 1.0);
/// `gain` on the diagonal of a matrix, 0 elsewhere.
Initializer identity(double gain = 1.0);
}  // namespace initializers

}  // namespace tutti
