// Tests GPU kernels: all operations in the table, bits of canonical sums, variable updates.
// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <string>

#include "optimizer/optimizer_state.h"
#include "tests/cuda/device_call.h"
#include "tutti/cross_device_ops/canonical_tree.h"
#include "tutti/optimizer/adadelta.h"
#include "tutti/optimizer/adagrad.h"
#include "tutti/optimizer/adam.h"
#include "tutti/optimizer/ftrl.h"
#include "tutti/optimizer/lamb.h"
#include "tutti/optimizer/lars.h"
#include "tutti/optimizer/lion.h"
#include "tutti/optimizer/rmsprop.h"
#include "tutti/optimizer/sgd.h"

namespace tutti::testing::cuda_kernels_test {

TEST(CudaElementwise, LimitedGridComputesAllElements) {
  // 1000 more elements than the largest grid has threads. Unaligned elements are not vectorized.
  const std::int64_t size = 65'535 * 256 + 1000;
  const Tensor x = Tensor::full({size}, 13, DType::kUInt8);
  const OpCall call = device_test_call(OpId::kSquare, {x}, {{x.shape(), DType::kUInt8}});
  expect_same_bits(run_on_device(call, {1})[0], Tensor::full({size}, 169, DType::kUInt8));
}

TEST(CudaReductions, BitsDependOnlyOnShape) {
  for (const Shape& shape : {Shape{17'003}, Shape{7, 1030}, Shape{1000, 33}}) {
    const Tensor x = random_values(shape, DType::kFloat32, -1, 1);
    const int axis = shape.rank() == 2 && shape[1] == 33 ? 0 : shape.rank() - 1;
    const OpCall call =
        device_test_call(OpId::kReduceSum, {x}, {{shape.with_dim(axis, 1), DType::kFloat32}},
                         AxesAttributes{1u << axis, true});
    expect_same_bits(run_on_device(call, {1})[0], run_on_device(call)[0]);
  }
}

TEST(CudaBatchNormalization, RejectsParametersOfDifferentType) {
  const Tensor x = Tensor::zeros({4, 4}), gamma = Tensor::ones({4}, DType::kFloat64);
  const TensorSpec of_x{{4, 4}, DType::kFloat32}, of_channels{{4}, DType::kFloat64};
  const OpCall call = device_test_call(OpId::kBatchNormTraining, {x, gamma, gamma},
                                       {of_x, of_channels, of_channels}, BatchNormAttributes{1e-3});
  EXPECT_INVALID((void)run_on_device(call),
                 "batch normalisation: expected parameters of type float32, got float64");
}

TEST(CudaBatchNormalization, RepeatedRunsAreBitIdentical) {
  const Tensor x = random_values({3000, 6}, DType::kFloat32, -2, 2), ones = Tensor::ones({6});
  const TensorSpec of_x{x.shape(), DType::kFloat32}, of_channels{{6}, DType::kFloat32};
  const OpCall call = device_test_call(OpId::kBatchNormTraining, {x, ones, ones},
                                       {of_x, of_channels, of_channels}, BatchNormAttributes{1e-3});
  expect_same_bits(run_on_device(call)[2], run_on_device(call)[2]);
}

TEST(CudaShapeOps, OutOfRangeIndicesGatherZerosAndScatterNothing) {
  const Tensor params = tensor_of({2, 2}, {1, 2, 3, 4}, DType::kFloat32);
  const Tensor indices = tensor_of({3}, {1, 2, -1}, DType::kInt64);
  const Tensor gathered = run_on_device(
      device_test_call(OpId::kGather, {params, indices}, {{{3, 2}, DType::kFloat32}}))[0];
  expect_tensor(gathered, {3, 2}, {3, 4, 0, 0, 0, 0});
  const Tensor scattered = run_on_device(
      device_test_call(OpId::kScatterRows, {gathered, indices}, {{{2, 2}, DType::kFloat32}}))[0];
  expect_tensor(scattered, {2, 2}, {0, 0, 3, 4});
}

TEST(CudaLosses, InvalidLabelYieldsNan) {
  const double nan = std::nan("");
  const Tensor logits = Tensor::zeros({3, 2});
  const Tensor labels = tensor_of({3}, {2, 1, -1}, DType::kInt64);
  const auto loss = run_on_device(device_test_call(OpId::kSparseSoftmaxCrossEntropy,
                                                   {labels, logits}, {{{3}, DType::kFloat32}}));
  expect_tensor(loss[0], {3}, {nan, std::log(2.0), nan}, 1e-6);
  const auto gradient = run_on_device(device_test_call(OpId::kSparseSoftmaxCrossEntropyGrad,
                                                       {labels, logits, Tensor::ones({3})},
                                                       {{{3, 2}, DType::kFloat32}}));
  expect_tensor(gradient[0], {3, 2}, {nan, nan, 0.5, -0.5, nan, nan}, 1e-6);
}

bool cuda_has(OpId op, DType dtype) { return device_kernels().find(op, dtype) != nullptr; }

std::vector<std::vector<Tensor>> run_on_gpu(std::span<const OpCall> calls) {
  std::vector<std::vector<Tensor>> results;
  for (const OpCall& call : calls) results.push_back(run_on_device(call));
  return results;
}

/// Runs calls whose tensors all begin 1, 2 or 3 elements after an aligned address.
std::vector<std::vector<Tensor>> run_off_alignment(std::span<const OpCall> calls) {
  std::vector<std::vector<Tensor>> results;
  for (const OpCall& call : calls) {
    results.push_back(run_on_device(call, {.misalignment = 1 + results.size() % 3}));
  }
  return results;
}

const OpBackend kCuda{"cuda", cuda_has, run_on_gpu};
const OpBackend kUnaligned{"cuda, not aligned", cuda_has, run_off_alignment};

class CudaKernels : public OpTableTest {};

TEST_P(CudaKernels, AgreeWithTheReference) { expect_agreement(kCuda, GetParam()); }

TEST_P(CudaKernels, AgreeOnUnalignedTensors) { expect_agreement(kUnaligned, GetParam()); }

INSTANTIATE_TEST_SUITE_P(Operations, CudaKernels, ValuesIn(op_families()), family_name);

TEST(CudaOpTable, CoversEveryCpuOperationAndType) {
  expect_cases_of_all_kernels(kCuda);
  std::string missing;
  for (int number = 0; number < static_cast<int>(OpId::kCount); ++number) {
    const OpId op = static_cast<OpId>(number);
    for (const DType dtype : kAllDTypes) {
      if (!reference_has(op, dtype) || cuda_has(op, dtype)) continue;
      missing += concat(to_string(op), " ", dtype, "\n");
    }
  }
  EXPECT_EQ(missing, "");
}

struct ReplicaValues {
  ReplicaValues(DeviceArena& arena, std::size_t count, const Shape& shape, DType dtype,
                std::size_t misalignment) {
    for (std::size_t r = 0; r < count; ++r) {
      host.push_back(random_values(shape, dtype, -3, 3, r + 1));
      device.push_back(arena.upload(host.back(), misalignment));
      pointers.push_back(device.back().data);
    }
  }
  std::vector<Tensor> host;
  std::vector<DeviceTensor> device;
  std::vector<const void*> pointers;
};

TEST(CudaCombine, MatchesCanonicalTreeBitwise) {
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct, ReduceOp::kMean}) {
    for (const DType dtype : kAllDTypes) {
      if (dtype == DType::kBool && op != ReduceOp::kMin && op != ReduceOp::kMax) continue;
      if (op == ReduceOp::kMean && !is_floating(dtype)) continue;
      for (const std::size_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 64}) {
        SCOPED_TRACE(concat(op, " of ", count, " ", dtype));
        DeviceArena arena;
        const Shape shape{count % 2 == 0 ? 301 : 1};
        const ReplicaValues values(arena, count, shape, dtype, count % 3 == 0 ? 1 : 0);
        const DeviceTensor result = arena.allocate(shape, dtype);
        const auto size = static_cast<std::size_t>(shape.num_elements());
        cuda::combine({op, dtype, values.pointers, result.data, size}, arena.stream());
        expect_same_bits(arena.download(result), reduce_tensors_along_tree(op, values.host, {}));
      }
    }
  }
}

