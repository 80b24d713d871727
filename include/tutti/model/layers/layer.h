// The layer: weights and a function of tensors, its number types and masks. Knows nothing of
// distribution.
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

/// While one lives, this thread remembers masks of layers' results: bool [batch, steps], true where
/// a step counts. Embedding and Masking make them; recurrent layers, attention, pooling over steps
/// and losses read them; see Layer::mask_use() for the others. A call of a model, or of any layer,
/// lives in one of its own unless there is one already: make one around layers that are called one
/// by one, or around a model and its loss, as Model::fit does. Scopes that nest are one.
class MaskScope {
 public:
  MaskScope();
  ~MaskScope();
  MaskScope(const MaskScope&) = delete;
  MaskScope& operator=(const MaskScope&) = delete;

  /// The mask of this value; undefined when all steps count.
  static Tensor mask_of(const Tensor& x);
  /// An undefined mask is none. Throws kInvalidArgument when the mask is not bool or x does not
  /// begin with its dimensions.
  static void set_mask(const Tensor& x, const Tensor& mask);
  /// Whether any value has a mask.
  static bool has_masks();

 private:
  bool is_outermost_;
  std::unordered_map<std::uint64_t, Tensor> masks_;  // by Tensor::id()
};

/// What a layer does with a mask of its first input: nothing, so that it ends there and a warning
/// says so; it is also the mask of the result; the layer reads and sets masks itself.
enum class MaskUse { kEnds, kKeeps, kOwn };

/// The types of a layer: weights are made as `variable`, floating inputs are cast to `compute`. A
/// value. keras.DTypePolicy.
struct DTypePolicy {
  DTypePolicy() = default;
  /// "float32", "float64"; "mixed_bfloat16" and "mixed_float16": weights in float32, arithmetic in
  /// the 16-bit type (on CPUs in float32, each result rounded). Throws kInvalidArgument listing
  /// them for another name.
  DTypePolicy(const std::string& policy);
  DTypePolicy(const char* policy) : DTypePolicy(std::string(policy)) {}

  std::string name = "float32";
  DType compute = DType::kFloat32;
  DType variable = DType::kFloat32;
};

/// The policy of layers made from now on, on all threads (default "float32"). Call it before the
/// model is made. keras.config.set_dtype_policy.
void set_dtype_policy(const DTypePolicy& policy);
DTypePolicy dtype_policy();

class AutocastScope;
class KeyValueCache;
struct LayerDescription;

/// Shapes are arrays of their dimensions.
template <>
struct JsonForm<Shape> {
  static Json to(const Shape& shape) { return Json::array_of(shape); }
  static Shape from(const Json& json);
};

/// How a layer is called: `model(x, {.training = true})`.
struct CallContext {
  /// Dropout drops and batch normalisation uses the statistics of the batch.
  bool training = false;
  /// Where add_loss() puts its values; nullptr: nowhere. Not shared between threads.
  std::vector<Tensor>* added_losses = nullptr;
  /// The steps of this call stand behind those that it has (key_value_cache.h); nullptr: behind
  /// none. Not shared between threads.
  KeyValueCache* cache = nullptr;
};

/// What every layer takes; the options of layers that take more have these, too.
struct LayerOptions {
  std::string name = "";
  std::optional<Shape> input_shape = std::nullopt;
};

/// Weights and a function. Users derive from it and write build() and call(). An object is a cheap
/// handle: copies share name, weights and sub-layers. Weights are made once, when a model takes the
/// layer in (or by build_for()); after that threads may call it at the same time. tf.keras.Layer.
class Layer {
 public:
  virtual ~Layer() = default;
  Layer(const Layer&) = default;
  Layer& operator=(const Layer&) = default;

