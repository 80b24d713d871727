// Implements MeshStrategy: positions on threads, and the step on each of them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/mesh/mesh_strategy.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "core/call_site.h"
#include "core/names.h"
#include "strategy/mesh/mesh_explanation.h"
#include "strategy/mesh/mesh_position.h"
#include "strategy/mesh/mesh_variable.h"
#include "strategy/replicas/strategy_mode.h"
#include "strategy/strategy_options.h"
#include "tutti/core/random.h"
#include "tutti/cross_device_ops/gradient_ops.h"
#include "tutti/optimizer/gradient_reducer.h"

namespace tutti {

namespace internal {

/// Reducer that passes each gradient to the optimizer with the sharding of its variable. A gradient
/// stays a partial sum until the terms from all uses of its variable have been added. Then it is
/// summed in a bucket with other gradients. Sums across workers run while the backward pass
/// continues.
class MeshReducer final : public GradientReducer {
 public:
  MeshReducer(MeshPosition& position, std::int64_t bytes_per_bucket)
      : position_(position), bytes_per_bucket_(bytes_per_bucket) {}

  void begin(std::span<const Variable> variables) override;
  void ready(std::size_t index, const Gradient& gradient) override;
  std::vector<Gradient> finish() override;
  void updates_done() override { position_.meet(RendezvousKind::kUpdatesDone); }

 private:
  /// Starts summing the gradients that are ready.
  void start();
  void start(std::size_t index, std::vector<PositionSum>& sums);

  /// Gradient with its variable's sharding.
  struct Result {
    ShardedTensor value;  // has no local part while it is summed
    bool is_summed = false;
  };
  /// For a variable that is not sharded, returns the sum of the positions' slices. The additions
  /// are in the order of a data-parallel strategy whose replicas have the positions' rows.
  IndexedSlices summed(const IndexedSlices& slices) const;

