// Implements MeshStrategy::explain() and its report.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/mesh/mesh_explanation.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <utility>

#include "core/call_site.h"
#include "core/names.h"
#include "core/thread_random.h"
#include "strategy/replicas/strategy_mode.h"
#include "tensor/tensor_impl.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"

namespace tutti {

namespace internal {

// Tensors without elements.

/// Stand-in for the value of a tensor without elements. While it exists, its bytes are counted in
/// `memory`, unless `memory` is null.
class MeshExplanation::Placeholder final : public LazyValue {
 public:
  Placeholder(std::shared_ptr<Memory> memory, std::uint64_t bytes)
      : memory_(std::move(memory)), bytes_(bytes) {
    if (memory_) memory_->peak = std::max(memory_->peak, memory_->in_use += bytes_);
  }
  ~Placeholder() override {
    if (memory_) memory_->in_use -= bytes_;
  }
  Placeholder& operator=(Placeholder&&) = delete;

  void materialize(std::byte*) override {
    fail(ErrorCode::kFailedPrecondition, tutti::to_string(CallSite::current()),
         ": MeshStrategy::explain: expected a step that reads no elements (item(), to_doubles(), "
         "printing), got a read; tensors of an explained step have no elements; try returning "
         "the value from the step");
  }

 private:
  const std::shared_ptr<Memory> memory_;
  const std::uint64_t bytes_;
};

MeshExplanation::MeshExplanation(const MeshGrid& grid, const MeshOptions& options,
                                 const ReplicaServices& services)
    : grid_(grid), options_(options), services_(services) {}

MeshExplanation* MeshExplanation::current() {
  return dynamic_cast<MeshExplanation*>(StepTracer::current());
}

Tensor MeshExplanation::without_elements(const TensorSpec& spec, Device device, bool counts) {
  return placeholder(
      spec, device,
      std::make_shared<Placeholder>(counts ? memory_ : nullptr, num_bytes(spec.shape, spec.dtype)));
}

std::vector<Tensor> MeshExplanation::run(const OpCall& call) {
  const Device where = call.inputs[0].device();
  std::vector<Tensor> outputs;
  for (const TensorSpec& spec : call.outputs) {
    outputs.push_back(without_elements(spec, where, is_in_step_ && where == device()));
  }
  return outputs;
}

std::vector<Tensor> MeshExplanation::update(const DeviceRule&, std::span<const Tensor> values,
                                            const Tensor&) {
  return {values.begin(), values.end()};
}

std::vector<Tensor> MeshExplanation::all_reduce(ReduceOp, std::span<const Tensor> values,
                                                const SourceLocation&) {
  return {values.begin(), values.end()};
}

Tensor MeshExplanation::all_gather(const Tensor& value, int, const SourceLocation&) {
  return value;
}

bool MeshExplanation::holds(const Tensor& value) const {
  return dynamic_cast<const Placeholder*>(lazy_value(value).get()) != nullptr;
}

std::optional<Tensor> MeshExplanation::create(const TensorSpec& spec, Device device,
                                              const Tensor* value) {
  const bool has_no_elements = value != nullptr && holds(*value);
  if (spec.shape.num_elements() <= 1 && !has_no_elements) return std::nullopt;
  return without_elements(spec, device, is_in_step_ && device == this->device());
}

// Recording of variables, gradients and exchanges.

void MeshExplanation::note_variable(const VariableStorage& storage, const Sharding& sharding,
                                    std::uint64_t bytes, bool is_slot) {
  Noted& variable = variables_[storage.id()];
  variable.cost = {storage.name(), storage.shape(),
                   grid_.describe(sharding, storage.shape().rank()), bytes};
  variable.is_slot = variable.is_slot || is_slot;
  variable.is_whole = sharding.is_whole();
}

void MeshExplanation::note_gradient(const VariableStorage& storage, const Gradient& gradient) {
  if (gradient.is_none()) return;
  const Tensor& values = gradient.is_dense() ? gradient.dense() : gradient.slices().values;
  variables_[storage.id()].gradient_bytes = values.num_bytes();
}

void MeshExplanation::note_gathered(const OpCall& call, std::uint64_t bytes) {
  if (bytes == 0) return;
  Gathered& gathered =
      gathered_[concat(tutti::to_string(call.where), ": ", tutti::to_string(call.op))];
  ++gathered.count;
  gathered.bytes += bytes;
}

void MeshExplanation::note_exchange(ExchangeKind kind, AxisSet axes, std::uint64_t bytes) {
  const auto num_own = static_cast<int>(services_.replica_devices.size());
  const auto place = [&](int position) {
    return std::pair(position / num_own,  // its worker
                     services_.replica_devices[static_cast<std::size_t>(position % num_own)]);
  };
  std::set<std::pair<int, Device>> peers;
  for (const int member : grid_.group(position(), axes)) peers.insert(place(member));
  if (peers.size() == 1) return;  // all blocks are on one device
  std::set<int> groups;           // first positions of the groups that include this device
  for (int other = 0; other < grid_.num_positions(); ++other) {
    if (place(other) == place(position())) groups.insert(grid_.group(other, axes).front());
  }
  const bool is_whole = kind == ExchangeKind::kSendReceive || kind == ExchangeKind::kBroadcast ||
                        kind == ExchangeKind::kReduce;
  if (kind == ExchangeKind::kAllReduce) bytes *= 2;
  if (kind == ExchangeKind::kAllGather) bytes *= static_cast<std::uint64_t>(grid_.size(axes));
  if (!is_whole) bytes = bytes * (peers.size() - 1) / peers.size();
  bytes *= groups.size();
  std::vector<std::string> names;
  for (std::size_t i = 0; i < options_.mesh.axes().size(); ++i) {
    if ((axes >> i & 1) != 0) names.push_back(options_.mesh.axes()[i].name);
  }
  const SourceLocation site = CallSite::current();
  const std::string where = site.line() == 0 ? "" : tutti::to_string(site);
  const auto is_same = [&](const MeshReport::CollectiveCost& other) {
    return other.kind == to_string(kind) && other.axes == names && other.where == where;
  };
  auto found = std::ranges::find_if(report_.collectives, is_same);
  if (found == report_.collectives.end()) {
    found = report_.collectives.insert(found, {to_string(kind), names, 0, 0, where});
  }
  found->bytes += bytes;
  ++found->count;
  if (kind == ExchangeKind::kAllGather) bytes_gathered_ += bytes;
}

Tensor ExplainedGroups::result(const Shape& shape, const Tensor& like) {
  return explanation_.without_elements({shape, like.dtype()}, explanation_.device(), true);
}

std::vector<std::vector<Tensor>> ExplainedGroups::gather(AxisSet axes,
                                                         const std::vector<Tensor>& own,
                                                         const std::string&) {
  const Tensor& part = own.front();
  std::vector<Tensor> group;
  for (int i = 0; i < explanation_.grid().size(axes); ++i) {
    const bool is_own = i == explanation_.grid().index(explanation_.position(), axes);
    group.push_back(is_own ? part : result(part.shape(), part));
  }
  return {group};
}

std::vector<std::vector<Tensor>> ExplainedGroups::all_to_all(AxisSet axes, int dim,
                                                             const std::vector<Tensor>& own,
                                                             const std::string&) {
  const Tensor& value = own.front();
  const int size = explanation_.grid().size(axes);
  const Shape shape = value.shape().with_dim(dim, value.shape().dim(dim) / size);
  std::vector<Tensor> parts;
  for (int i = 0; i < size; ++i) parts.push_back(result(shape, value));
  return {parts};
}

std::vector<Tensor> ExplainedGroups::receive(AxisSet, const std::vector<int>&,
                                             const std::vector<Tensor>& own, const std::string&) {
  return {result(own.front().shape(), own.front())};
}

std::shared_ptr<MeshSums> ExplainedGroups::start_sums(const std::vector<MeshSum>& sums,
                                                      const std::string&) {
  std::vector<std::vector<Tensor>> results;
  for (const MeshSum& sum : sums) {
    const Tensor& value = sum.own.front();
    Shape shape = value.shape();
    if (sum.parts != 0) {
      shape = shape.with_dim(sum.dim, shape.dim(sum.dim) / explanation_.grid().size(sum.parts));
    }
    results.push_back({result(shape, value)});
  }
  return std::make_shared<MeshSums>(std::move(results));
}

std::vector<Tensor> ExplainedGroups::combine(AxisSet, ReduceOp, const std::vector<Tensor>& own,
                                             const std::string&) {
  return {result(own.front().shape(), own.front())};
}

void ExplainedGroups::count(ExchangeKind kind, AxisSet axes, std::uint64_t bytes) {
  explanation_.note_exchange(kind, axes, bytes);
}

// The report.

namespace {

std::string text_of_bytes(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return concat(bytes, " B");
  double value = static_cast<double>(bytes) / 1024.0;
  std::size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < kUnits.size(); ++unit) value /= 1024.0;
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

/// Formats rows as lines with aligned columns; the first row is the heading.
std::string table_of(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace

void MeshExplanation::warn_of_layouts(MeshReport& report) const {
  constexpr std::uint64_t kLargeShare = 20;  // 1/20 of the total or more is a large share
  for (const auto& [key, layout] : options_.layout.entries()) {
    LayoutMap alone;
    alone.set(key, layout);
    const auto has_key = [&](const MeshReport::VariableCost& variable) {
      return alone.find(variable.name).has_value();
    };
    if (std::ranges::any_of(report.variables, has_key)) continue;
    report.warnings.push_back(concat("the layout '", key, "' matches no variable"));
  }
  if (options_.layout.entries().empty() || options_.mesh.num_positions() == 1) return;
  for (const auto& [id, variable] : variables_) {
    const MeshReport::VariableCost& cost = variable.cost;
    if (variable.is_slot || !variable.is_whole || options_.layout.find(cost.name) ||
        cost.bytes <= report.memory.variables / kLargeShare) {
      continue;
    }
    report.warnings.push_back(concat("the variable '", cost.name, "' has no layout: each device ",
                                     "has all of its ", text_of_bytes(cost.bytes)));
  }
}

MeshReport MeshExplanation::report() const {
  MeshReport report = report_;
  std::uint64_t gradients = 0;
  for (const auto& [id, variable] : variables_) {
    (variable.is_slot ? report.memory.slots : report.memory.variables) += variable.cost.bytes;
    if (!variable.is_slot) report.variables.push_back(variable.cost);
    gradients += variable.gradient_bytes;
  }
  const auto blocks =
      static_cast<std::uint64_t>(std::ranges::count(services_.replica_devices, device()));
  report.memory.gradients = blocks * gradients;
  report.memory.activations = blocks * (std::max(memory_->peak, gradients) - gradients);
  for (const auto& [operation, cost] : gathered_) {
    report.warnings.push_back(concat(operation, " gathers sharded inputs: ", cost.count,
                                     cost.count == 1 ? " call sends " : " calls send ",
                                     text_of_bytes(cost.bytes)));
  }
  warn_of_layouts(report);
  return report;
}

}  // namespace internal

std::uint64_t MeshReport::bytes_sent() const {
  std::uint64_t bytes = 0;
  for (const CollectiveCost& collective : collectives) bytes += collective.bytes;
  return bytes;
}

std::string MeshReport::to_string() const {
  using internal::text_of_bytes;
  std::vector<std::vector<std::string>> rows = {{"variable", "shape", "layout", "per device"}};
  for (const VariableCost& each : variables) {
    rows.push_back({each.name, concat(each.shape), each.layout, text_of_bytes(each.bytes)});
  }
  std::string text = internal::table_of(rows);
  rows = {{"memory", "per device"},
          {"variables", text_of_bytes(memory.variables)},
          {"slots", text_of_bytes(memory.slots)},
          {"gradients", text_of_bytes(memory.gradients)},
          {"activations", text_of_bytes(memory.activations)},
          {"in all", text_of_bytes(memory.total())}};
  text += "\n" + internal::table_of(rows);
  rows = {{"exchange", "axes", "count", "sent per device", "line"}};
  for (const CollectiveCost& each : collectives) {
    rows.push_back(
        {each.kind, join(each.axes), concat(each.count), text_of_bytes(each.bytes), each.where});
  }
  rows.push_back({"in all", "", "", text_of_bytes(bytes_sent()), ""});
  text += "\n" + internal::table_of(rows);
  for (const std::string& warning : warnings) text += "warning: " + warning + "\n";
  return text;
}

// The step.

namespace {

/// Idle work during explain(), of which there is none, because the only position never waits.
class NoIdleWork final : public internal::IdleWork {
 public:
  bool available() override { return false; }
  void work() override {}
};

}  // namespace

MeshReport MeshStrategy::explain(const std::function<MeshStep()>& build,
                                 const std::vector<TensorSpec>& batch,
                                 const SourceLocation& where) {
  internal::require_cross_replica(*this, "MeshStrategy::explain");
  const CallSite site(where);
  internal::ReplicaServices services = extended().services();
  internal::MeshExplanation explanation(*grid_, options_, services);
  const StepTracerScope traced(explanation);
  const internal::NumbersFromZero
      numbers;  // so that explain() does not change the layer numbers of later models
  const Scope variables = scope();
  const MeshStep step = build();
  internal::require(step != nullptr,
                    "MeshStrategy::explain: expected a step function, got an empty one");

  // The batch is on a host device, which must differ from the position's device.
  const Device host{DeviceType::kCpu, explanation.device() == Device{} ? 1 : 0};
  std::vector<Tensor> components;
  for (const TensorSpec& spec : batch) {
    components.push_back(explanation.without_elements(spec, host, false));
  }
  const Batch given{Element(std::move(components))};
  internal::ReplicaMonitor monitor(1, false);
  internal::Rendezvous alone(monitor, 1, options_.local.timeout, internal::RunPlace::kCaller);
  NoIdleWork none;
  internal::LocalReplicaContext local(services, alone, none, 0);
  internal::ExplainedGroups groups(explanation, services);
  internal::ForbiddenVariableCreator forbidden;
  const VariableCreatorScope creator(forbidden);
  const NoDeviceScope outside;
  const DeviceScope own_device(explanation.device());
  explanation.begin_step();
  run_position(local, groups, [&](ReplicaContext& context) {
    note_argument(context, given);
    step(given);
  });
  return explanation.report();
}

MeshReport MeshStrategy::explain(const MeshStep& step, const std::vector<TensorSpec>& batch,
                                 const SourceLocation& where) {
  return explain(std::function<MeshStep()>([&] { return step; }), batch, where);
}

}  // namespace tutti
