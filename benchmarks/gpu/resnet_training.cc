// Implements the network, data and step of train_resnet.
// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/resnet_training.h"

#include "examples/common/resnet.h"
#include "tutti/readers.h"

namespace tutti::benchmarks {
namespace {

constexpr std::int64_t kClasses = 10;  // classes in the synthetic images and in CIFAR-10

bool is_small(const std::string& network) { return network != "resnet50"; }

Sequential make_network(const ResnetOptions& options) {
  if (options.network == "resnet8") return examples::small_resnet(1, options.image_size);
  if (options.network == "resnet20") return examples::small_resnet(3, options.image_size);
  return examples::resnet50(options.image_size);
}

/// Returns learnable synthetic images: each is its class's base image plus noise.
Dataset made_images(const ResnetOptions& options) {
  const std::int64_t rows = options.batch_size * options.batches;
  const Shape image{options.image_size, options.image_size, 3};
  const auto key = [](std::uint64_t a) {
    return RandomKey{.seed = 1, .purpose = kUserPurpose, .a = a};
  };
  std::vector<std::int64_t> labels(static_cast<std::size_t>(rows));
  const RandomStream numbers(key(1));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    labels[i] = static_cast<std::int64_t>(numbers.below(i, kClasses));
  }
  const Tensor label = Tensor::from(Shape{rows}, labels);
  const Tensor pictures = gather(random_normal(image.with_front(kClasses), key(2)), label);
  const Tensor noise = random_normal(image.with_front(rows), key(3));
  return Dataset::from_tensor_slices({0.5f * pictures + noise, label});
}

Dataset data_of(const ResnetOptions& options) {
  const Dataset rows = options.data_dir.empty()
                           ? made_images(options)
                           : image_dataset(read_cifar10(options.data_dir, Split::kTrain));
  return rows.take(options.batch_size * options.batches).batch(options.batch_size);
}

std::unique_ptr<Strategy> make_strategy(const ResnetOptions& options) {
  const std::vector<Device> devices = parse_devices(options.devices);
  if (devices.size() == 1 && options.replicas <= 1) {
    return std::make_unique<OneDeviceStrategy>(devices[0]);
  }
  LocalStrategyOptions local;
  local.devices = devices;
  local.replicas = static_cast<int>(options.replicas);
  if (!options.cross_device_ops.empty()) {
    local.cross_device_ops = make_cross_device_ops(options.cross_device_ops);
  }
  return std::make_unique<MirroredStrategy>(local);
}

void require_positive(const char* flag, std::int64_t value) {
  if (value >= 1) return;
  fail(ErrorCode::kInvalidArgument, flag, ": expected >= 1, got ", value);
}

}  // namespace

void ResnetOptions::declare(Flags& flags) {
  flags.add_choice("--network", network, {"resnet8", "resnet20", "resnet50"}, "the network");
  flags.add("--devices", devices, "gpu:0, cpu:0-3, ...");
  flags.add("--replicas", replicas, "number of replicas, which share the batch; 0: one per device");
  flags.add("--cross-device-ops", cross_device_ops,
            "operation that sums gradients; default: the strategy's");
  flags.add_choice("--policy", policy, {"float32", "mixed_bfloat16", "mixed_float16"},
                   "types of weights and arithmetic");
  flags.add_choice("--execution", execution, {"eager", "captured"}, "execution of steps");
  flags.add("--batch-size", batch_size, "global batch size");
  flags.add("--image-size", image_size, "height and width of images; 0: the network's default");
  flags.add("--batches", batches, "number of different batches, used in turn");
  flags.add("--learning-rate", learning_rate, "learning rate of SGD with momentum 0.9");
  flags.add("--data-dir", data_dir,
            "folder with CIFAR-10's binary files; default: synthetic images");
}

void ResnetOptions::check() {
  require_positive("--batch-size", batch_size);
  require_positive("--batches", batches);
  if (image_size == 0) image_size = is_small(network) ? 32 : 224;
  require_positive("--image-size", image_size);
  if (!data_dir.empty() && (!is_small(network) || image_size != 32)) {
    fail(ErrorCode::kInvalidArgument,
         "--data-dir: expected resnet8 or resnet20 with image size 32, because CIFAR-10's images "
         "are 32 "
         "x 32; use --network resnet20 --image-size 32");
  }
}

ResnetTraining::ResnetTraining(const ResnetOptions& options)
    : strategy_(make_strategy(options)), eager_([this](const Batch& part) { return train(part); }) {
  if (options.execution == "captured") captured_ = captured(eager_);
  set_dtype_policy(options.policy);
  DistributedDataset data = strategy_->distribute_dataset(data_of(options), {.prefetch = 0});
  for (const PerReplica<Batch>& batch : data) batches_.push_back(batch);
  auto scope = strategy_->scope();
  model_ = std::make_unique<Sequential>(make_network(options));
  SgdOptions sgd{.learning_rate = options.learning_rate, .momentum = 0.9};
  if (options.policy == "mixed_float16") sgd.dynamic_loss_scale = DynamicLossScaleOptions{};
  optimizer_ = std::make_unique<Sgd>(model_->trainable_variables(), sgd);
}

Tensor ResnetTraining::train(const Batch& part) {
  GradientTape tape;
  const Tensor logits = (*model_)(part.features(), {.training = true});
  const Tensor loss = compute_average_loss(
      losses::sparse_categorical_crossentropy(part.labels(), cast(logits, DType::kFloat32)),
      part.global_rows());
  optimizer_->minimize(tape, loss);
  return loss;
}

PerReplica<Tensor> ResnetTraining::step() {
  const PerReplica<Batch>& batch = batches_[next_++ % batches_.size()];
  return captured_ ? strategy_->run(*captured_, batch) : strategy_->run(eager_, batch);
}

double ResnetTraining::value_of(const PerReplica<Tensor>& loss) {
  return strategy_->reduce(ReduceOp::kSum, loss).item_double();
}

}  // namespace tutti::benchmarks
