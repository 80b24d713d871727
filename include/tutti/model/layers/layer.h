// Layer: weights and a function of tensors, with data types and masks. Independent of strategies.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tutti/autograd/variable.h"
#include "tutti/core/json_values.h"
#include "tutti/model/layers/initializers.h"
#include "tutti/model/layers/metric.h"
#include "tutti/model/layers/regularization.h"
#include "tutti/tensor/dtype.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

/// Scope in which this thread stores masks of layers' results: bool [batch, steps], true for
/// unmasked steps. Embedding and Masking create masks; recurrent layers, attention, pooling over
/// steps and losses read them; see Layer::mask_use() for other layers. Every layer call opens a
/// scope, and nested scopes act as one. Open a scope around layers that are called one by one, or
/// around a model and its loss, as Model::fit() does.
class MaskScope {
 public:
  MaskScope();
  ~MaskScope();
  MaskScope(const MaskScope&) = delete;
  MaskScope& operator=(const MaskScope&) = delete;

  /// Returns the mask of `x`; undefined if all its steps are unmasked.
  static Tensor mask_of(const Tensor& x);
  /// Sets the mask of `x`; an undefined mask has no effect. Throws kInvalidArgument if the mask is
  /// not bool or its shape does not equal the leading dimensions of `x`.
  static void set_mask(const Tensor& x, const Tensor& mask);
  /// Returns true if any value has a mask.
  static bool has_masks();

 private:
  bool is_outermost_;
  std::unordered_map<std::uint64_t, Tensor> masks_;  // keyed by Tensor::id()
};

/// Treatment of the first input's mask. kEnds: the mask is dropped, with a warning. kKeeps: the
/// mask becomes that of the result. kOwn: the layer reads and sets masks itself.
enum class MaskUse { kEnds, kKeeps, kOwn };

/// Data types of a layer: weights have the type `variable`, and floating-point inputs are cast to
/// `compute`. A value type. Corresponds to keras.DTypePolicy.
struct DTypePolicy {
  DTypePolicy() = default;
  /// `policy`: "float32", "float64", "mixed_bfloat16" or "mixed_float16". The mixed policies have
  /// weights in float32 and compute in the 16-bit type (on CPUs in float32, rounding each result).
  /// Throws kInvalidArgument for any other name, listing these.
  DTypePolicy(const std::string& policy);
  DTypePolicy(const char* policy) : DTypePolicy(std::string(policy)) {}

  std::string name = "float32";
  DType compute = DType::kFloat32;
  DType variable = DType::kFloat32;
};

/// Set and return the policy for layers created later on any thread (default "float32"). Set it
/// before creating the model. Corresponds to keras.config.set_dtype_policy.
void set_dtype_policy(const DTypePolicy& policy);
DTypePolicy dtype_policy();

class AutocastScope;
class KeyValueCache;
struct LayerDescription;

/// JSON form of a shape, an array of its dimensions.
template <>
struct JsonForm<Shape> {
  static Json to(const Shape& shape) { return Json::array_of(shape); }
  static Shape from(const Json& json);
};

/// Context of a call: `model(x, {.training = true})`.
struct CallContext {
  /// True in training: dropout is active, and batch normalisation uses the batch's statistics.
  bool training = false;
  /// List to which add_loss() appends losses; if nullptr, they are dropped. Not shared between
  /// threads.
  std::vector<Tensor>* added_losses = nullptr;
  /// Cache of the earlier steps that this call continues (key_value_cache.h); nullptr if there is
  /// none. Not shared between threads.
  KeyValueCache* cache = nullptr;
};

/// Options that all layers have.
struct LayerOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Weight of a custom layer, declared as a data member: `Weight scale_;`, and in build() `scale_ =
/// add_weight("ones", input, {.name = "scale"})`. Copies share one variable, so an assignment
/// affects all copies of the layer, unlike with a Variable. Default: no variable.
class Weight {
 public:
  Weight& operator=(Variable variable) {
    *variable_ = std::move(variable);
    return *this;
  }
  const Variable& operator*() const { return *variable_; }
  const Variable* operator->() const { return variable_.get(); }
  /// Same as Variable::value().
  Tensor value() const { return variable_->value(); }
  operator Tensor() const { return value(); }

 private:
  std::shared_ptr<Variable> variable_ = std::make_shared<Variable>();
};