  /// input [batch, ...] -> output [batch, ...]; any batch, 0 included. A floating input of another
  /// type than the layer's (dtype_policy()) is cast. An error names the layer.
  /// Throws kFailedPrecondition when the layer has no weights yet.
  Tensor operator()(const Tensor& input, CallContext context = {}) const;
  /// Several inputs: `add({a, b})`. Throws kInvalidArgument when there are several results.
  Tensor operator()(const std::vector<Tensor>& inputs, CallContext context = {}) const;
  /// All results of a layer that has several.
  std::vector<Tensor> apply(std::span<const Tensor> inputs, CallContext context = {}) const;

  /// Makes the weights of a layer that stands alone. Shapes are those of one example: [height,
  /// width, channels], without the batch. Returns the output's shape. A second call must give the
  /// same shape (kInvalidArgument).
  Shape build_for(const Shape& input);
  std::vector<Shape> build_for(std::span<const Shape> inputs);
  /// The shapes of the results, without making weights.
  std::vector<Shape> shapes_for(std::span<const Shape> inputs);

  /// "conv2d_1": unique in its model. The snake_case type unless the options name it.
  const std::string& name() const;
  /// "Conv2D".
  const std::string& type_name() const;
  bool built() const;
  /// Shapes of one example; of the first input and result where there are several. Throw
  /// kFailedPrecondition before the layer is built.
  const Shape& input_shape() const;
  const Shape& output_shape() const;
  const std::vector<Shape>& input_shapes() const;
  const std::vector<Shape>& output_shapes() const;
  /// The types of this layer: by default the policy that was current when the layer object was
  /// made.
  const DTypePolicy& dtype_policy() const;
  /// Another policy for this layer alone: a head in float32 of a mixed model. Throws
  /// kFailedPrecondition when the layer has weights already.
  void set_dtype_policy(const DTypePolicy& policy);
  /// The type of the arithmetic: dtype_policy().compute.
  DType dtype() const;

  /// In creation order, those of sub-layers included, each once.
  std::vector<Variable> variables() const;
  /// Without variables that are not trainable and those of frozen layers.
  std::vector<Variable> trainable_variables() const;
  /// Number of elements of all variables.
  std::int64_t num_parameters() const;
  std::int64_t num_trainable_parameters() const;

  /// A frozen layer keeps its weights in training; batch normalisation then runs as in inference.
  /// Model::fit goes by what was frozen when compile() was called, and warns where that has
  /// changed.
  void freeze();
  void unfreeze();
  bool frozen() const;

  /// Rematerialisation: of what the layer computes tapes keep its inputs alone, and compute the
  /// rest again when they walk back. Less memory for one more forward pass, the same bits: random
  /// numbers, masks and statistics are those of the first. The layer must live until the gradient.
  /// jax.checkpoint, torch.utils.checkpoint, tf.recompute_grad.
  void set_remat(bool remat = true);
  bool is_remat() const;

  /// The regularisation losses [], computed from the weights as they are now.
  std::vector<Tensor> losses() const;
  /// Brings weights with constraints back to them. Outside replicas, after an update (Model::fit
  /// does it).
  void apply_constraints();
  bool has_constraints() const;
  /// Metrics that layers have added, each once.
  std::vector<std::shared_ptr<Metric>> metrics() const;

  /// How this layer is made again (layer_description.h). Throws kUnimplemented for a layer that
  /// does not say so with made_with().
  LayerDescription describe() const;
  /// The inverse: a layer without weights. Throws kNotFound for a type that register_layer() was
  /// not told of, kInvalidArgument for arguments that do not fit.
  static std::shared_ptr<Layer> of_description(const LayerDescription& description);

  /// What a layer is besides its weights and what it was made with.
  struct Extras {
    std::int64_t random_number = 0;  // what tells its random numbers from those of other layers
    bool frozen = false;
  };
  /// Of this layer and all below, in the order in which they were added.
  std::vector<Extras> extras() const;
  /// Throws kInvalidArgument for another number of layers.
  void restore_extras(std::span<const Extras> extras);

  /// What a table of layers shows of a direct sub-layer.
  struct Summary {
    std::string name;
    std::string type_name;
    Shape output_shape;
    std::int64_t num_parameters = 0;
  };
  std::vector<Summary> sublayers() const;