TEST(CudaCombine, OverwritesOneInputAndPreservesOthers) {
  DeviceArena arena;
  const ReplicaValues values(arena, 3, {1001}, DType::kFloat32, 0);
  cuda::combine({ReduceOp::kSum, DType::kFloat32, values.pointers, values.device[1].data, 1001},
                arena.stream());
  expect_same_bits(arena.download(values.device[1]),
                   reduce_tensors_along_tree(ReduceOp::kSum, values.host, {}));
  expect_same_bits(arena.download(values.device[2]), values.host[2]);
}

TEST(CudaCombine, PropagatesNanFromAnyInput) {
  DeviceArena arena;
  const Tensor a = tensor_of({3}, {1, std::nan(""), 2}, DType::kFloat32);
  const Tensor b = tensor_of({3}, {std::nan(""), 1, 3}, DType::kFloat32);
  const DeviceTensor result = arena.allocate({3}, DType::kFloat32);
  const std::vector<const void*> inputs{arena.upload(a).data, arena.upload(b).data};
  cuda::combine({ReduceOp::kMax, DType::kFloat32, inputs, result.data, 3}, arena.stream());
  expect_tensor(arena.download(result), {3}, {std::nan(""), std::nan(""), 3});
}

TEST(CudaCombine, RefusesUnsupportedCalls) {
  DeviceArena arena;
  const ReplicaValues values(arena, 2, {3}, DType::kInt32, 0);
  void* const out = arena.allocate(64);
  EXPECT_INVALID(
      cuda::combine({ReduceOp::kMean, DType::kInt32, values.pointers, out, 3}, arena.stream()),
      "for integers, got MEAN");
  EXPECT_INVALID(
      cuda::combine({ReduceOp::kSum, DType::kBool, values.pointers, out, 3}, arena.stream()),
      "expected MIN or MAX for bool");
  EXPECT_INVALID(cuda::combine({ReduceOp::kSum, DType::kInt32, {}, out, 3}, arena.stream()),
                 "1 .. 64 inputs, got 0");
}