  MeshPosition& position_;
  const std::int64_t bytes_per_bucket_;
  std::vector<Variable> variables_;
  std::vector<Gradient> gradients_;
  std::vector<std::size_t> ready_;  // indices of gradients whose sums have not been started
  std::int64_t ready_bytes_ = 0;
  std::vector<std::pair<std::size_t, Result>> results_;  // variable and result, in summation order
  std::vector<std::shared_ptr<MeshSums>> started_;
};

void MeshReducer::begin(std::span<const Variable> variables) {
  variables_.assign(variables.begin(), variables.end());
  gradients_.assign(variables.size(), Gradient());
  ready_.clear(), results_.clear(), started_.clear();
  ready_bytes_ = 0;
}

void MeshReducer::ready(std::size_t index, const Gradient& gradient) {
  gradients_[index] = gradient;
  if (gradient.is_none()) return;
  ready_.push_back(index);
  ready_bytes_ += static_cast<std::int64_t>(variables_[index].shape().num_elements() *
                                            size_of(variables_[index].dtype()));
  if (ready_bytes_ >= bytes_per_bucket_) start();
}

void MeshReducer::start() {
  std::vector<PositionSum> sums;
  for (const std::size_t index : ready_) start(index, sums);
  ready_.clear();
  ready_bytes_ = 0;
  if (!sums.empty()) started_.push_back(position_.start_sums(sums));
}

void MeshReducer::start(std::size_t index, std::vector<PositionSum>& sums) {
  Gradient& gradient = gradients_[index];
  const auto* const storage = dynamic_cast<const MeshStorage*>(&variables_[index].storage());
  const Sharding wanted = storage ? storage->sharding() : Sharding();
  if (gradient.is_slices() && wanted.is_whole()) {
    gradient = summed(gradient.slices());
    return;
  }
  const ShardedTensor value = position_.part_of(gradient.to_dense());
  // Computes the position's term in the wanted sharding. A dimension that `wanted` shards over axes
  // of the sum stays unsharded in the term, because the sum itself returns shards along it.
  Sharding term = wanted;
  term.partial = value.sharding.partial;
  PositionSum sum;
  for (int d = 0; d < value.spec.shape.rank(); ++d) {
    if ((wanted[d] & term.partial) == 0) continue;
    if (sum.parts == 0 && (wanted[d] & ~term.partial) == 0 && value.sharding[d] == 0) {
      sum.parts = wanted[d];
      sum.dim = d;
      term[d] = 0;
    } else {
      term.partial &= static_cast<AxisSet>(~wanted[d]);
    }
  }
  Result result{{wanted, position_.local_as(value, term), value.spec}, term.partial != 0};
  if (result.is_summed) {
    sum.axes = term.partial;
    sum.own = std::exchange(result.value.local, Tensor());
    sums.push_back(std::move(sum));
  }
  gradient = Gradient();  // frees its memory, unless the term shares it
  results_.emplace_back(index, std::move(result));
}

IndexedSlices MeshReducer::summed(const IndexedSlices& slices) const {
  const int num_parts = position_.grid().size(position_.part_of(slices.values).sharding[0]);
  const Tensor values = position_.whole(slices.values), indices = position_.whole(slices.indices);
  if (MeshExplanation::current()) return {values, indices, slices.dense_shape};  // no elements
  const std::int64_t rows = indices.num_elements() / num_parts;
  std::vector<IndexedSlices> parts;
  for (int part = 0; part < num_parts; ++part) {
    parts.push_back({values.detached_rows(part * rows, rows),
                     indices.detached_rows(part * rows, rows), slices.dense_shape});
  }
  return sum_slices_canonically(parts, position_.device());
}

std::vector<Gradient> MeshReducer::finish() {
  start();
  const std::vector<Tensor> sums = position_.join(started_);
  started_.clear();
  std::size_t next = 0;
  for (auto& [index, result] : results_) {
    if (result.is_summed) result.value.local = sums[next++];
    gradients_[index] = position_.tensor_of(result.value);
  }
  results_.clear();
  return std::move(gradients_);
}

}  // namespace internal

namespace {

constexpr const char* kStrategy = "mesh";
constexpr std::int64_t kBytesPerBucket = std::int64_t{4} << 20;

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
                    ": replicas: expected 0 (not set), because a mesh has one replica, got ",
                    local.replicas);
  internal::require(local.replica_weights.empty(), kStrategy,
                    ": replica_weights: expected none, because a batch is divided equally");
  internal::require(positions % workers == 0, kStrategy, ": the ", positions, " positions of ",
                    options.mesh.to_string(), " cannot be divided evenly among ", workers,
                    " workers");
  const int own = positions / workers;
  std::vector<Device>& devices = local.devices.devices;
  for (int i = 0; options.local.devices.devices.empty() && i < own; ++i) {
    devices.push_back({DeviceType::kCpu, i});
  }
  const DeviceMesh blocks = mesh_of_blocks(options);
  internal::require(
      internal::MeshGroups::fits(options.mesh, own), kStrategy, ": each of ", workers,
      " workers would have ", own, " of the ", positions, " positions of ",
      options.mesh.to_string(),
      "; expected the positions of each worker to cover an equal part of one axis and all of the ",
      "axes after it; try another number of workers");
  internal::require(std::ssize(devices) == own, kStrategy, ": devices: expected ", own,
                    ", one for each position of ", options.mesh.to_string(),
                    workers > 1 ? " that this worker has" : "", ", got ", devices.size());
  for (const Device& device : devices) {
    if (device.type == DeviceType::kCpu || device.type == DeviceType::kGpu) continue;
    fail(ErrorCode::kUnimplemented, kStrategy, ": expected CPUs or GPUs, got device ", device,
         "; XLA compiles whole steps for one device");
  }
  const CommunicationOptions& communication = local.cross_device_ops.options;
  if (communication.compression != WireCompression::kNone ||
      communication.non_finite != NonFinitePolicy::kIgnore) {
    fail(ErrorCode::kUnimplemented, kStrategy,
         ": expected compression none and non_finite ignore, got compression ",
         to_string(communication.compression), " and non_finite ",
         to_string(communication.non_finite), "; a mesh sums gradients unchanged");
  }
  const std::string& ops = local.cross_device_ops.name;
  if (!ops.empty() && ops != "canonical") {
    fail(ErrorCode::kUnimplemented, kStrategy, ": expected cross_device_ops canonical, got '", ops,
         "'; omit this option, because a mesh sums blocks in canonical order");
  }
  local.replicas = blocks.num_positions();
  return local;
}

