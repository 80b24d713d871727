// Variables: handles, construction through the current creator, reads that tapes see.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/autograd/variable.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "autograd/recording.h"
#include "core/call_site.h"
#include "core/hash.h"
#include "core/names.h"
#include "tutti/autograd/recompute.h"
#include "tutti/autograd/variable_store.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti {
namespace {

class LocalVariableCreator final : public VariableCreator {
 public:
  std::shared_ptr<VariableStorage> create(const Variable::Initializer& initializer,
                                          const RandomKey& key, VariableOptions options) override {
    const Device device = current_device();
    return make_local_storage(initializer({device, key}), device, std::move(options));
  }
};

VariableCreator*& current_creator() {
  static LocalVariableCreator local;
  thread_local VariableCreator* creator = &local;
  return creator;
}

bool& aggregate_on_read() {
  thread_local bool active = false;
  return active;
}

std::shared_ptr<VariableStorage> create_storage(const Variable::Initializer& initializer,
                                                VariableOptions options) {
  const std::uint64_t number = next_variable_number();
  if (options.name.empty()) options.name = concat("variable_", number);
  RandomKey key;
  key.seed = random_seed();
  key.purpose = kInitializerPurpose;
  key.a = number;
  return current_creator()->create(initializer, key, std::move(options));
}

}  // namespace

Variable::Variable(const Initializer& initializer, VariableOptions options)
    : storage_(create_storage(initializer, std::move(options))) {}

Variable::Variable(const Tensor& initial_value, VariableOptions options)
    : Variable([&](const InitializerContext& context) { return initial_value.to(context.device); },
               std::move(options)) {}

VariableStorage& Variable::storage() const {
  if (!storage_) {
    fail(ErrorCode::kFailedPrecondition,
         "Variable: this handle names no variable; try constructing it with an initial value");
  }
  return *storage_;
}

Tensor Variable::value() const {
  const std::optional<DType> scope = AutocastScope::current();
  const bool is_cast = scope && storage().options().autocast && is_floating(dtype());
  Tensor value = is_cast ? storage().read_as(*scope) : storage().read();
  if (internal::any_tape_records()) {
    value = value.alias();  // each read is a tensor of its own to the tapes
    internal::tapes_see_read(*this, value);
  }
  return is_cast && value.dtype() != *scope ? cast(value, *scope) : value;
}

void Variable::write(AssignOp op, const Tensor& value) {
  if (internal::RepeatScope::active()) return;
  storage().assign(op, value, ValueOrigin::kComputed);
}

void Variable::write(AssignOp op, double value) {
  if (internal::RepeatScope::active()) return;
  // Made where a component lives: nothing is copied to a GPU.
  storage().assign(op, Tensor::full(shape(), value, dtype(), storage().devices().front()),
                   ValueOrigin::kPlain);
}

void Variable::scatter(ScatterOp op, const IndexedSlices& slices) {
  if (!internal::RepeatScope::active()) storage().scatter(op, slices);
}

VariableCreator& VariableCreator::current() { return *current_creator(); }

VariableCreatorScope::VariableCreatorScope(VariableCreator& creator)
    : ThreadScope(current_creator, &creator) {}

AggregateOnReadScope::AggregateOnReadScope() : ThreadScope(aggregate_on_read, true) {}
bool AggregateOnReadScope::active() { return aggregate_on_read(); }

// The hash of a model's weights.

static_assert(std::endian::native == std::endian::little,
              "hashes and checkpoints hold little-endian values");

std::string hash_variables(std::span<const Variable> variables, const SourceLocation& where) {
  const CallSite site(where);
  constexpr std::string_view kEnd("\0", 1);
  Hasher hasher;
  for (const Variable& variable : variables) {
    const Tensor value = variable.storage().read().to(Device{});
    hasher.update(variable.name());
    hasher.update(kEnd);
    hasher.update(to_string(value.dtype()));
    hasher.update(kEnd);
    hasher.update(value.shape().to_string());
    hasher.update(kEnd);
    hasher.update(value.bytes());
  }
  return hasher.hex_digest();
}

namespace {

std::optional<DType>& current_type() {
  thread_local std::optional<DType> dtype;
  return dtype;
}

}  // namespace

AutocastScope::AutocastScope(std::optional<DType> dtype) : ThreadScope(current_type, dtype) {}
std::optional<DType> AutocastScope::current() { return current_type(); }

// Variables by name.

Variable VariableStore::get(const std::string& name, const Shape& shape,
                            const Variable::Initializer& initializer, VariableOptions options) {
  const auto found = std::ranges::find_if(
      variables_, [&](const Variable& variable) { return variable.name() == name; });
  if (!reuses_) {
    if (found != variables_.end()) {
      fail(ErrorCode::kAlreadyExists, "VariableStore: variable '", name,
           "' is there already; expected a new name; try reuse_variables() to share it");
    }
    options.name = name;
    Variable variable(initializer, std::move(options));
    internal::require(variable.shape() == shape, "VariableStore: variable '", name,
                      "': expected shape ", shape, ", got ", variable.shape(),
                      " from its initializer");
    variables_.push_back(variable);
    return variable;
  }
  if (found == variables_.end()) {
    fail(ErrorCode::kNotFound, "VariableStore: there is no variable '", name,
         "' to reuse; expected one of [", join(internal::names_of(variables_, &Variable::name)),
         "]; make it before reuse_variables()");
  }
  internal::require(found->shape() == shape, "VariableStore: variable '", name,
                    "' is reused with shape ", shape, "; expected the shape it was made with, ",
                    found->shape());
  return *found;
}

std::vector<Variable> VariableStore::trainable_variables() const {
  std::vector<Variable> trainable;
  std::ranges::copy_if(variables_, std::back_inserter(trainable),
                       [](const Variable& variable) { return variable.trainable(); });
  return trainable;
}

}  // namespace tutti