TEST(CudaCopyMany, PacksAndUnpacksAtAnyAlignment) {
  DeviceArena arena;
  std::vector<Tensor> parts;
  std::vector<DeviceCopy> copies;
  std::size_t total = 0;
  for (int i = 0; i < 300; ++i) {  // more tensors than fit into one launch
    const std::int64_t size = i == 7 ? 100'001 : i * i % 97;
    parts.push_back(random_values({size}, DType::kUInt8, 0, 255, static_cast<std::uint64_t>(i)));
    total += static_cast<std::size_t>(size);
  }
  auto* const packed = static_cast<std::byte*>(arena.allocate(total));
  std::size_t offset = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::size_t bytes = parts[i].num_bytes();
    copies.push_back({packed + offset, arena.upload(parts[i], i % 5).data, bytes});
    offset += bytes;
  }
  cuda::copy_many(copies, arena.stream());
  std::vector<std::byte> actual(total);
  arena.read(actual.data(), packed, total);
  offset = 0;
  for (const Tensor& part : parts) {
    EXPECT_EQ(std::memcmp(actual.data() + offset, part.bytes().data(), part.num_bytes()), 0);
    offset += part.num_bytes();
  }
}

/// Returns tensors of every floating-point type and many sizes, more than fit in one launch.
std::vector<Tensor> tensors_to_measure() {
  std::vector<Tensor> tensors;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    for (const std::int64_t size : {0, 1, 4096, 8195}) {  // a block of threads reads 4096 elements
      tensors.push_back(random_values({size}, dtype, -2, 2, tensors.size()));
    }
  }
  for (std::int64_t i = 0; i < 100; ++i) {  // more tensors than fit into one launch
    tensors.push_back(random_values({i % 7, 3}, DType::kFloat32, -2, 2, tensors.size()));
  }
  return tensors;
}

