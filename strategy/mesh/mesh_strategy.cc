// Implements MeshStrategy: positions on threads, and the step on each of them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/mesh/mesh_strategy.h"

#include <algorithm>
#include <utility>

#include "core/call_site.h"
#include "core/names.h"
#include "strategy/mesh/mesh_position.h"
#include "strategy/mesh/mesh_variable.h"
#include "strategy/replicas/strategy_mode.h"
#include "strategy/strategy_options.h"
#include "tutti/core/random.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti {

namespace internal {

/// Gives the optimizer gradients in the shardings of their variables. A gradient stays a partial
/// sum until all uses of its variable have been added; all of them are then summed together.
class MeshReducer final : public GradientReducer {
 public:
  explicit MeshReducer(MeshPosition& position) : position_(position) {}

  void begin(std::span<const Variable> variables) override;
  void ready(std::size_t index, const Gradient& gradient) override { gradients_[index] = gradient; }
  std::vector<Gradient> finish() override;
  void updates_done() override { position_.meet(MeetingKind::kUpdatesDone); }

 private:
  MeshPosition& position_;
  std::vector<Variable> variables_;
  std::vector<Gradient> gradients_;
};

void MeshReducer::begin(std::span<const Variable> variables) {
  variables_.assign(variables.begin(), variables.end());
  gradients_.assign(variables.size(), Gradient());
}

std::vector<Gradient> MeshReducer::finish() {
  struct Pending {
    std::size_t index;
    ShardedTensor value;
    Sharding wanted;
  };
  std::vector<Pending> pending;
  for (std::size_t i = 0; i < variables_.size(); ++i) {
    Gradient& gradient = gradients_[i];
    if (gradient.is_none()) continue;
    const auto* const storage = dynamic_cast<const MeshStorage*>(&variables_[i].storage());
    const Sharding wanted = storage ? storage->sharding() : Sharding();
    if (gradient.is_slices() && wanted.is_whole()) {
      const IndexedSlices& slices = gradient.slices();
      gradient = IndexedSlices{position_.whole(slices.values), position_.whole(slices.indices),
                               slices.dense_shape};
      continue;
    }
    pending.push_back({i, position_.part_of(gradient.to_dense()), wanted});
  }
  // First each position's part in the wanted sharding, still a partial sum; then one sum of all.
  std::vector<Tensor> partials;
  std::vector<AxisSet> axes;
  for (Pending& each : pending) {
    Sharding partial = each.wanted;
    partial.partial = each.value.sharding.partial & static_cast<AxisSet>(~each.wanted.cut());
    Tensor local = position_.local_as(each.value, partial);
    each.value = {partial, local, each.value.spec};
    if (partial.partial == 0) continue;
    partials.push_back(local);
    axes.push_back(partial.partial);
  }
  const std::vector<Tensor> sums = position_.reduced_each(ReduceOp::kSum, partials, axes);
  std::size_t next = 0;
  for (Pending& each : pending) {
    if (each.value.sharding.partial != 0) each.value.local = sums[next++];
    each.value.sharding = each.wanted;
    gradients_[each.index] = position_.tensor_of(each.value);
  }
  position_.meet(MeetingKind::kFinishGradients);
  return std::move(gradients_);
}

}  // namespace internal

namespace {

constexpr const char* kStrategy = "mesh";

/// Returns the mesh whose positions are the blocks.
DeviceMesh mesh_of_blocks(const MeshOptions& options) {
  std::vector<MeshAxis> axes = options.mesh.axes();
  for (const MeshAxis& block : options.blocks) {
    MeshAxis& axis = axes[static_cast<std::size_t>(options.mesh.index_of(block.name))];
    internal::require(block.size >= axis.size && block.size % axis.size == 0, kStrategy,
                      ": blocks along '", block.name, "': expected a multiple of the mesh's ",
                      axis.size, " positions, got ", block.size);
    axis.size = block.size;
  }
  return DeviceMesh(std::move(axes));
}

}  // namespace

