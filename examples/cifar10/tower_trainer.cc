// Implements training with towers.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/tower_trainer.h"

#include <utility>

#include "examples/cifar10/placement_log.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/cross_device_ops/gradient_ops.h"
#include "tutti/strategy/recovery.h"
#include "tutti/tensor/tensor_ops.h"

namespace tutti::examples::cifar10 {
namespace {

/// Factor by which losses are multiplied, so that float16 gradients do not underflow.
constexpr double kLossScale = 1024.0;

// Name of the total loss, which TowerTrainer::step() returns for each tower.
constexpr const char* kTotalLoss = "total_loss";

CentralStorageOptions strategy_options(const TowerTrainerOptions& options) {
  if (options.batch_size < 1) {
    fail(ErrorCode::kInvalidArgument, "TowerTrainer: expected a batch_size >= 1, got ",
         options.batch_size);
  }
  // Towers do not exchange values themselves, so NCCL is not needed.
  CentralStorageOptions result{.local = {.devices = options.devices, .deterministic = true},
                               .parameter_device = options.variable_device};
  result.local.replica_weights = options.tower_weights;
  return result;
}

std::vector<GradientAndVariable> on_device(std::vector<GradientAndVariable> pairs, Device device) {
  for (GradientAndVariable& pair : pairs) pair.gradient = copy_to(pair.gradient, device);
  return pairs;
}

}  // namespace

double mean_loss(const StepResult& result, std::size_t index) {
  double sum = 0.0, rows = 0.0;
  for (std::size_t t = 0; t < result.tower_losses.size(); ++t) {
    if (result.tower_rows[t] == 0.0) continue;  // the mean over zero rows would be NaN
    sum += result.tower_rows[t] * result.tower_losses[t][index].value.item_double();
    rows += result.tower_rows[t];
  }
  return sum / rows;
}

struct TowerTrainer::TowerResult {
  std::vector<GradientAndVariable> gradients;
  std::vector<NamedTensor> losses;
  std::vector<NamedTensor> activations;
  std::vector<std::string> placement;
};

TowerTrainer::TowerTrainer(TowerTrainerOptions options)
    : options_(std::move(options)),
      strategy_(strategy_options(options_)),
      variable_averages_({.decay = kMovingAverageDecay}),
      loss_averages_({.decay = kLossAverageDecay, .name = "avg"}) {
  const auto scope = strategy_.scope();
  for (const Device& device : strategy_.replica_devices()) {
    tower_names_.push_back(concat("tower_", device.index));
    networks_.emplace_back(store_);
    store_.reuse_variables();  // later towers share the variables of the first
  }
  trainable_ = store_.trainable_variables();
  optimizer_ = std::make_unique<Sgd>(
      trainable_,
      SgdOptions{.learning_rate = learning_rate_schedule(options_.batch_size),
                 .loss_scale_factor = options_.use_fp16 ? std::optional(kLossScale) : std::nullopt,
                 .name = "gradient_descent"});
  variable_averages_.track(trainable_);
  for (const char* name : {"conv1", "conv2", "local3", "local4", "softmax_linear"}) {
    loss_averages_.track_number(concat(name, "/weight_loss"));
  }
  loss_averages_.track_number("cross_entropy");
  loss_averages_.track_number(kTotalLoss);
}

std::int64_t TowerTrainer::global_batch_size() const {
  return options_.batch_size * static_cast<std::int64_t>(tower_names_.size());
}

TowerTrainer::TowerResult TowerTrainer::run_tower(const Cifar10Network& network,
                                                  const std::string& name, const Batch& batch,
                                                  StepOptions options) const {
  TowerResult result;
  Tower tower(name);
  if (options.with_summaries) tower.keep_activations();
  std::optional<PlacementLog> log;
  if (options.with_placement) log.emplace(tower);

  GradientTape tape;
  const Tensor logits = network.inference(tower, batch.features(), options_.use_fp16);
  const Tensor total = Cifar10Network::loss(tower, logits, batch.labels());
  const Tensor target = optimizer_->scale_loss(total);
  if (log) log->begin_gradients();
  result.gradients = with_variables(tape.gradient(target, trainable_), trainable_);

  if (log) result.placement = log->lines();
  result.losses = tower.losses();
  result.losses.push_back({tower.full_name(kTotalLoss), total});
  result.activations = tower.activations();
  return result;
}

/// Updates the variables once, with gradients that are already averaged over all towers.
void TowerTrainer::apply_mean(const std::vector<GradientAndVariable>& mean) {
  const std::vector<Gradient> gradients = gradients_of(mean);
  strategy_.run(
      [&] { optimizer_->apply_gradients(gradients, {.aggregation = GradientAggregation::kNone}); });
}

void TowerTrainer::average_losses(const StepResult& result) {
  for (std::size_t i = 0; i < result.tower_losses[0].size(); ++i) {
    loss_averages_.apply_number(without_tower(result.tower_losses[0][i].name),
                                mean_loss(result, i));
  }
}

StepResult TowerTrainer::step(const PerReplica<Batch>& batch, StepOptions options) {
  const auto tower_numbers = strategy_.distribute_values_from_function(
      [](const ValueContext& context) { return context.replica_id_in_sync_group; });
  PerReplica<TowerResult> towers = strategy_.run(
      [&](int number, const Batch& part) {
        const auto i = static_cast<std::size_t>(number);
        return run_tower(networks_[i], tower_names_[i], part, options);
      },
      tower_numbers, batch);

  StepResult result;
  std::vector<std::vector<GradientAndVariable>> tower_gradients;
  for (const Batch& part : batch) result.tower_rows.push_back(static_cast<double>(part.rows()));
  for (const TowerResult& tower : towers) {
    tower_gradients.push_back(on_device(tower.gradients, options_.variable_device));
    result.tower_losses.push_back(tower.losses);
    result.placement.insert(result.placement.end(), tower.placement.begin(), tower.placement.end());
  }
  result.loss = static_cast<float>(mean_loss(result, result.tower_losses[0].size() - 1));
  const std::vector<GradientAndVariable> mean =
      average_gradients(tower_gradients, result.tower_rows);
  apply_mean(mean);
  // The averages are computed after the update, so that they include the new weights.
  variable_averages_.apply(global_step().value().item_int());
  average_losses(result);
  if (options.with_summaries) {
    result.activations = towers[towers.size() - 1].activations;
    result.gradients = mean;
  }
  return result;
}

std::vector<VariableGroup> TowerTrainer::variable_groups() const {
  std::vector<Variable> averages = variable_averages_.averages();
  const std::vector<Variable> of_losses = loss_averages_.averages();
  averages.insert(averages.end(), of_losses.begin(), of_losses.end());
  return {{"parameters", trainable_},
          {"optimizer slots", optimizer_->state_variables()},
          {"moving averages", averages}};
}

Checkpoint TowerTrainer::checkpoint() {
  Checkpoint checkpoint(store_.variables(), checkpoint_options(strategy_));
  checkpoint.add(variable_averages_.averages());
  checkpoint.add(loss_averages_.averages());
  checkpoint.add(optimizer_->state_variables());
  checkpoint.set_about("towers", static_cast<std::int64_t>(tower_names_.size()));
  checkpoint.add_state("strategy", {[this] { return strategy_.save_state(); },
                                    [this](const Json& state) { strategy_.restore_state(state); }});
  return checkpoint;
}

}  // namespace tutti::examples::cifar10
