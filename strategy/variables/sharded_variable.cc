// Implements ShardedVariable, whose storage consists of variables.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/strategy/variables/sharded_variable.h"

#include <set>
#include <utility>

#include "core/names.h"
#include "strategy/variables/distributed_variable.h"
#include "tutti/autograd/gradient_tape.h"
#include "tutti/core/sync.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

Shape joined_shape(const std::vector<Variable>& parts, const std::string& name) {
  internal::require(!parts.empty(), "ShardedVariable '", name, "': expected variables, got none");
  const Variable& first = parts.front();
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const Variable& part = parts[i];
    if (part.shape().rank() == 0 || part.dtype() != first.dtype() ||
        part.shape().with_dim(0, 0) != first.shape().with_dim(0, 0)) {
      fail(ErrorCode::kInvalidArgument, "ShardedVariable '", name, "': part ", i, ", '",
           part.name(), "', is ", part.shape(), " of ", part.dtype(), "; expected rows like those ",
           "of '", first.name(), "', ", first.shape(), " of ", first.dtype());
    }
    rows += part.shape().dim(0);
  }
  return first.shape().with_dim(0, rows);
}

VariableOptions joined_options(const std::vector<Variable>& parts, const std::string& name) {
  VariableOptions options;
  options.name = name;
  if (parts.empty()) return options;
  options = parts.front().storage().options();
  options.name = name;
  return options;
}

/// Reservation of variables as parts of one ShardedVariable, for the lifetime of this object.
class ReservedShards {
 public:
  /// Throws kInvalidArgument if one of `parts` already belongs to a ShardedVariable or is passed
  /// twice.
  ReservedShards(std::span<const Variable> parts, const std::string& name) {
    for (const Variable& part : parts) ids_.insert(part.storage().id());
    Ids& taken = all_taken();
    MutexLock lock(taken.mutex);
    for (const Variable& part : parts) {
      if (!taken.ids.contains(part.storage().id())) continue;
      fail(ErrorCode::kInvalidArgument, "ShardedVariable '", name, "': '", part.name(),
           "' is already a part of another ShardedVariable, which is saved as one tensor; expected "
           "variables that belong to no ShardedVariable; use that ShardedVariable, or new "
           "variables");
    }
    internal::require(ids_.size() == parts.size(), "ShardedVariable '", name, "': expected ",
                      parts.size(), " different variables, got ", ids_.size(),
                      "; pass each variable once");
    taken.ids.insert(ids_.begin(), ids_.end());
  }
  ~ReservedShards() {
    Ids& taken = all_taken();
    MutexLock lock(taken.mutex);
    for (const std::uint64_t id : ids_) taken.ids.erase(id);
  }
  ReservedShards(const ReservedShards&) = delete;
  ReservedShards& operator=(const ReservedShards&) = delete;

 private:
  struct Ids {
    Mutex mutex;
    std::set<std::uint64_t> ids TUTTI_GUARDED_BY(mutex);
  };
  static Ids& all_taken() {
    static Ids* const of_the_process = new Ids;  // variables may outlive other static objects
    return *of_the_process;
  }

  std::set<std::uint64_t> ids_;
};

Tensor numbers(const std::vector<std::int64_t>& values, Device device = {}) {
  return Tensor::from(Shape{static_cast<std::int64_t>(values.size())}, values, device);
}

class JoinedStorage final : public VariableStorage {
 public:
  JoinedStorage(std::vector<Variable> parts, const std::string& name)
      : VariableStorage(joined_shape(parts, name), parts.front().dtype(),
                        joined_options(parts, name), parts.front().storage().owner()),
        parts_(std::move(parts)),
        taken_(parts_, name) {}

  std::span<const Variable> parts() const { return parts_; }

  Tensor read() const override {
    return joined([](const Variable& part) { return part.storage().read(); });
  }
  bool reads_rows() const override { return true; }
  Tensor read_rows(const Tensor& rows) const override;
  std::vector<Tensor> local_components() const override { return {read()}; }
  std::vector<Device> devices() const override { return parts_.front().storage().devices(); }

