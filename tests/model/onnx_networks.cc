// Writes three networks as ONNX files, with inputs and tutti's outputs, for onnx_test.py.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"
#include "tutti/checkpoint/safetensors.h"
#include "tutti/tutti.h"

using namespace tutti;

namespace {

void export_network(Model& model, const Tensor& x, const std::string& path) {
  export_onnx(model, path + ".onnx");
  write_file_atomically(path + ".safetensors",
                        format_safetensors({{{"input", x}, {"logits", model.predict(x)}}, {}}));
}

/// Trains briefly, so that moving statistics differ from their initial values.
void train(Model& model, const Tensor& x) {
  const Tensor y = argmax(model.predict(x), 1);
  model.compile(
      {.optimizer = AdamOptions{.learning_rate = 0.05}, .loss = "sparse_categorical_crossentropy"});
  model.fit(x, y, {.epochs = 3, .batch_size = 8, .verbose = Verbosity::kSilent});
}

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  set_random_seed(3);

  Sequential mlp(Input{{8}}, Rescaling(0.5, {.offset = 0.25}), Dense(16, "relu"), Dropout(0.5),
                 Dense(8, {.activation = "gelu", .use_bias = false}), LeakyRelu(0.1), Dense(4));
  const Tensor rows = random_normal({32, 8}, {.seed = 1});
  train(mlp, rows);
  export_network(mlp, rows, folder + "/mlp");

  Sequential cnn(Input{{11, 9, 3}}, ZeroPadding2D({1, 0, 0, 2}),
                 Conv2D(8, {3, 2}, {.strides = {2, 1}, .padding = "same"}), BatchNormalization(),
                 Relu(), MaxPooling2D(3, {.strides = 2, .padding = "same"}),
                 DepthwiseConv2D(3, {.padding = "same", .depth_multiplier = 2}),
                 BatchNormalization({.scale = false}), Relu({.max_value = 6.0}),
                 AveragePooling2D(2, {.padding = "same"}), Conv2D(4, 1, {.groups = 2}), Flatten(),
                 Dense(5), Softmax());
  const Tensor pictures = random_normal({24, 11, 9, 3}, {.seed = 2});
  train(cnn, pictures);
  export_network(cnn, pictures, folder + "/cnn");

  const SymbolicTensor x = Input{{6, 6, 4}, "picture"};
  const Conv2D shared(4, 3, {.padding = "same", .activation = "tanh"});
  const SymbolicTensor once = shared(x), twice = shared(once);
  const SymbolicTensor sum = Relu()(Add()({x, twice}));
  Functional residual(
      {x}, {Dense(3)(Concatenate()({GlobalAveragePooling2D()(sum), GlobalMaxPooling2D()(sum)}))});
  const Tensor small = random_normal({16, 6, 6, 4}, {.seed = 4});
  train(residual, small);
  export_network(residual, small, folder + "/residual");
}
