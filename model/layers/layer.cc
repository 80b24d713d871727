// Layers: shared state, naming, building, and traversal of the tree of sub-layers.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/layer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "core/names.h"
#include "model/layers/layer_state.h"
#include "tensor/step_hooks.h"
#include "tutti/autograd/recompute.h"
#include "tutti/autograd/variable.h"
#include "tutti/core/error.h"
#include "tutti/core/fields.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"
#include "tutti/tensor/ops/elementwise.h"
#include "tutti/tensor/tensor.h"

namespace tutti::internal {
namespace {

/// Log of a call that can be repeated: its random keys and the masks of its results.
struct CallLog {
  std::vector<RandomKey> keys;
  std::vector<Tensor> result_masks;
  bool is_full = false;
};

/// Scope that records random keys when a log is first used, and returns the same keys in later
/// uses. Nested calls also get their earlier keys.
class CallLogScope {
 public:
  explicit CallLogScope(CallLog& log)
      : log_(log), repeats_(log.is_full), outer_(std::exchange(innermost, this)) {}
  ~CallLogScope() {
    innermost = outer_;
    log_.is_full = true;
  }
  CallLogScope(const CallLogScope&) = delete;
  CallLogScope& operator=(const CallLogScope&) = delete;

  /// Returns the next key of the innermost scope that repeats keys; if there is none, returns
  /// make().
  template <class Make>
  static RandomKey next_key(const Make& make) {
    CallLogScope* scope = innermost;
    while (scope && !scope->repeats_) scope = scope->outer_;
    if (scope) {
      TUTTI_CHECK(scope->next_ < scope->log_.keys.size(),
                  "expected a repeated layer call to draw as many random numbers as the first "
                  "call, got more");
    }
    const RandomKey key = scope ? scope->log_.keys[scope->next_++] : make();
    for (CallLogScope* each = innermost; each != scope; each = each->outer_) {
      each->log_.keys.push_back(key);
    }
    return key;
  }

 private:
  static inline thread_local CallLogScope* innermost = nullptr;
  CallLog& log_;
  const bool repeats_;
  std::size_t next_ = 0;
  CallLogScope* const outer_;
};

}  // namespace
}  // namespace tutti::internal

