// Making shards, and slots beside them.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/parameter_server/sharded_storage.h"

#include <utility>

#include "tutti/autograd/gradient_tape.h"
#include "tutti/strategy/parameter_server/cached_reads.h"

namespace tutti::internal {
namespace {

std::vector<std::unique_ptr<Component>> one_component(
    const std::shared_ptr<ParameterServers>& servers, std::vector<RemoteShard> shards) {
  std::vector<std::unique_ptr<Component>> components;
  components.push_back(std::make_unique<ShardedComponent>(servers, std::move(shards)));
  return components;
}

std::variant<ValueGenerator, Tensor> values_of(const RemoteShard& shard, bool is_alone,
                                               const std::variant<ValueGenerator, Tensor>& whole) {
  if (is_alone || std::holds_alternative<ValueGenerator>(whole)) return whole;
  return std::get<Tensor>(whole).rows(shard.spec.first_row, shard.spec.num_rows);
}

}  // namespace

void create_shards(ParameterServers& servers, const std::vector<RemoteShard>& shards,
                   const std::variant<ValueGenerator, Tensor>& initial) {
  const GradientTape::StopRecording stop;
  std::vector<std::vector<Operation>> creations(static_cast<std::size_t>(servers.count()));
  for (const RemoteShard& shard : shards) {
    creations[static_cast<std::size_t>(shard.server)].push_back(
        CreateShard{shard.spec, values_of(shard, shards.size() == 1, initial)});
  }
  std::vector<std::shared_ptr<PendingAnswers>> pending;
  for (int s = 0; s < servers.count(); ++s) {
    auto& own = creations[static_cast<std::size_t>(s)];
    if (!own.empty()) pending.push_back(servers.link(s).read(std::move(own)));
  }
  for (const auto& each : pending) (void)each->wait(servers.deadline());
}

ShardedStorage::ShardedStorage(const Shape& shape, DType dtype, VariableOptions options,
                               const void* owner, std::shared_ptr<const Placement> placement,
                               int work_number, std::shared_ptr<ParameterServers> servers,
                               std::vector<RemoteShard> shards)
    : MirroredStorage(shape, dtype, std::move(options), owner, std::move(placement), work_number,
                      one_component(servers, std::move(shards))),
      servers_(std::move(servers)) {}

Tensor ShardedStorage::read() const {
  CachedReads* const cached = CachedReads::current();
  return cached ? cached->get(*this, [this] { return MirroredStorage::read(); })
                : MirroredStorage::read();
}

/// Outside run all workers call it, and one changes the values; in a replica the one to whom the
/// work falls does, and all meet in updates_done().
void ShardedStorage::assign_replicated(AssignOp op, const Tensor& value) {
  const Tensor operand = checked_operand(op, value);
  if (!replica("assign_replicated")) return remote().assign(op, operand);
  if (servers_->trains_apart() && (op != AssignOp::kAdd || is_floating(dtype()))) {
    fail(ErrorCode::kUnimplemented, "Variable '", name(), "'.", op,
         ": an optimizer keeps state of a step in it, which workers that train apart would mix up; "
         "expected no gradient accumulation and no dynamic loss scaling; try UpdateMode::kSync");
  }
  for_each_own_component("assign_replicated", [&](int) {
    if (servers_->sums_on_servers()) return remote().add_once(operand);
    remote().assign_by_one(op, operand);
  });
}

void ShardedStorage::update(const UpdateRule& rule, std::span<const Variable> slots,
                            const Gradient& gradient, const UpdateScalars& scalars) {
  const auto update_once = [&] { MirroredStorage::update(rule, slots, gradient, scalars); };
  if (replica("update")) return update_once();
  servers_->change_together(update_once, concat("'", name(), "'.update"));
}

void ShardedStorage::restore(const TensorLookup& lookup) {
  if (servers_->may_restore()) return MirroredStorage::restore(lookup);
  (void)checked_restore(lookup, name());
}

Variable ShardedStorage::create_slot(const std::string& slot_name, double initial_value) {
  const std::string unique = servers_->unique_name(slot_name);
  std::vector<RemoteShard> own;
  for (const RemoteShard& shard : shards()) {
    ShardSpec spec = shard.spec;
    spec.variable = unique;
    own.emplace_back(shard.server, std::move(spec));
  }
  ValueGenerator constant;
  constant.a = initial_value;
  constant.dtype = dtype();
  constant.shape = shape();
  servers_->change_together([&] { create_shards(*servers_, own, constant); },
                            concat("'", slot_name, "'"));
  VariableOptions slot_options;
  slot_options.name = slot_name;
  slot_options.trainable = false;
  return Variable(std::make_shared<ShardedStorage>(shape(), dtype(), std::move(slot_options),
                                                   owner(), placement(), work_number(), servers_,
                                                   std::move(own)));
}

}  // namespace tutti::internal