  /// The shape of one example that the options give (`.input_shape`), if any.
  const std::optional<Shape>& given_input_shape() const;
  /// "softmax" when the result of the layer is that of this activation; "" otherwise.
  const std::string& output_activation() const;

 protected:
  /// An empty name: numbered by the model that takes the layer in.
  explicit Layer(std::string name = "", std::optional<Shape> input_shape = std::nullopt);
  explicit Layer(LayerOptions options)
      : Layer(std::move(options.name), std::move(options.input_shape)) {}

  /// Says, in the constructor, with which arguments the layer is made, so that it can be saved:
  /// `made_with(units_, options_)`. LayerOptions are left out; name and input_shape of other
  /// options are written for each layer. Copies are kept until the layer is saved. Their types are
  /// those of register_layer().
  template <class... Arguments>
  void made_with(const Arguments&... arguments) {
    set_arguments([=] { return Json::Array{json_of(arguments)...}; });
  }
  /// The arguments, for layers to which some are added later.
  virtual Json::Array call_arguments() const;
  /// The name that the options gave, or "".
  std::string given_name() const;

  /// Makes the weights (add_weight) and sub-layers (add_layer) for examples of shape `input`;
  /// returns the shape of a result. Called once.
  virtual Shape build(const Shape& input) = 0;
  /// Pure but for the updates of its variables: replicas call it at the same time.
  virtual Tensor call(const Tensor& input, CallContext context) const = 0;
  /// The same for layers with several inputs or results (derive from MultiLayer). Here: one of
  /// each; other numbers throw kInvalidArgument.
  virtual std::vector<Shape> build_all(std::span<const Shape> inputs);
  virtual std::vector<Tensor> call_all(std::span<const Tensor> inputs, CallContext context) const;

  /// What becomes of a mask of the first input (MaskScope). A layer made of layers leaves it to
  /// them.
  virtual MaskUse mask_use() const { return MaskUse::kEnds; }

  /// A variable "<layer>/<options.name>" of this layer, of the type of its dtype_policy().
  Variable add_weight(const Initializer& initializer, const Shape& shape,
                      VariableOptions options = {}, const Regularizer& regularizer = {},
                      const Constraint& constraint = {});
  /// The weight `name`, unless the options (of Dense, say) are without use_bias.
  template <class Options>
  void add_bias(const Options& options, const Shape& shape, std::string name = "bias") {
    if (!options.use_bias) return;
    add_weight(options.bias_initializer, shape, {.name = std::move(name)}, options.bias_regularizer,
               options.bias_constraint);
  }
  /// The weights of this layer itself, in the order of add_weight(), and one of them.
  std::span<const Variable> own_weights() const;
  const Variable& weight(std::size_t index) const;
  /// Names and builds a sub-layer and returns its result's shape. A layer that was built before
  /// keeps its weights: it is shared. Throws kInvalidArgument for a name that is taken.
  Shape add_layer(Layer& layer, const Shape& input);
  std::vector<Shape> add_layer(Layer& layer, std::span<const Shape> inputs);
  /// For models, whose constructor makes the weights instead of build(): from now on it is built.
  /// A name that was given stands in front of the names of weights.
  void set_built(const Shape& input, const Shape& output);
  void set_built(std::vector<Shape> inputs, std::vector<Shape> outputs);
  /// A metric that call() updates; shown by Model::fit.
  void add_metric(std::shared_ptr<Metric> metric);
  /// A loss [] of this call, to be minimised with the others. Per-batch values are the layer's own:
  /// Model::fit divides by the number of replicas.
  static void add_loss(CallContext context, const Tensor& loss);
  void set_output_activation(std::string_view name);
  /// The key of random numbers for this call: (seed, step, replica, layer, ordinal of the call).
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

/// `remat(TransformerBlock(8))`: the layer with set_remat().
template <std::derived_from<Layer> L>
L remat(L layer) {
  layer.set_remat();
  return layer;
}

/// A base for layers with several inputs or results: write build_all() and call_all() instead.
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