namespace tutti {

namespace {

thread_local MaskScope* current_scope = nullptr;

}  // namespace

MaskScope::MaskScope() : is_outermost_(current_scope == nullptr) {
  if (is_outermost_) current_scope = this;
}

MaskScope::~MaskScope() {
  if (is_outermost_) current_scope = nullptr;
}

bool MaskScope::has_masks() { return current_scope && !current_scope->masks_.empty(); }

Tensor MaskScope::mask_of(const Tensor& x) {
  if (!has_masks()) return Tensor();
  const auto found = current_scope->masks_.find(x.id());
  return found == current_scope->masks_.end() ? Tensor() : found->second;
}

void MaskScope::set_mask(const Tensor& x, const Tensor& mask) {
  if (!mask.defined() || !current_scope) return;
  bool fits = mask.dtype() == DType::kBool && mask.rank() <= x.rank();
  for (int axis = 0; fits && axis < mask.rank(); ++axis)
    fits = mask.shape()[axis] == x.shape()[axis];
  internal::require(fits, "MaskScope: expected a bool mask [batch, steps] for a value of shape ",
                    x.shape(), ", got ", mask.dtype(), " ", mask.shape());
  current_scope->masks_.insert_or_assign(x.id(), mask);
}

namespace {

struct NamedPolicy {
  const char* name;
  DType compute;
  DType variable;
};

constexpr std::array kPolicies = {
    NamedPolicy{"float32", DType::kFloat32, DType::kFloat32},
    NamedPolicy{"float64", DType::kFloat64, DType::kFloat64},
    NamedPolicy{"mixed_bfloat16", DType::kBFloat16, DType::kFloat32},
    NamedPolicy{"mixed_float16", DType::kFloat16, DType::kFloat32},
};

const NamedPolicy& find_policy(const std::string& name) {
  return internal::named_entry(kPolicies, &NamedPolicy::name, name, "DTypePolicy", "policy");
}

std::atomic<const NamedPolicy*> current_policy = &kPolicies[0];

}  // namespace

DTypePolicy::DTypePolicy(const std::string& policy_name) {
  const NamedPolicy& found = find_policy(policy_name);
  name = found.name;
  compute = found.compute;
  variable = found.variable;
}

void set_dtype_policy(const DTypePolicy& policy) {
  current_policy.store(&find_policy(policy.name));
}

DTypePolicy dtype_policy() { return current_policy.load()->name; }

Layer::Layer(std::string name, std::optional<Shape> input_shape)
    : state_(std::make_shared<State>()) {
  state_->has_given_name = !name.empty();
  state_->name = std::move(name);
  state_->given_input_shape = std::move(input_shape);
}

Error Layer::named(const Error& error) const {
  return error.with_context(concat("layer '", name(), "' (", type_name(), ")"));
}

AutocastScope Layer::weights_in_compute_type() const {
  const DTypePolicy& policy = state_->policy;
  return AutocastScope(policy.compute == policy.variable ? std::nullopt
                                                         : std::optional(policy.compute));
}

Tensor Layer::converted(const Tensor& input) const {
  if (!is_floating(input.dtype()) || input.dtype() == state_->policy.compute) return input;
  const Tensor result = cast(input, state_->policy.compute);
  MaskScope::set_mask(result, MaskScope::mask_of(input));
  return result;
}

void Layer::pass_mask(const Tensor& input, const Tensor& result) const {
  if (!MaskScope::has_masks() || mask_use() == MaskUse::kOwn) return;
  const Tensor mask = MaskScope::mask_of(input);
  if (!mask.defined()) return;
  if (mask_use() == MaskUse::kKeeps) return MaskScope::set_mask(result, mask);
  const bool made_of_layers =
      std::ranges::any_of(state_->items, [](const State::Item& item) { return !!item.child; });
  if (made_of_layers) return;
  log_warning_once(concat("layer '", name(), "' (", type_name(),
                          "): the mask of the layer's input is dropped, ",
                          "because the layer does not support masks; later layers use all steps"));
}

Tensor Layer::operator()(const Tensor& input, CallContext context) const {
  require_built("called");
  const MaskScope masks;
  try {
    const AutocastScope weights = weights_in_compute_type();
    const Tensor x = converted(input);
    Tensor result =
        state_->remat ? called_again_by_tapes({&x, 1}, context).at(0) : call(x, context);
    pass_mask(x, result);
    return result;
  } catch (const Error& error) {
    throw named(error);
  }
}

Tensor Layer::operator()(const std::vector<Tensor>& inputs, CallContext context) const {
  std::vector<Tensor> results = apply(inputs, context);
  if (results.size() == 1) return results[0];
  fail(ErrorCode::kInvalidArgument, "layer '", name(), "' (", type_name(),
       "): expected one result, got ", results.size(), "; call apply(inputs)");
}

std::vector<Tensor> Layer::apply(std::span<const Tensor> inputs, CallContext context) const {
  require_built("called");
  const MaskScope masks;
  try {
    std::vector<Tensor> same_type;
    for (const Tensor& input : inputs) same_type.push_back(converted(input));
    const AutocastScope weights = weights_in_compute_type();
    std::vector<Tensor> results =
        state_->remat ? called_again_by_tapes(same_type, context) : call_all(same_type, context);
    if (!same_type.empty() && !results.empty()) pass_mask(same_type[0], results[0]);
    return results;
  } catch (const Error& error) {
    throw named(error);
  }
}

namespace {

/// Returns the masks of these values, with an undefined Tensor for each value without a mask.
std::vector<Tensor> masks_of(std::span<const Tensor> values) {
  std::vector<Tensor> masks;
  for (const Tensor& value : values) masks.push_back(MaskScope::mask_of(value));
  return masks;
}

void set_masks(std::span<const Tensor> values, std::span<const Tensor> masks) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (masks[i].defined()) MaskScope::set_mask(values[i], masks[i]);
  }
}

}  // namespace