TEST(CudaStatistics, CountsNonFiniteElements) {
  const double inf = std::numeric_limits<double>::infinity();
  DeviceArena arena;
  std::vector<DeviceTensor> tensors;
  std::vector<std::int64_t> expected;
  const auto add = [&](const Tensor& tensor, std::int64_t count) {
    tensors.push_back(arena.upload(tensor, tensors.size() % 3));
    expected.push_back(count);
  };
  for (const Tensor& tensor : tensors_to_measure()) {
    add(tensor, 0);
    add(tensor_of({2}, {1, 2}, DType::kInt32), 0);
  }
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16}) {
    std::vector<double> values(9000, 65504.0);
    values[0] = std::nan("");
    values[8998] = -inf;
    values[8999] = inf;
    add(tensor_of({9000}, values, dtype), 3);
  }
  const DeviceTensor counts =
      arena.allocate({static_cast<std::int64_t>(tensors.size())}, DType::kInt64);
  cuda::count_non_finite(tensors, static_cast<std::int64_t*>(counts.data), arena.stream());
  expect_same_bits(arena.download(counts), Tensor::from<std::int64_t>(counts.shape, expected));
}

TEST(CudaStatistics, SumOfSquaresHasDoublePrecision) {
  DeviceArena arena;
  std::vector<DeviceTensor> tensors;
  std::vector<double> expected;
  for (const Tensor& tensor : tensors_to_measure()) {
    tensors.push_back(arena.upload(tensor, tensors.size() % 3));
    double sum = 0.0;
    for (const double value : tensor.to_doubles()) sum += value * value;
    expected.push_back(sum);
  }
  const DeviceTensor sums =
      arena.allocate({static_cast<std::int64_t>(tensors.size())}, DType::kFloat64);
  const auto calculate = [&] {
    cuda::sums_of_squares(tensors, static_cast<double*>(sums.data), arena, arena.stream());
    return arena.download(sums);
  };
  const Tensor actual = calculate();
  expect_tensor(actual, sums.shape, expected, 1e-12);
  expect_same_bits(calculate(), actual);
}

/// A variable and its slots, stored both on the host and on the device.
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
  /// Sets the weights to 0.
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

  std::vector<MutableTensor> host;  // the weights, then the slots
  std::vector<DeviceTensor> device;
  Tensor gradient;
  DeviceTensor device_gradient;
  std::size_t count;
};