LocalStrategyOptions MeshStrategy::options_of_blocks(const MeshOptions& options, int workers) {
  LocalStrategyOptions local = options.local;
  const int positions = options.mesh.num_positions();
  internal::require(local.replicas == 0, kStrategy,
                    ": replicas: the mesh has one replica; expected 0, got ", local.replicas);
  internal::require(local.replica_weights.empty(), kStrategy,
                    ": replica_weights: expected none, because a batch is cut into equal parts");
  internal::require(positions % workers == 0, kStrategy, ": the ", positions, " positions of ",
                    options.mesh.to_string(), " cannot be divided over ", workers, " workers");
  const int own = positions / workers;
  std::vector<Device>& devices = local.devices.devices;
  for (int i = 0; options.local.devices.devices.empty() && i < own; ++i) {
    devices.push_back({DeviceType::kCpu, i});
  }
  internal::require(std::ssize(devices) == own, kStrategy, ": devices: expected ", own,
                    ", one for each position of ", options.mesh.to_string(),
                    workers > 1 ? " that this worker has" : "", ", got ", devices.size());
  for (const Device& device : devices) {
    if (device.type == DeviceType::kCpu || device.type == DeviceType::kGpu) continue;
    fail(ErrorCode::kUnimplemented, kStrategy, ": device ", device,
         "; expected CPUs or GPUs, because XLA compiles whole steps of one device");
  }
  const CommunicationOptions& communication = local.cross_device_ops.options;
  if (communication.compression != WireCompression::kNone ||
      communication.non_finite != NonFinitePolicy::kIgnore) {
    fail(ErrorCode::kUnimplemented, kStrategy, ": compression ",
         to_string(communication.compression), " and non_finite ",
         to_string(communication.non_finite),
         "; expected none and ignore, because gradients are summed as they are");
  }
  const std::string& ops = local.cross_device_ops.name;
  if (!ops.empty() && ops != "canonical") {
    fail(ErrorCode::kUnimplemented, kStrategy, ": cross_device_ops '", ops,
         "'; expected canonical, which is the order of sums over blocks");
  }
  local.replicas = mesh_of_blocks(options).num_positions();
  return local;
}

namespace {

/// Returns the axes of these names that have several positions; without names, the first axis.
internal::AxisSet axes_of(const internal::MeshGrid& grid, std::span<const std::string> names) {
  if (names.empty()) return grid.size(1) > 1 ? 1 : 0;
  internal::AxisSet axes = 0;
  for (const std::string& name : names) {
    const auto axis = static_cast<internal::AxisSet>(1 << grid.mesh().index_of(name));
    if (grid.size(axis) > 1) axes |= axis;
  }
  return axes;
}

}  // namespace

MeshStrategy::MeshStrategy(MeshOptions options)
    : MeshStrategy(internal::TeamSetup{.options = options_of_blocks(options, 1)}, options) {}

MeshStrategy::MeshStrategy(std::unique_ptr<Communicator> communicator, MeshOptions options)
    : MeshStrategy(joined(std::move(communicator), options), options) {}

internal::TeamSetup MeshStrategy::joined(std::unique_ptr<Communicator> communicator,
                                         const MeshOptions& options) {
  const LocalStrategyOptions local = options_of_blocks(options, communicator->size());
  return internal::join_team(kStrategy, std::move(communicator), local);
}

MeshStrategy::MeshStrategy(internal::TeamSetup setup, MeshOptions options)
    : Strategy(kStrategy, std::move(setup.options), setup.team),
      team_(std::move(setup.team)),
      options_(std::move(options)),
      grid_(std::make_unique<const internal::MeshGrid>(mesh_of_blocks(options_))),
      groups_(std::make_unique<internal::MeshGroups>(*grid_, extended().services())),
      batch_axes_(axes_of(*grid_, options_.batch_axes)) {}

MeshStrategy::~MeshStrategy() = default;

std::span<const Device> MeshStrategy::replica_devices() const {
  return Strategy::replica_devices().first(1);
}

