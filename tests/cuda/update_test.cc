// Optimizer updates of many variables at once give the bits of UpdateRule::apply().
// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>

#include "optimizer/optimizer_state.h"
#include "tests/cuda/device_call.h"
#include "tutti/optimizer/adadelta.h"
#include "tutti/optimizer/adagrad.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/ftrl.h"
#include "tutti/optimizer/lamb.h"
#include "tutti/optimizer/lars.h"
#include "tutti/optimizer/lion.h"
#include "tutti/optimizer/rmsprop.h"
#include "tutti/optimizer/sgd.h"

namespace tutti {
namespace cuda_update_test {

using testing::DeviceArena;
using testing::expect_close;
using testing::random_values;

/// A variable with its slots on the host and on the device.
struct Trained {
  Trained(DeviceArena& arena, const UpdateRule& rule, std::int64_t size, DType dtype,
          std::size_t misalignment)
      : gradient(random_values({size}, dtype, -1, 1, static_cast<std::uint64_t>(size) + 7)),
        count(static_cast<std::size_t>(size)) {
    add(arena, random_values({size}, dtype, -1, 1, static_cast<std::uint64_t>(size)), misalignment);
    for (const SlotSpec& slot : rule.slots()) {
      (void)slot;
      add(arena, random_values({size}, dtype, 0.3, 1, 3), misalignment);
    }
    device_gradient = arena.upload(gradient, misalignment);
  }

  void add(DeviceArena& arena, const Tensor& values, std::size_t misalignment) {
    MutableTensor copy(values.shape(), values.dtype(), {});
    std::memcpy(copy.data(), values.bytes().data(), values.num_bytes());
    host.push_back(copy);
    device.push_back(arena.upload(values, misalignment));
  }

  DeviceUpdateItem item() const {
    DeviceUpdateItem item{device[0].data, device_gradient.data, {}, count};
    for (std::size_t s = 1; s < device.size(); ++s) item.slots[s - 1] = device[s].data;
    return item;
  }

  void apply(const UpdateRule& rule, const UpdateScalars& scalars) {
    std::vector<void*> slots;
    rule.apply(args(scalars, slots));
  }
  void apply_with_norms(const UpdateRule& rule, const UpdateScalars& scalars) {
    std::vector<void*> slots;
    UpdateArgs given = args(scalars, slots);
    MutableTensor direction(gradient.shape(), gradient.dtype(), {});
    rule.direct(given, direction.data());
    given.scalars.weight_norm = norm(host[0].freeze());
    given.scalars.direction_norm = norm(direction.freeze());
    given.scalars.gradient_scale = 1.0;
    given.gradient_data = direction.data();
    rule.apply(given);
  }
  /// Weights of 0.
  void clear(DeviceArena& arena) {
    if (count > 0) std::memset(host[0].data(), 0, host[0].num_bytes());
    arena.write(device[0].data, host[0].data(), host[0].num_bytes());
  }

  static double norm(const Tensor& tensor) {
    double sum = 0.0;
    for (const double value : tensor.to_doubles()) sum += value * value;
    return std::sqrt(sum);
  }
  UpdateArgs args(const UpdateScalars& scalars, std::vector<void*>& slots) {
    for (std::size_t s = 1; s < host.size(); ++s) slots.push_back(host[s].data());
    UpdateArgs args;
    args.dtype = gradient.dtype();
    args.count = count;
    args.weights_data = host[0].data();
    args.slots_data = slots;
    args.gradient_data = gradient.bytes().data();
    args.scalars = scalars;
    return args;
  }

