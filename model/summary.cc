// Model::summary: the table of layers.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tutti/model/model.h"

namespace tutti {
namespace {

constexpr std::size_t kNameWidth = 32;
constexpr std::size_t kShapeWidth = 24;
constexpr std::size_t kLineWidth = 68;

std::string padded(std::string text, std::size_t width) {
  // At least one space, also after a long name.
  text.resize(std::max(width, text.size() + 1), ' ');
  return text;
}

/// 121930 -> "121,930".
std::string with_commas(std::int64_t number) {
  std::string text = concat(number);
  for (std::size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

/// "(None, 26, 26, 32)": the batch has any size.
std::string batched_shape(const Shape& example) {
  std::string text = "(None";
  for (const std::int64_t dim : example) text += concat(", ", dim);
  return text + ")";
}

}  // namespace

std::string Model::summary() const {
  const std::string thin(kLineWidth, '_');
  const std::string thick(kLineWidth, '=');
  std::string text =
      concat("Model: \"", name(), "\"\n", thin, '\n', padded(" Layer (type)", kNameWidth),
             padded("Output Shape", kShapeWidth), "Param #\n", thick, '\n');
  for (const Summary& row : sublayers()) {
    text += padded(concat(" ", row.name, " (", row.type_name, ")"), kNameWidth) +
            padded(batched_shape(row.output_shape), kShapeWidth) + with_commas(row.num_parameters) +
            "\n";
  }
  const std::int64_t all = num_parameters();
  const std::int64_t trainable = num_trainable_parameters();
  return text + concat(thick, "\nTotal params: ", with_commas(all),
                       "\nTrainable params: ", with_commas(trainable),
                       "\nNon-trainable params: ", with_commas(all - trainable), '\n', thin, '\n');
}

}  // namespace tutti