namespace {

/// Returns the named axes that have more than one position.
internal::AxisSet axes_of(const internal::MeshGrid& grid, std::span<const std::string> names) {
  internal::AxisSet axes = 0;
  for (const std::string& name : names) axes |= grid.axis(name);
  return axes & grid.all_axes();
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
      grid_(std::make_unique<const internal::MeshGrid>(mesh_of_blocks(options_), options_.mesh)),
      groups_(std::make_unique<internal::MeshGroups>(*grid_, extended().services())),
      reads_(team_ ? std::make_shared<internal::ReadAhead>(team_) : nullptr),
      batch_axes_(options_.batch_axes.empty() ? axes_of(*grid_, {{grid_->mesh().axes()[0].name}})
                                              : axes_of(*grid_, options_.batch_axes)),
      sequence_axes_(options_.sequence_axis.empty() ? internal::AxisSet{0}
                                                    : axes_of(*grid_, {{options_.sequence_axis}})),
      storage_axes_(axes_of(*grid_, options_.storage_axes)) {
  internal::require((batch_axes_ & sequence_axes_) == 0, kStrategy, ": sequence_axis '",
                    options_.sequence_axis, "' is one of batch_axes; expected another axis");
}

MeshStrategy::~MeshStrategy() = default;

std::span<const Device> MeshStrategy::replica_devices() const {
  return Strategy::replica_devices().first(1);
}

std::vector<Device> MeshStrategy::worker_devices() const {
  const std::span<const Device> all = Strategy::replica_devices();
  std::vector<Device> devices(all.begin(), all.end());
  // Blocks on the same device are adjacent.
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return devices;
}

Layout MeshStrategy::layout_of(const Variable& variable) const {
  const auto* const storage = dynamic_cast<const internal::MeshStorage*>(&variable.storage());
  internal::require(storage && storage->owner() == static_cast<const Strategy*>(this),
                    "MeshStrategy::layout_of: Variable '", variable.name(),
                    "' was not created in the scope of this strategy");
  Layout layout;
  for (int d = 0; d < variable.shape().rank(); ++d) {
    const internal::AxisSet axes = storage->read_sharding()[d];
    std::string name;
    for (std::size_t i = 0; i < options_.mesh.axes().size(); ++i) {
      if ((axes >> i & 1) != 0) name = options_.mesh.axes()[i].name;
    }
    layout.axes.push_back(std::move(name));
  }
  return layout;
}

std::map<std::string, MeshTraffic> MeshStrategy::traffic() const { return groups_->traffic(); }

std::shared_ptr<VariableStorage> MeshStrategy::create_storage(const Tensor& initial_value,
                                                              VariableOptions options) {
  if (team_ && team_->is_connected() && !internal::MeshExplanation::current()) {
    internal::require_same_variable(kStrategy, *team_,
                                    internal::describe_variable(options.name, initial_value));
  }
  static_cast<void>(extended().is_on_read(options));  // validates the options; result is unused
  const std::optional<Layout> layout = options_.layout.find(options.name);
  internal::MeshPlacement placement{*grid_, extended().services(), *groups_, reads_};
  placement.reads_again = options_.reshard_after_forward;
  const Shape& shape = initial_value.shape();
  if (layout) {
    placement.sharding =
        grid_->sharding_of(*layout, shape, concat(kStrategy, ": variable '", options.name, "'"));
  }
  placement.gathered = storage_axes_ & static_cast<internal::AxisSet>(~placement.sharding.cut());
  for (int d = 0; d < shape.rank() && placement.gathered != 0; ++d) {
    if (placement.sharding[d] != 0 || shape.dim(d) % grid_->size(placement.gathered) != 0) continue;
    placement.sharding[d] = placement.gathered;
    break;
  }
  return std::make_shared<internal::MeshStorage>(initial_value, std::move(options),
                                                 static_cast<const Strategy*>(this), placement);
}

void MeshStrategy::run_on_replicas(const std::function<void(ReplicaContext&)>& body) {
  if (team_) {
    team_->require_connection();  // checked here, before positions make concurrent calls
    reads_->begin_run();
  }
  extended().run([&](ReplicaContext& context) {
    run_position(dynamic_cast<internal::LocalReplicaContext&>(context), *groups_, body);
  });
}

void MeshStrategy::run_position(internal::LocalReplicaContext& local, internal::MeshGroups& groups,
                                const std::function<void(ReplicaContext&)>& body) {
  internal::MeshPosition position(local, *grid_, groups, batch_axes_, sequence_axes_);
  const std::int64_t bucket = extended().services().communication.bytes_per_pack;
  internal::MeshReducer reducer(position, bucket == 0 ? kBytesPerBucket : bucket);
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
}

void MeshStrategy::complete_input_plan(InputPlan& plan) {
  Strategy::complete_input_plan(plan);
  // Each worker reads global batches; each position uses a part of the batch.
  plan.num_workers = 1;
  plan.worker = 0;
}

std::vector<Tensor> MeshStrategy::values_of_all_replicas(const PerReplica<Tensor>& local,
                                                         std::string_view) {
  return local.values();
}

MeshOptions fully_sharded(int devices) {
  MeshOptions options;
  options.mesh = {{"data", devices}};
  options.storage_axes = {"data"};
  return options;
}

MeshOptions hybrid_sharded(int copies, int shards) {
  MeshOptions options;
  options.mesh = {{"copies", copies}, {"data", shards}};
  options.batch_axes = {"copies", "data"};
  options.storage_axes = {"data"};
  return options;
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
          {"(^|/)output/kernel$", {"", name}},
          {"(^|/)output/bias$", {name}}};
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
