// Saving and loading of complete models: Model::save() and load_model().
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "checkpoint/checkpoint_file.h"
#include "core/call_site.h"
#include "core/names.h"
#include "model/fit_loop.h"
#include "tutti/core/random.h"
#include "tutti/model/functional.h"
#include "tutti/model/layers/layer_description.h"
#include "tutti/model/sequential.h"
#include "tutti/strategy/recovery.h"

namespace tutti {
namespace {

constexpr std::int64_t kModelFormat = 1;
constexpr const char* kModelKey = "model";

struct CompileDescription {
  CompileOptions arguments;
  std::vector<bool> decaying;  // see Optimizer::decaying(); empty: all variables
};

/// Data of a model file in addition to the checkpoint.
struct ModelDescription {
  std::int64_t format = kModelFormat;
  LayerDescription layer;
  std::vector<Layer::Extras> extras;
  std::optional<CompileDescription> compile;
};

/// Creates a Sequential, in which layers with the same name become one layer that is called several
/// times.
std::shared_ptr<Layer> make_sequential(std::string name, Input input,
                                       std::vector<std::shared_ptr<Layer>> layers) {
  for (auto layer = layers.begin(); layer != layers.end(); ++layer)
    *layer = *std::ranges::find(layers.begin(), layer + 1, (*layer)->name(), &Layer::name);
  return std::make_shared<Sequential>(std::move(name), std::move(input), std::move(layers));
}

std::shared_ptr<Layer> make_functional(internal::GraphDescription graph, std::string name) {
  return std::make_shared<Functional>(Functional::of_description(graph, std::move(name)));
}

void add_models_to_layers() {
  static const bool added = [] {
    internal::add_layer_maker("Sequential", internal::reads_call(&make_sequential));
    internal::add_layer_maker("Functional", internal::reads_call(&make_functional));
    return true;
  }();
  static_cast<void>(added);
}

ModelDescription read_description(const internal::CheckpointFile& file) {
  const Json* const json = file.info.about.find(kModelKey);
  internal::require(
      json, "the file contains no model; expected a file written by Model::save(), got ",
      file.tensors.size(),
      " tensors; call load_weights() or checkpoint().restore() on a model with the same layers");
  const std::int64_t format = json->at("format").as_int();
  if (format > kModelFormat) {
    fail(ErrorCode::kUnimplemented, "expected a model of format 1 to ", kModelFormat, ", got ",
         format, ", written by tutti ", file.info.tutti_version,
         "; use that version or a later one");
  }
  return value_of<ModelDescription>(*json);
}

/// Skips the layer numbers of the restored layers, so that new layers draw different random
/// numbers.
void pass_over(const std::vector<Layer::Extras>& extras) {
  constexpr std::int64_t kMost = 10'000'000;  // upper bound, in case the file is corrupted
  std::int64_t most = 0;
  for (const Layer::Extras& each : extras) most = std::max(most, each.random_number);
  internal::require(most <= kMost, "expected a random_number of at most ", kMost, ", got ", most);
  while (static_cast<std::int64_t>(next_layer_number()) < most) continue;
}

std::shared_ptr<Model> model_of(const internal::CheckpointFile& file) {
  add_models_to_layers();
  const ModelDescription description = read_description(file);
  auto model = std::dynamic_pointer_cast<Model>(Layer::of_description(description.layer));
  if (!model) {
    fail(ErrorCode::kInvalidArgument, "expected a model, got the layer ",
         description.layer.call.dump());
  }
  model->restore_extras(description.extras);
  pass_over(description.extras);
  if (description.compile) {
    model->compile(description.compile->arguments);
    if (!description.compile->decaying.empty())
      model->optimizer().set_decaying(description.compile->decaying);
  }
  return model;
}

}  // namespace

void Model::save(const std::string& path, SaveOptions options, const SourceLocation& where) {
  const bool has_optimizer = compiled() && model_state_->compiled->optimizer;
  ModelDescription description;
  description.layer = describe();
  description.extras = extras();
  Json json = json_of(description);
  if (compiled() && options.compile_arguments) {
    CompileDescription compile{model_state_->compiled->options, {}};
    if (has_optimizer) compile.decaying = optimizer().decaying();
    try {
      json.set("compile", json_of(compile));
    } catch (const Error& error) {
      throw Error(error.code(), concat("Model::save: ", error.message(),
                                       "; save with {.compile_arguments = false}, then call "
                                       "compile() and checkpoint().restore() on the loaded model"));
    }
  }
  Checkpoint file = checkpoint();
  file.set_about(kModelKey, std::move(json));
  file.save(path, has_optimizer ? optimizer().iterations().value().item_int() : 0, where);
}

std::shared_ptr<Model> load_model(const std::string& path, const SourceLocation& where) {
  const CallSite site(where);
  const CheckpointOptions options = checkpoint_options(get_strategy());
  const auto read = [&] {
    try {
      return std::optional(internal::read_checkpoint(path));
    } catch (const Error& error) {
      throw error.with_context("load_model");
    }
  };
  auto file = options.from_writer ? internal::read_by_writer(read, options) : read();
  std::shared_ptr<Model> model;
  try {
    model = model_of(*file);
  } catch (const Error& error) {
    throw error.with_context(concat("load_model: ", path));
  }
  const bool restores_all = model->compiled();
  model->checkpoint().restore(
      CheckpointSnapshot(std::make_shared<const internal::CheckpointFile>(*std::move(file))),
      {.ignore_unknown = !restores_all});
  return model;
}

}  // namespace tutti