/// Function of tensors, with weights. Custom layers derive from Layer and implement build() and
/// call(). A layer is a cheap handle: copies share name, weights and sub-layers. Weights are
/// created once, when a model adds the layer (or by build_for()); after that, calls are
/// thread-safe. Corresponds to tf.keras.Layer.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = default;
  Layer& operator=(const Layer&) = default;

  /// Maps input [batch, ...] to output [batch, ...], for any batch size including 0. Casts a
  /// floating-point input to the layer's type (dtype_policy()). Errors name the layer. Throws
  /// kFailedPrecondition if the layer has no weights yet.
  Tensor operator()(const Tensor& input, CallContext context = {}) const;
  /// Overload for several inputs: `add({a, b})`. Throws kInvalidArgument if the layer has several
  /// results.
  Tensor operator()(const std::vector<Tensor>& inputs, CallContext context = {}) const;
  /// Returns all results of a layer with several results.
  std::vector<Tensor> apply(std::span<const Tensor> inputs, CallContext context = {}) const;

  /// Creates the weights of a layer outside a model, and returns the output's shape. Shapes are
  /// those of one example, without the batch: [height, width, channels]. Throws kInvalidArgument if
  /// a second call gives another shape.
  Shape build_for(const Shape& input);
  std::vector<Shape> build_for(std::span<const Shape> inputs);
  /// Returns the shapes of the results without creating weights.
  std::vector<Shape> shapes_for(std::span<const Shape> inputs);

  /// Name, unique within the model: the name in the options, or else the type in snake_case
  /// ("conv2d_1").
  const std::string& name() const;
  /// Name of the class ("Conv2D").
  const std::string& type_name() const;
  bool built() const;
  /// Return shapes of one example; input_shape() and output_shape() return the first shape. Throw
  /// kFailedPrecondition before the layer is built.
  const Shape& input_shape() const;
  const Shape& output_shape() const;
  const std::vector<Shape>& input_shapes() const;
  const std::vector<Shape>& output_shapes() const;
  /// Data types of this layer. Default: the global policy at the time of the layer's construction.
  const DTypePolicy& dtype_policy() const;
  /// Sets the policy of this layer only, e.g. float32 for the last layer of a mixed-precision
  /// model. Throws kFailedPrecondition if the layer already has weights.
  void set_dtype_policy(const DTypePolicy& policy);
  /// Data type of the computation: dtype_policy().compute.
  DType dtype() const;

  /// Returns all variables in creation order, including those of sub-layers, without duplicates.
  std::vector<Variable> variables() const;
  /// Same as variables(), but without non-trainable variables and variables of frozen layers.
  std::vector<Variable> trainable_variables() const;
  /// Returns the total number of elements in all variables.
  std::int64_t num_parameters() const;
  std::int64_t num_trainable_parameters() const;

  /// Freeze or unfreeze the layer. Frozen weights do not change during training, and frozen batch
  /// normalisation runs as in inference. Model::fit() uses the state at the time of compile(), and
  /// warns if it has changed.
  void freeze();
  void unfreeze();
  bool frozen() const;

  /// Enables rematerialisation: tapes keep only the layer's inputs and recompute other tensors in
  /// the backward pass. Saves memory at the cost of a second forward pass. Results do not change,
  /// because the second pass reuses random numbers, masks and statistics of the first. The layer
  /// must exist until the gradient is computed. Corresponds to jax.checkpoint,
  /// torch.utils.checkpoint and tf.recompute_grad.
  void set_remat(bool remat = true);
  bool is_remat() const;

  /// Returns the scalar regularisation losses, computed from the current weights.
  std::vector<Tensor> losses() const;
  /// Projects the weights that have constraints. Must be called in cross-replica context after each
  /// update, as Model::fit() does.
  void apply_constraints();
  bool has_constraints() const;
  /// Returns the metrics that layers have added, without duplicates.
  std::vector<std::shared_ptr<Metric>> metrics() const;

  /// Returns a description from which the layer can be recreated (layer_description.h). Throws
  /// kUnimplemented if the layer does not call made_with().
  LayerDescription describe() const;
  /// Creates a layer without weights from its description. Throws kNotFound for a type that is not
  /// registered (register_layer()), and kInvalidArgument for arguments that do not match the
  /// constructor.
  static std::shared_ptr<Layer> of_description(const LayerDescription& description);

  /// State of a layer in addition to its weights and constructor arguments.
  struct Extras {
    std::int64_t random_number = 0;  // number from which this layer's random keys are derived
    bool frozen = false;
  };
  /// Returns the extras of this layer and of all its sub-layers, in the order in which the
  /// sub-layers were added.
  std::vector<Extras> extras() const;
  /// Restores the values that extras() returned. Throws kInvalidArgument if their number differs
  /// from the number of layers.
  void restore_extras(std::span<const Extras> extras);

  /// Row for one direct sub-layer in a table of layers.
  struct Summary {
    std::string name;
    std::string type_name;
    Shape output_shape;
    std::int64_t num_parameters = 0;
  };
  std::vector<Summary> sublayers() const;

  /// Shape of one example, as given in the options (`.input_shape`); nullopt if not given.
  const std::optional<Shape>& given_input_shape() const;
  /// Name of the activation that computes the layer's result, such as "softmax"; "" if there is
  /// none.
  const std::string& output_activation() const;

 protected:
  /// If the name is empty, the model that adds the layer generates one.
  explicit Layer(std::string name = "", std::optional<Shape> input_shape = std::nullopt);
  explicit Layer(LayerOptions options)
      : Layer(std::move(options.name), std::move(options.input_shape)) {}

  /// Declares the constructor's arguments so that the layer can be saved; call it in the
  /// constructor: `made_with(units_, options_)`. Omit LayerOptions: name and input_shape are saved
  /// for every layer. Stores copies of the arguments. Their types must be those passed to
  /// register_layer().
  template <class... Arguments>
  void made_with(const Arguments&... arguments) {
    set_arguments([=] { return Json::Array{json_of(arguments)...}; });
  }
  /// Returns the arguments of made_with(). Overridden by layers whose arguments change after
  /// construction.
  virtual Json::Array call_arguments() const;
  /// Returns the name in the options, or "".
  std::string given_name() const;

  /// Creates the weights (add_weight()) and sub-layers (add_layer()) for examples of shape `input`;
  /// returns the shape of one example of the result. Called once, and also by shapes_for().
  virtual Shape build(const Shape& input) = 0;
  /// Computes the result. Must not change any state except the layer's variables, because replicas
  /// call it concurrently.
  virtual Tensor call(const Tensor& input, CallContext context) const = 0;
  /// Same as build() and call(), but for several inputs or results (derive from MultiLayer). The
  /// default implementations throw kInvalidArgument unless there is one input and one result.
  virtual std::vector<Shape> build_all(std::span<const Shape> inputs);
  virtual std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const;

  /// Returns how the layer treats the first input's mask (MaskScope). With kEnds, a layer that
  /// contains other layers logs no warning, because those layers handle the mask.
  virtual MaskUse mask_use() const { return MaskUse::kEnds; }

  /// Creates a variable "<layer>/<options.name>" of the type dtype_policy().variable.
  Variable add_weight(const Initializer& initializer, const Shape& shape,
                      VariableOptions options = {}, const Regularizer& regularizer = {},
                      const Constraint& constraint = {});
  /// Adds the bias `name` if use_bias is set in the options (such as Dense's).
  template <class Options>
  void add_bias(const Options& options, const Shape& shape, std::string name = "bias") {
    if (!options.use_bias) return;
    add_weight(options.bias_initializer, shape, {.name = std::move(name)}, options.bias_regularizer,
               options.bias_constraint);
  }
  /// Weights that this layer itself has added, in the order of the add_weight() calls.
  std::span<const Variable> own_weights() const;
  const Variable& weight(std::size_t index) const;
  /// Names and builds a sub-layer, and returns the shape of its result. A layer that is already
  /// built keeps its weights and is shared. Throws kInvalidArgument for a name that is already in
  /// use.
  Shape add_layer(Layer& layer, const Shape& input);
  std::vector<Shape> add_layer(Layer& layer, std::span<const Shape> inputs);
  /// Calls add_layer(layer, input) for each sub-layer; returns the shape of the last sub-layer's
  /// result.
  template <std::derived_from<Layer>... Layers>
  Shape add_layers(const Shape& input, Layer& first, Layers&... others) {
    Shape result = add_layer(first, input);
    ((result = add_layer(others, input)), ...);
    return result;
  }
  /// Marks a model as built. For models, which create weights in the constructor instead of in
  /// build(). If the user named the model, its name becomes a prefix of the names of its weights.
  void set_built(const Shape& input, const Shape& output);
  void set_built(std::vector<Shape> inputs, std::vector<Shape> outputs);
  /// Adds a metric that call() updates and Model::fit reports.
  void add_metric(std::shared_ptr<Metric> metric);
  /// Adds a scalar loss, which is minimised together with the other losses. `loss` is this
  /// replica's value; Model::fit() divides it by the number of replicas.
  static void add_loss(CallContext context, const Tensor& loss);
  void set_output_activation(std::string_view name);
  /// Returns a random key derived from the seed, the step, the replica, the layer and the number of
  /// keys that the layer has already drawn in this step.
  RandomKey next_random_key() const;

 private:
  struct State;
  void set_arguments(std::function<Json::Array()> arguments);
  std::vector<Tensor> called_again_by_tapes(std::span<const Tensor> inputs,
                                            CallContext context) const;
  std::vector<Shape> build_as(const std::string& name, const std::string& scope,
                              std::span<const Shape> inputs);
  std::string unique_name(const Layer& layer) const;
  void require_built(std::string_view what) const;
  Tensor converted(const Tensor& input) const;
  void pass_mask(const Tensor& input, const Tensor& result) const;
  AutocastScope weights_in_compute_type() const;
  Error named(const Error& error) const;

  std::shared_ptr<State> state_;
};

/// Returns the layer with rematerialisation enabled: `remat(TransformerBlock(8))`.
template <std::derived_from<Layer> L>
L remat(L layer) {
  layer.set_remat();
  return layer;
}

/// Base class of layers with several inputs or results. Implement build_all() and call_all()
/// instead of build() and call().
class MultiLayer : public Layer {
 protected:
  using Layer::Layer;
  Shape build(const Shape& input) final;
  Tensor call(const Tensor& input, CallContext context) const final;
  std::vector<Shape> build_all(std::span<const Shape> inputs) override = 0;
  std::vector<Tensor> call_all(std::span<const Tensor> inputs,
                               CallContext context) const override = 0;
};

}  // namespace tutti