Layout MeshStrategy::layout_of(const Variable& variable) const {
  const auto* const storage = dynamic_cast<const internal::MeshStorage*>(&variable.storage());
  internal::require(storage && storage->owner() == static_cast<const Strategy*>(this),
                    "MeshStrategy::layout_of: Variable '", variable.name(),
                    "' was not made in the scope of this strategy");
  Layout layout;
  for (int d = 0; d < variable.shape().rank(); ++d) {
    const internal::AxisSet axes = storage->sharding()[d];
    std::string name;
    for (std::size_t i = 0; i < options_.mesh.axes().size(); ++i) {
      if ((axes >> i & 1) != 0) name = options_.mesh.axes()[i].name;
    }
    layout.axes.push_back(std::move(name));
  }
  return layout;
}

std::shared_ptr<VariableStorage> MeshStrategy::create_storage(const Tensor& initial_value,
                                                              VariableOptions options) {
  if (team_ && team_->is_connected()) {
    internal::require_same_variable(kStrategy, *team_,
                                    internal::describe_variable(options.name, initial_value));
  }
  static_cast<void>(extended().is_on_read(options));  // checks them; there is one replica
  const std::optional<Layout> layout = options_.layout.find(options.name);
  internal::MeshPlacement placement{*grid_, extended().services(), batch_axes_};
  if (layout) {
    placement.sharding = grid_->sharding_of(*layout, initial_value.shape(),
                                            concat(kStrategy, ": variable '", options.name, "'"));
  }
  return std::make_shared<internal::MeshStorage>(initial_value, std::move(options),
                                                 static_cast<const Strategy*>(this), placement);
}

void MeshStrategy::run_on_replicas(const std::function<void(ReplicaContext&)>& body) {
  if (team_) team_->require_connection();  // before threads of positions call it concurrently
  extended().run([&](ReplicaContext& context) {
    auto& local = dynamic_cast<internal::LocalReplicaContext&>(context);
    internal::MeshPosition position(local, *grid_, *groups_, batch_axes_);
    internal::MeshReducer reducer(position);
    const internal::StrategyModeScope mode({this, &position, false});
    const OpPartitionerScope partitioned(&position);
    const ReplicaGroupScope group(&ReplicaGroup::of_one());
    const GradientReducerScope reducing(&reducer);
    // All positions draw the same numbers.
    RandomContext random = current_random_context();
    random.replica = 0;
    const RandomContextScope same_numbers(random);
    body(position);
    position.end_step();
  });
}

void MeshStrategy::complete_input_plan(InputPlan& plan) {
  Strategy::complete_input_plan(plan);
  // Each worker reads whole batches, of which its positions take their parts.
  plan.num_workers = 1;
  plan.worker = 0;
}

std::vector<Tensor> MeshStrategy::values_of_all_replicas(const PerReplica<Tensor>& local,
                                                         std::string_view) {
  return local.values();
}

LayoutMap transformer_tensor_parallel(const std::string& axis) {
  const char* const name = axis.c_str();
  return {{"attention/(query|key|value)/kernel$", {"", name, ""}},
          {"attention/(query|key|value)/bias$", {name, ""}},
          {"attention/attention_output/kernel$", {name, "", ""}},
          {"(^|/)(up|gate)/kernel$", {"", name}},
          {"(^|/)(up|gate)/bias$", {name}},
          {"(^|/)down/kernel$", {name, ""}},
          {"(^|/)embedding/embeddings$", {name, ""}},
          {"(^|/)output/kernel$", {"", name}}};
}

Tensor relayout(const Tensor& value, const Layout& layout, const SourceLocation& where) {
  internal::MeshPosition* const position = internal::MeshPosition::current();
  if (position == nullptr) return value;
  const CallSite site(where);
  return position->relayout(value,
                            position->grid().sharding_of(layout, value.shape(),
                                                         concat("relayout at ", to_string(where))));
}

}  // namespace tutti