std::vector<Tensor> Layer::called_again_by_tapes(std::span<const Tensor> inputs,
                                                 CallContext context) const {
  const auto log = std::make_shared<internal::CallLog>();
  const bool wants_losses = context.added_losses != nullptr;
  const auto function = [this, log, wants_losses, training = context.training,
                         masks = masks_of(inputs)](std::span<const Tensor> same) {
    std::vector<Tensor> losses;
    const MaskScope mask_scope;
    set_masks(same, masks);
    const internal::CallLogScope keys(*log);
    std::vector<Tensor> results =
        call_all(same, {.training = training, .added_losses = wants_losses ? &losses : nullptr});
    log->result_masks = masks_of(results);
    results.insert(results.end(), losses.begin(), losses.end());
    return results;
  };
  std::vector<Variable> weights;
  for (const Variable& variable : variables()) {
    if (variable.trainable()) weights.push_back(variable);
  }
  std::vector<Tensor> results = recompute_grad(function, inputs, weights);
  const std::size_t num_results = state_->output_shapes.size();
  if (wants_losses) {
    context.added_losses->insert(context.added_losses->end(),
                                 results.begin() + static_cast<std::ptrdiff_t>(num_results),
                                 results.end());
  }
  results.resize(num_results);
  set_masks(results, log->result_masks);
  return results;
}

void Layer::set_remat(bool remat) { state_->remat = remat; }
bool Layer::is_remat() const { return state_->remat; }

std::vector<Shape> Layer::build_all(std::span<const Shape> inputs) {
  if (inputs.size() == 1) return {build(inputs[0])};
  fail(ErrorCode::kInvalidArgument, "expected one input, got ", inputs.size());
}

std::vector<Tensor> Layer::call_all(std::span<const Tensor> inputs, CallContext context) const {
  if (inputs.size() == 1) return {call(inputs[0], context)};
  fail(ErrorCode::kInvalidArgument, "expected one input, got ", inputs.size());
}

Shape MultiLayer::build(const Shape& input) { return build_all({&input, 1}).at(0); }

Tensor MultiLayer::call(const Tensor& input, CallContext context) const {
  const std::vector<Tensor> results = call_all({&input, 1}, context);
  if (results.size() == 1) return results[0];
  fail(ErrorCode::kInvalidArgument, "expected one result, got ", results.size(),
       "; call apply({&input, 1}), which returns all results");
}

Shape Layer::build_for(const Shape& input) { return build_for({&input, 1}).at(0); }

std::vector<Shape> Layer::build_for(std::span<const Shape> inputs) {
  return build_as(name(), name() + "/", inputs);
}

std::vector<Shape> Layer::build_as(const std::string& name, const std::string& scope,
                                   std::span<const Shape> inputs) {
  if (state_->built) {
    if (!std::ranges::equal(state_->input_shapes, inputs)) {
      fail(ErrorCode::kInvalidArgument, "layer '", this->name(), "' (", type_name(),
           "): the layer is shared, but its inputs have different shapes; expected examples of "
           "shape ",
           join(state_->input_shapes), ", got ", join(inputs), "; use a new layer");
    }
    return state_->output_shapes;
  }
  state_->name = name;
  state_->type_name = type_name();
  state_->scope = scope;
  state_->number = next_layer_number();
  state_->input_shapes.assign(inputs.begin(), inputs.end());
  try {
    state_->output_shapes = build_all(inputs);
  } catch (const Error& error) {
    throw named(error);
  }
  state_->built = true;
  return state_->output_shapes;
}

