// Descriptions of layers, and the table of layers that can be created from descriptions.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/model/layers/layer_description.h"

#include <set>
#include <utility>

#include "core/call_table.h"
#include "model/layers/layer_state.h"
#include "tutti/model/layers/layers.h"

namespace tutti {

namespace {

using internal::CallTable;
using LayerTable = CallTable<std::shared_ptr<Layer>>;

template <class L, class... Arguments>
LayerTable::Entry entry_of() {
  return {internal::plain_type_name(typeid(L)), internal::layer_maker<L, Arguments...>()};
}

std::shared_ptr<Layer> bidirectional(const std::shared_ptr<Layer>& layer,
                                     BidirectionalOptions options) {
  const auto* const recurrent = dynamic_cast<const Recurrent*>(layer.get());
  if (!recurrent) {
    fail(ErrorCode::kInvalidArgument, "expected a recurrent layer, got ", layer->type_name());
  }
  return std::make_shared<Bidirectional>(*recurrent, std::move(options));
}

/// Returns a table entry for each layer, with the types of its constructor arguments, in order and
/// without LayerOptions.
std::vector<LayerTable::Entry> layer_entries() {
  using Int = std::int64_t;
  return {entry_of<Dense, Int, DenseOptions>(),
          entry_of<Embedding, Int, Int, EmbeddingOptions>(),
          entry_of<PositionEmbedding, Int, PositionEmbeddingOptions>(),
          entry_of<Masking, double>(),
          entry_of<Conv2D, Int, Size2D, Conv2DOptions>(),
          entry_of<DepthwiseConv2D, Size2D, DepthwiseConv2DOptions>(),
          entry_of<SeparableConv2D, Int, Size2D, SeparableConv2DOptions>(),
          entry_of<Conv2DTranspose, Int, Size2D, Conv2DTransposeOptions>(),
          entry_of<Conv1D, Int, Int, Conv1DOptions>(),
          entry_of<MaxPooling2D, Size2D, Pooling2DOptions>(),
          entry_of<AveragePooling2D, Size2D, Pooling2DOptions>(),
          entry_of<MaxPooling1D, Int, Pooling1DOptions>(),
          entry_of<AveragePooling1D, Int, Pooling1DOptions>(),
          entry_of<GlobalAveragePooling2D>(),
          entry_of<GlobalMaxPooling2D>(),
          entry_of<GlobalAveragePooling1D>(),
          entry_of<GlobalMaxPooling1D>(),
          entry_of<BatchNormalization, BatchNormalizationOptions>(),
          entry_of<LayerNormalization, LayerNormalizationOptions>(),
          entry_of<GroupNormalization, Int, GroupNormalizationOptions>(),
          entry_of<RMSNormalization, RMSNormalizationOptions>(),
          entry_of<UnitNormalization, UnitNormalizationOptions>(),
          entry_of<LocalResponseNormalization, LocalResponseNormalizationOptions>(),
          entry_of<Dropout, double>(),
          entry_of<GaussianNoise, double>(),
          entry_of<GaussianDropout, double>(),
          entry_of<SpatialDropout1D, double>(),
          entry_of<SpatialDropout2D, double>(),
          entry_of<Activation, std::string>(),
          entry_of<Relu, ReluOptions>(),
          entry_of<Sigmoid>(),
          entry_of<Tanh>(),
          entry_of<Elu, EluOptions>(),
          entry_of<Gelu>(),
          entry_of<Softmax>(),
          entry_of<LeakyRelu, double>(),
          entry_of<PReLU, PReLUOptions>(),
          entry_of<Flatten>(),
          entry_of<Reshape, std::vector<Int>>(),
          entry_of<Permute, std::vector<int>>(),
          entry_of<RepeatVector, Int>(),
          entry_of<ZeroPadding2D, Margins2D>(),
          entry_of<Cropping2D, Margins2D>(),
          entry_of<ZeroPadding1D, Margins1D>(),
          entry_of<UpSampling2D, Size2D, UpSampling2DOptions>(),
          entry_of<Add>(),
          entry_of<Subtract>(),
          entry_of<Multiply>(),
          entry_of<Average>(),
          entry_of<Maximum>(),
          entry_of<Minimum>(),
          entry_of<Concatenate, ConcatenateOptions>(),
          entry_of<Dot, DotOptions>(),
          entry_of<SimpleRNN, Int, RecurrentOptions>(),
          entry_of<LSTM, Int, RecurrentOptions>(),
          entry_of<GRU, Int, RecurrentOptions>(),
          {"Bidirectional", internal::reads_call(&bidirectional)},
          entry_of<TimeDistributed, std::shared_ptr<Layer>>(),
          entry_of<MultiHeadAttention, Int, Int, MultiHeadAttentionOptions>(),
          entry_of<RotaryEmbedding, RotaryEmbeddingOptions>(),
          entry_of<SwiGLU, Int, SwiGLUOptions>(),
          entry_of<TransformerBlock, Int, Int, Int, TransformerBlockOptions>(),
          entry_of<Rescaling, double, RescalingOptions>(),
          entry_of<RandomFlip, RandomFlipOptions>(),
          entry_of<RandomBrightness, double, RandomColourOptions>(),
          entry_of<RandomContrast, double, RandomColourOptions>(),
          entry_of<CenterCrop, Size2D>()};
}

LayerTable& layer_table() {
  static LayerTable table("layer",
                          "call register_layer<its class, types of its arguments>() before "
                          "load_model()",
                          layer_entries());
  return table;
}

}  // namespace

std::shared_ptr<Layer> internal::made_layer(const Json& call) { return layer_table().make(call); }

void internal::add_layer_maker(std::string type_name, LayerMaker maker) {
  layer_table().add(std::move(type_name), std::move(maker));
}

Json internal::call_of_layer(const std::string& type_name, const Json::Array& arguments) {
  Json::Array call = {type_name};
  for (const Json& argument : arguments) {
    call.push_back(argument);
    if (!argument.is_object()) continue;
    call.back() = Json::object();
    for (const auto& [name, value] : argument.as_object())
      if (name != "name" && name != "input_shape") call.back().set(name, value);
  }
  return call;
}

std::vector<std::string> internal::readable_layers() { return layer_table().names(); }

Shape JsonForm<Shape>::from(const Json& json) {
  return Shape(std::span<const std::int64_t>(value_of<std::vector<std::int64_t>>(json)));
}

Json JsonForm<std::shared_ptr<Layer>>::to(const std::shared_ptr<Layer>& layer) {
  return json_of(layer->describe());
}

std::shared_ptr<Layer> JsonForm<std::shared_ptr<Layer>>::from(const Json& json) {
  return Layer::of_description(value_of<LayerDescription>(json));
}

void Layer::set_arguments(std::function<Json::Array()> arguments) {
  state_->arguments = std::move(arguments);
}

Json::Array Layer::call_arguments() const {
  if (state_->arguments) return state_->arguments();
  fail(ErrorCode::kUnimplemented,
       "the layer does not record its constructor arguments; call made_with(arguments) in the "
       "constructor of ",
       type_name(), " and register_layer<", type_name(),
       ", types of the arguments>() before load_model()");
}

std::string Layer::given_name() const { return state_->has_given_name ? state_->name : ""; }

LayerDescription Layer::describe() const {
  try {
    const bool is_named = !state_->made_built && (state_->built || state_->has_given_name);
    return {internal::call_of_layer(type_name(), call_arguments()), is_named ? name() : "",
            state_->given_input_shape, state_->policy.name};
  } catch (const Error& error) {
    throw named(error);
  }
}

std::shared_ptr<Layer> Layer::of_description(const LayerDescription& description) {
  struct PolicyRestorer {
    ~PolicyRestorer() { tutti::set_dtype_policy(policy); }
    DTypePolicy policy = tutti::dtype_policy();
  } const before;
  tutti::set_dtype_policy(DTypePolicy(description.dtype_policy));
  std::shared_ptr<Layer> layer = internal::made_layer(description.call);
  State& state = *layer->state_;
  if (!description.name.empty()) state.name = description.name;
  state.has_given_name = state.has_given_name || !description.name.empty();
  state.given_input_shape = description.input_shape;
  return layer;
}

std::vector<Layer::Extras> Layer::extras() const {
  std::vector<Extras> extras;
  std::set<const State*> seen;
  State::visit_layers(
      state_,
      [&](const State& state) {
        extras.push_back({static_cast<std::int64_t>(state.number), state.frozen});
      },
      seen);
  return extras;
}

void Layer::restore_extras(std::span<const Extras> extras) {
  const std::size_t expected = this->extras().size();
  if (extras.size() != expected) {
    fail(ErrorCode::kInvalidArgument, "layer '", name(), "' (", type_name(), "): expected ",
         expected, " layers, got ", extras.size());
  }
  std::set<const State*> seen;
  State::visit_layers(
      state_,
      [&, next = extras.begin()](State& state) mutable {
        state.number = static_cast<std::uint64_t>(next->random_number);
        state.frozen = next++->frozen;
      },
      seen);
}

}  // namespace tutti