  std::vector<MutableTensor> host;  // the weights, then slots
  std::vector<DeviceTensor> device;
  Tensor gradient;
  DeviceTensor device_gradient;
  std::size_t count;
};

void expect_same_training(const UpdateRule& rule, DType dtype, double ulps = 0.0) {
  SCOPED_TRACE(concat(rule.name(), " ", dtype));
  DeviceArena arena;
  std::vector<Trained> variables;
  for (int i = 0; i < 60; ++i) {                           // more than one launch takes
    const std::int64_t size = i == 0 ? 4099 : i * 7 % 40;  // a block and a rest, or less
    variables.emplace_back(arena, rule, size, dtype, i % 3 == 2 ? 1 : 0);
  }
  std::vector<DeviceUpdateItem> items;
  for (const Trained& variable : variables) items.push_back(variable.item());
  UpdateScalars scalars;
  scalars.learning_rate = 0.01;
  scalars.gradient_scale = 0.5;
  scalars.weight_decay = 0.1;
  for (scalars.iteration = 0; scalars.iteration < 3; ++scalars.iteration) {
    const std::optional<DeviceRule> device_rule = rule.device_rule(scalars);
    ASSERT_TRUE(device_rule);
    cuda::update({dtype, *device_rule, items}, arena.stream());
    for (Trained& variable : variables) variable.apply(rule, scalars);
  }
  for (const Trained& variable : variables) {
    for (std::size_t i = 0; i < variable.host.size(); ++i) {
      expect_close(arena.download(variable.device[i]), variable.host[i].freeze(), ulps);
    }
  }
}

void expect_same_training_of_both_types(const UpdateRule& rule) {
  expect_same_training(rule, DType::kFloat32);
  expect_same_training(rule, DType::kFloat64);
}

TEST(CudaUpdate, PlainRulesGiveTheBitsOfTheCpu) {
  expect_same_training_of_both_types(SgdRule(0.0));
  expect_same_training_of_both_types(SgdRule(0.9));
  expect_same_training_of_both_types(SgdRule::nesterov(0.9));
  expect_same_training_of_both_types(LionRule());
  expect_same_training_of_both_types(AdagradRule());
  expect_same_training_of_both_types(AdadeltaRule());
}

TEST(CudaUpdate, AdaptiveRulesGiveTheBitsOfTheCpu) {
  expect_same_training_of_both_types(AdamRule());
  AdamHyperparameters amsgrad;
  amsgrad.amsgrad = true;
  expect_same_training_of_both_types(AdamRule(amsgrad));
  expect_same_training_of_both_types(NadamRule());
}

TEST(CudaUpdate, RmspropAndFtrlGiveTheBitsOfTheCpu) {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool centered : {false, true}) {
      RmspropHyperparameters hyper;
      hyper.momentum = momentum;
      hyper.centered = centered;
      hyper.epsilon = 1.5;  // centered: the square less the mean's may be negative here
      expect_same_training_of_both_types(RmspropRule(hyper));
    }
  }
  FtrlHyperparameters ftrl;
  ftrl.l1_regularization_strength = 0.01;
  ftrl.l2_shrinkage_regularization_strength = 0.1;
  expect_same_training_of_both_types(FtrlRule(ftrl));
  ftrl.learning_rate_power = -0.4;
  expect_same_training_of_both_types(FtrlRule(ftrl));
}

TEST(CudaUpdate, RulesAroundTheRuleGiveTheBitsOfTheCpu) {
  const AdamRule adam;
  const internal::DecoupledWeightDecayRule decaying(adam);
  expect_same_training_of_both_types(decaying);
  EmaOptions options;
  options.overwrite_frequency = 2;
  expect_same_training_of_both_types(internal::MovingAverageRule("test", options));
}

TEST(CudaUpdate, ACapturedStepTakesItsConstantsFromTheDevice) {
  DeviceArena arena;
  const AdamRule rule;
  Trained variable(arena, rule, 100, DType::kFloat32, 0);
  UpdateScalars captured, replayed;
  captured.learning_rate = 1.0;
  replayed.learning_rate = 0.01;
  replayed.iteration = 5;
  const DeviceRule live = *rule.device_rule(replayed);
  void* const step_values = arena.allocate(sizeof(live.constants));
  arena.write(step_values, live.constants.data(), sizeof(live.constants));
  const DeviceUpdateItem item = variable.item();
  cuda::update({DType::kFloat32,
                *rule.device_rule(captured),
                {&item, 1},
                static_cast<const double*>(step_values)},
               arena.stream());
  variable.apply(rule, replayed);
  expect_close(arena.download(variable.device[0]), variable.host[0].freeze(), 0.0);
}