std::vector<Shape> Layer::shapes_for(std::span<const Shape> inputs) {
  if (state_->built) return build_as("", "", inputs);
  const State before = *state_;
  state_->only_shapes = true;
  state_->input_shapes.assign(inputs.begin(), inputs.end());
  try {
    std::vector<Shape> shapes = build_all(inputs);
    *state_ = before;
    return shapes;
  } catch (const Error& error) {
    *state_ = before;
    throw named(error);
  }
}

void Layer::set_built(const Shape& input, const Shape& output) {
  set_built(std::vector<Shape>{input}, std::vector<Shape>{output});
}

void Layer::set_built(std::vector<Shape> inputs, std::vector<Shape> outputs) {
  state_->made_built = true;
  if (!std::exchange(state_->built, true)) {
    state_->number = next_layer_number();
    if (state_->has_given_name) state_->scope = state_->name + "/";
  }
  state_->input_shapes = std::move(inputs);
  state_->output_shapes = std::move(outputs);
}

const std::string& Layer::type_name() const {
  if (state_->type_name.empty()) state_->type_name = internal::plain_type_name(typeid(*this));
  return state_->type_name;
}

const std::string& Layer::name() const {
  if (state_->name.empty()) state_->name = internal::snake_case(type_name());
  return state_->name;
}
bool Layer::built() const { return state_->built; }
bool Layer::frozen() const { return state_->frozen; }
void Layer::freeze() { state_->frozen = true; }
void Layer::unfreeze() { state_->frozen = false; }

void Layer::require_built(std::string_view what) const {
  if (state_->built) return;
  fail(ErrorCode::kFailedPrecondition, "layer of type ", type_name(), ": ", what,
       " before its weights were created; use Sequential(Input{{784}}, ...), add_layer() in the "
       "model's constructor, or build_for(shape of one example)");
}

const std::vector<Shape>& Layer::input_shapes() const {
  require_built("its input shape was requested");
  return state_->input_shapes;
}

const std::vector<Shape>& Layer::output_shapes() const {
  require_built("its output shape was requested");
  return state_->output_shapes;
}

const Shape& Layer::input_shape() const { return input_shapes().at(0); }
const Shape& Layer::output_shape() const { return output_shapes().at(0); }
const DTypePolicy& Layer::dtype_policy() const { return state_->policy; }
DType Layer::dtype() const { return state_->policy.compute; }

void Layer::set_dtype_policy(const DTypePolicy& policy) {
  if (state_->built) {
    fail(ErrorCode::kFailedPrecondition, "layer '", name(), "' (", type_name(),
         "): set_dtype_policy('", policy.name, "'): expected a layer without weights, got weights ",
         "with the policy '", state_->policy.name,
         "'; set the policy before the layer is added to a model");
  }
  state_->policy = policy;
}

const std::optional<Shape>& Layer::given_input_shape() const { return state_->given_input_shape; }
const std::string& Layer::output_activation() const { return state_->output_activation; }
void Layer::set_output_activation(std::string_view name) { state_->output_activation = name; }

std::vector<Variable> Layer::variables() const {
  std::vector<Variable> found;
  state_->visit_weights([&](const State::Item& item, bool) { found.push_back(item.weight); });
  return found;
}

std::vector<Variable> Layer::trainable_variables() const {
  std::vector<Variable> found;
  state_->visit_weights([&](const State::Item& item, bool is_frozen) {
    if (item.weight.trainable() && !is_frozen) found.push_back(item.weight);
  });
  return found;
}

std::int64_t Layer::num_parameters() const { return state_->num_elements(false); }
std::int64_t Layer::num_trainable_parameters() const { return state_->num_elements(true); }

std::vector<Tensor> Layer::losses() const {
  std::vector<Tensor> found;
  state_->visit_weights([&](const State::Item& item, bool) {
    if (!item.regularizer.empty()) found.push_back(item.regularizer(item.weight.value()));
  });
  return found;
}