  void assign(AssignOp op, const Tensor& value, ValueOrigin origin) override {
    for_each_part(checked_value(value, concat(op).c_str()),
                  [&](VariableStorage& part, const Tensor& own) { part.assign(op, own, origin); });
  }
  void assign_replicated(AssignOp op, const Tensor& value) override {
    for_each_part(
        checked_value(value, concat(op).c_str()),
        [&](VariableStorage& part, const Tensor& own) { part.assign_replicated(op, own); });
  }
  void scatter(ScatterOp op, const IndexedSlices& slices) override {
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const IndexedSlices own = slices_of(slices, i);
      if (own.indices.num_elements() > 0) parts_[i].storage().scatter(op, own);
    }
  }
  Variable create_slot(const std::string& slot_name, double initial_value) override;
  void update(const UpdateRule& rule, std::span<const Variable> slots, const Gradient& gradient,
              const UpdateScalars& scalars) override;
  std::vector<NamedTensor> save() const override { return {{name(), read()}}; }
  void restore(const TensorLookup& lookup) override {
    assign(AssignOp::kAssign, checked_restore(lookup, name()), ValueOrigin::kComputed);
  }

 private:
  std::int64_t first_row(std::size_t part) const {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < part; ++i) first += parts_[i].shape().dim(0);
    return first;
  }

  Tensor joined(const std::function<Tensor(const Variable&)>& value_of) const {
    const GradientTape::StopRecording stop;
    const NoDeviceScope where_parts_are;
    std::vector<Tensor> values;
    for (const Variable& part : parts_) values.push_back(value_of(part));
    return tutti::concat(std::span<const Tensor>(values), 0);
  }

  void for_each_part(const Tensor& value,
                     const std::function<void(VariableStorage&, const Tensor&)>& fn) {
    const GradientTape::StopRecording stop;
    const NoDeviceScope where_the_value_is;
    for (std::size_t i = 0; i < parts_.size(); ++i) fn(parts_[i].storage(), rows_of(value, i));
  }

  Tensor rows_of(const Tensor& value, std::size_t part) const {
    return value.detached_rows(first_row(part), parts_[part].shape().dim(0));
  }

  /// Returns the row numbers in `indices`. Throws kInvalidArgument naming a row that does not
  /// exist.
  std::vector<std::int64_t> numbers_of(const Tensor& indices) const {
    return internal::checked_rows(indices.to(Device{}), shape().dim(0),
                                  concat("Variable '", name(), "'"));
  }

  internal::ListedRows rows_in(const std::vector<std::int64_t>& rows, std::size_t part) const {
    return internal::rows_within(first_row(part), parts_[part].shape().dim(0), rows);
  }

  IndexedSlices slices_of(const IndexedSlices& slices, std::size_t part) const {
    const GradientTape::StopRecording stop;
    const NoDeviceScope where_values_are;
    const internal::ListedRows own = rows_in(numbers_of(slices.indices), part);
    return {gather(slices.values, numbers(own.positions, slices.values.device())),
            numbers(own.rows), parts_[part].shape()};
  }

  const std::vector<Variable> parts_;
  const ReservedShards taken_;
};

Tensor JoinedStorage::read_rows(const Tensor& rows) const {
  const GradientTape::StopRecording stop;
  const NoDeviceScope where_parts_are;
  const auto wanted = numbers_of(rows);
  std::vector<Tensor> values;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const internal::ListedRows own = rows_in(wanted, i);
    if (!own.rows.empty()) values.push_back(parts_[i].storage().read_rows(numbers(own.rows)));
  }
  if (values.empty()) return Tensor::zeros(shape().with_dim(0, 0), dtype());
  return tutti::concat(std::span<const Tensor>(values), 0);
}

Variable JoinedStorage::create_slot(const std::string& slot_name, double initial_value) {
  std::vector<Variable> slots;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    slots.push_back(parts_[i].storage().create_slot(concat(slot_name, "/part_", i), initial_value));
  }
  return Variable(std::make_shared<JoinedStorage>(std::move(slots), slot_name));
}

void JoinedStorage::update(const UpdateRule& rule, std::span<const Variable> slots,
                           const Gradient& gradient, const UpdateScalars& scalars) {
  if (rule.uses_norms() && parts_.size() > 1) {
    fail(ErrorCode::kUnimplemented, "Variable '", name(), "'.update (", rule.name(),
         "): the rule needs norms of the whole variable, which has ", parts_.size(),
         " parts; expected one part; try a rule without norms");
  }
  const GradientTape::StopRecording stop;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    std::vector<Variable> own_slots;
    for (const Variable& slot : slots) {
      const auto* joined = dynamic_cast<const JoinedStorage*>(&slot.storage());
      TUTTI_CHECK(joined && joined->parts_.size() == parts_.size(),
                  "ShardedVariable: expected a slot made by create_slot()");
      own_slots.push_back(joined->parts_[i]);
    }
    const Gradient own = gradient.is_slices()  ? Gradient(slices_of(gradient.slices(), i))
                         : gradient.is_dense() ? Gradient(rows_of(gradient.dense(), i))
                                               : Gradient();
    parts_[i].storage().update(rule, own_slots, own, scalars);
  }
}

}  // namespace

internal::ListedRows internal::rows_within(std::int64_t first, std::int64_t count,
                                           const std::vector<std::int64_t>& rows) {
  ListedRows found;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::int64_t row = rows[i] - first;
    if (row < 0 || row >= count) continue;
    found.positions.push_back(static_cast<std::int64_t>(i));
    found.rows.push_back(row);
  }
  return found;
}

std::span<const Variable> internal::joined_parts(const Variable& variable) {
  const auto* const joined = dynamic_cast<const JoinedStorage*>(&variable.storage());
  return joined ? joined->parts() : std::span<const Variable>();
}

ShardedVariable::ShardedVariable(std::vector<Variable> variables, const std::string& name)
    : Variable([&] {
        (void)joined_shape(variables, name);  // throws before parts are marked as used
        return std::make_shared<JoinedStorage>(std::move(variables), name);
      }()) {}

std::span<const Variable> ShardedVariable::variables() const {
  return internal::joined_parts(*this);
}

}  // namespace tutti