TEST(CudaUpdate, AdamaxAndWeightDecayFollowTheirFormulas) {
  DeviceArena arena;
  const Tensor w = random_values({50}, DType::kFloat64, -1, 1),
               g = random_values({50}, DType::kFloat64, -1, 1, 2);
  const Tensor m = random_values({50}, DType::kFloat64, -1, 1, 3),
               u = random_values({50}, DType::kFloat64, 0, 1, 4);
  const DeviceTensor dw = arena.upload(w), dm = arena.upload(m), du = arena.upload(u);
  DeviceUpdateItem item{dw.data, arena.upload(g).data, {dm.data, du.data}, 50};
  const DeviceRule adamax{DeviceRuleId::kAdaMax, {0.1, 1.0, 0.0, 1.0 - 0.9, 0.99, 1e-7, 1.0 - 0.9}};
  cuda::update({DType::kFloat64, adamax, {&item, 1}}, arena.stream());
  item.gradient = nullptr;
  const DeviceRule decay{DeviceRuleId::kWeightDecay, {0.1, 1.0, 0.5}};
  cuda::update({DType::kFloat64, decay, {&item, 1}}, arena.stream());
  std::vector<double> expected;
  for (std::size_t i = 0; i < 50; ++i) {
    const double gi = g.host_span<double>()[i], mi = m.host_span<double>()[i];
    const double mean = 0.9 * mi + 0.1 * gi;
    const double size = std::max(0.99 * u.host_span<double>()[i], std::abs(gi));
    expected.push_back((w.host_span<double>()[i] - 0.1 / (1.0 - 0.9) * mean / (size + 1e-7)) *
                       0.95);
  }
  testing::expect_tensor(arena.download(dw), {50}, expected, 1e-12);
}

/// One training of 60 variables by a rule with norms, on the device and on the host.
void expect_same_training_with_norms(const UpdateRule& rule, DType dtype) {
  SCOPED_TRACE(concat(rule.name(), " ", dtype));
  DeviceArena arena;
  std::vector<Trained> variables;
  std::vector<DeviceUpdateItem> items;
  for (int i = 0; i < 60; ++i) {                           // more than one launch takes
    const std::int64_t size = i == 0 ? 4099 : i * 7 % 40;  // a block and a rest, or less
    Trained& variable = variables.emplace_back(arena, rule, size, dtype, i % 3 == 2 ? 1 : 0);
    if (i % 5 == 4) variable.clear(arena);  // the norm of the weights is 0
    items.push_back(variable.item());
    items.back().slots.back() =
        arena.allocate(DeviceUpdateItem::num_sums(items.back().count) * sizeof(double));
  }
  UpdateScalars scalars;
  scalars.learning_rate = 0.01;
  scalars.gradient_scale = 0.5;
  scalars.weight_decay = 0.1;
  for (scalars.iteration = 0; scalars.iteration < 3; ++scalars.iteration) {
    cuda::update({dtype, *rule.device_rule(scalars), items}, arena.stream());
    for (Trained& variable : variables) variable.apply_with_norms(rule, scalars);
  }
  for (const Trained& variable : variables) {
    for (std::size_t i = 0; i < variable.host.size(); ++i) {
      // The norms' last bits differ, and with them the rate's last one.
      expect_close(arena.download(variable.device[i]), variable.host[i].freeze(), 4.0);
    }
  }
}

TEST(CudaUpdate, RulesWithNormsFollowTheCpu) {
  expect_same_training_with_norms(LambRule(), DType::kFloat32);
  expect_same_training_with_norms(LambRule(), DType::kFloat64);
  expect_same_training_with_norms(LarsRule(), DType::kFloat32);
  expect_same_training_with_norms(LarsRule({0.0, 0.01, 1e-3}), DType::kFloat64);
}

TEST(CudaUpdate, ACapturedStepWithNormsTakesItsConstantsFromTheDevice) {
  DeviceArena arena;
  const LambRule rule;
  Trained variable(arena, rule, 5000, DType::kFloat32, 0);
  UpdateScalars captured, replayed;
  captured.learning_rate = 1.0;
  replayed.learning_rate = 0.01;
  replayed.iteration = 5;
  const DeviceRule live = *rule.device_rule(replayed);
  void* const step_values = arena.allocate(sizeof(live.constants));
  arena.write(step_values, live.constants.data(), sizeof(live.constants));
  DeviceUpdateItem item = variable.item();
  item.slots.back() = arena.allocate(DeviceUpdateItem::num_sums(item.count) * sizeof(double));
  cuda::update({DType::kFloat32,
                *rule.device_rule(captured),
                {&item, 1},
                static_cast<const double*>(step_values)},
               arena.stream());
  variable.apply_with_norms(rule, replayed);
  expect_close(arena.download(variable.device[0]), variable.host[0].freeze(), 4.0);
}

}  // namespace cuda_update_test
}  // namespace tutti