void Layer::apply_constraints() {
  state_->visit_weights([](const State::Item& item, bool) {
    if (item.constraint.empty()) return;
    Variable weight = item.weight;
    weight.assign(item.constraint(weight.value()));
  });
}

bool Layer::has_constraints() const {
  bool any = false;
  state_->visit_weights(
      [&](const State::Item& item, bool) { any = any || !item.constraint.empty(); });
  return any;
}

std::vector<std::shared_ptr<Metric>> Layer::metrics() const {
  std::vector<std::shared_ptr<Metric>> found;
  state_->collect_metrics(found);
  return found;
}

std::vector<Layer::Summary> Layer::sublayers() const {
  std::vector<Summary> summaries;
  for (const State::Item& item : state_->items) {
    if (!item.child) continue;
    summaries.push_back({item.child->name, item.child->type_name, item.child->output_shapes.at(0),
                         item.child->num_elements(false)});
  }
  return summaries;
}

Variable Layer::add_weight(const Initializer& initializer, const Shape& shape,
                           VariableOptions options, const Regularizer& regularizer,
                           const Constraint& constraint) {
  if (state_->only_shapes) return Variable();
  options.name = state_->scope + options.name;
  Variable variable(initializer.for_shape(shape, state_->policy.variable), std::move(options));
  state_->items.push_back({variable, regularizer, constraint, nullptr});
  state_->weights.push_back(variable);
  return variable;
}

std::span<const Variable> Layer::own_weights() const { return state_->weights; }

const Variable& Layer::weight(std::size_t index) const {
  TUTTI_CHECK(index < state_->weights.size(), "layer '", name(), "' has no weight ", index);
  return state_->weights[index];
}

std::string Layer::unique_name(const Layer& layer) const {
  auto taken = [&](const std::string& name) {
    return std::ranges::any_of(state_->items, [&](const State::Item& item) {
      return item.child && item.child->name == name;
    });
  };
  if (layer.built() || layer.state_->has_given_name) {
    internal::require(
        !taken(layer.name()), "add_layer: the name '", layer.name(),
        "' is taken by another layer of this model; names must be unique; use .name = \"",
        layer.name(), "_1\"");
    return layer.name();
  }
  const std::string base = internal::snake_case(layer.type_name());
  std::string name = base;
  for (int i = 1; taken(name); ++i) name = concat(base, '_', i);
  return name;
}

Shape Layer::add_layer(Layer& layer, const Shape& input) {
  return add_layer(layer, std::span<const Shape>(&input, 1)).at(0);
}

std::vector<Shape> Layer::add_layer(Layer& layer, std::span<const Shape> inputs) {
  if (state_->only_shapes) return layer.shapes_for(inputs);
  const bool known = std::ranges::any_of(
      state_->items, [&](const State::Item& item) { return item.child == layer.state_; });
  if (known) return layer.build_as(layer.name(), "", inputs);
  const std::string name = unique_name(layer);
  std::vector<Shape> outputs = layer.build_as(name, state_->scope + name + "/", inputs);
  state_->items.push_back({Variable(), Regularizer(), Constraint(), layer.state_});
  return outputs;
}

void Layer::add_metric(std::shared_ptr<Metric> metric) {
  state_->metrics.push_back(std::move(metric));
}

void Layer::add_loss(CallContext context, const Tensor& loss) {
  if (context.added_losses) context.added_losses->push_back(loss);
}

RandomKey Layer::next_random_key() const {
  const RandomKey key = internal::CallLogScope::next_key([&] {
    const RandomContext& context = current_random_context();
    RandomKey fresh;
    fresh.seed = context.seed;
    fresh.purpose = kDropoutPurpose;
    fresh.a = context.step;
    fresh.b = context.replica;
    fresh.c = (state_->number << 32) | next_call_ordinal(state_->number);
    return fresh;
  });
  if (StepRecorder* const recorder = StepRecorder::current()) recorder->follows_step(key);
  return key;
}

}  // namespace tutti