/// Trains 60 variables both on the device and on the host, and compares the results. With
/// `with_norms`, the rule's learning rate depends on the norms of the weights and of the update
/// direction.
void expect_same_training(const UpdateRule& rule, DType dtype, bool with_norms = false) {
  SCOPED_TRACE(concat(rule.name(), " ", dtype));
  DeviceArena arena;
  std::vector<Trained> variables;
  std::vector<DeviceUpdateItem> items;
  for (int i = 0; i < 60; ++i) {  // more variables than fit into one launch
    const std::int64_t size = i == 0 ? 4099 : i * 7 % 40;  // only variable 0 exceeds a block
    Trained& variable = variables.emplace_back(arena, rule, size, dtype, i % 3 == 2 ? 1 : 0);
    if (with_norms && i % 5 == 4) variable.clear(arena);  // weights with norm 0
    items.push_back(variable.item());
    if (!with_norms) continue;
    items.back().slots.back() =
        arena.allocate(DeviceUpdateItem::num_sums(items.back().count) * sizeof(double));
  }
  UpdateScalars scalars;
  scalars.learning_rate = 0.01;
  scalars.gradient_scale = 0.5;
  scalars.weight_decay = 0.1;
  for (scalars.iteration = 0; scalars.iteration < 3; ++scalars.iteration) {
    const std::optional<DeviceRule> device_rule = rule.device_rule(scalars);
    ASSERT_TRUE(device_rule);
    cuda::update({dtype, *device_rule, items}, arena.stream());
    for (Trained& variable : variables) {
      with_norms ? variable.apply_with_norms(rule, scalars) : variable.apply(rule, scalars);
    }
  }
  for (const Trained& variable : variables) {
    for (std::size_t i = 0; i < variable.host.size(); ++i) {
      // Norms from the device differ from the host's in the last bits, and so do learning rates
      // that depend on norms.
      expect_close(arena.download(variable.device[i]), variable.host[i].freeze(),
                   with_norms ? 4.0 : 0.0);
    }
  }
}

void expect_same_training_of_both_types(const UpdateRule& rule) {
  expect_same_training(rule, DType::kFloat32);
  expect_same_training(rule, DType::kFloat64);
}

TEST(CudaUpdate, PlainRulesMatchCpuBitwise) {
  expect_same_training_of_both_types(SgdRule(0.0));
  expect_same_training_of_both_types(SgdRule(0.9));
  expect_same_training_of_both_types(SgdRule::nesterov(0.9));
  expect_same_training_of_both_types(LionRule());
  expect_same_training_of_both_types(AdagradRule());
  expect_same_training_of_both_types(AdadeltaRule());
}

TEST(CudaUpdate, AdaptiveRulesMatchCpuBitwise) {
  expect_same_training_of_both_types(AdamRule());
  AdamHyperparameters amsgrad;
  amsgrad.amsgrad = true;
  expect_same_training_of_both_types(AdamRule(amsgrad));
  expect_same_training_of_both_types(NadamRule());
}

TEST(CudaUpdate, RmspropAndFtrlMatchCpuBitwise) {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool centered : {false, true}) {
      RmspropHyperparameters hyper;
      hyper.momentum = momentum;
      hyper.centered = centered;
      // Keeps variance + epsilon positive: with `centered`, rounding can make the variance
      // negative.
      hyper.epsilon = 1.5;
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

TEST(CudaUpdate, WeightDecayAndMovingAverageMatchCpuBitwise) {
  const AdamRule adam;
  const internal::DecoupledWeightDecayRule decaying(adam);
  expect_same_training_of_both_types(decaying);
  EmaOptions options;
  options.overwrite_frequency = 2;
  expect_same_training_of_both_types(internal::MovingAverageRule("test", options));
}

TEST(CudaUpdate, WeightDecayFollowsItsFormula) {
  DeviceArena arena;
  const Tensor w = random_values({50}, DType::kFloat64, -1, 1);
  const DeviceTensor dw = arena.upload(w);
  const DeviceUpdateItem item{dw.data, nullptr, {}, 50};
  const DeviceRule decay{DeviceRuleId::kWeightDecay, {0.1, 1.0, 0.5}};
  cuda::update({DType::kFloat64, decay, {&item, 1}}, arena.stream());
  std::vector<double> expected;
  for (const double each : w.host_span<double>()) expected.push_back(each * 0.95);
  expect_tensor(arena.download(dw), {50}, expected, 1e-12);
}

TEST(CudaUpdate, NormBasedRulesMatchCpu) {
  expect_same_training(LambRule(), DType::kFloat32, true);
  expect_same_training(LambRule(), DType::kFloat64, true);
  expect_same_training(LarsRule(), DType::kFloat32, true);
  expect_same_training(LarsRule({0.0, 0.01, 1e-3}), DType::kFloat64, true);
}

}  // namespace tutti::testing::cuda_kernels_test
