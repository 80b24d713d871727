// The layers of a model as a table and as a graph.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <map>
#include <set>

#include "model/fit_loop.h"
#include "tutti/model/model.h"

namespace tutti {

// Model::summary: the table of layers.

namespace {

constexpr std::size_t kNameWidth = 32;
constexpr std::size_t kShapeWidth = 24;
constexpr std::size_t kCountWidth = 12;

std::string padded(std::string text, std::size_t width) {
  // Appends at least one space, even if the text is too long.
  text.resize(std::max(width, text.size() + 1), ' ');
  return text;
}

/// Row of the table: an input, a layer, or a weight of the model itself.
struct Row {
  std::string name, shape, count;
  std::string sources = {};  // names of the inputs and layers that the layer reads
};

std::string line_of(const Row& row, std::size_t name_width) {
  const std::string last = row.sources.empty() ? row.count : padded(row.count, kCountWidth);
  return padded(row.name, name_width) + padded(row.shape, kShapeWidth) + last + row.sources + "\n";
}

/// Formats 121930 as "121,930".
std::string with_commas(std::int64_t number) {
  std::string text = concat(number);
  for (std::size_t i = text.size(); i > 3; i -= 3) text.insert(i - 3, ",");
  return text;
}

/// Formats a shape with an unknown batch size: "(None, 26, 26, 32)".
std::string batched_shape(const Shape& example) {
  std::string text = "(None";
  for (const std::int64_t dim : example) text += concat(", ", dim);
  return text + ")";
}

/// Formats a number of bytes: "476.29 KB".
std::string bytes_text(std::int64_t bytes) {
  const char* units[] = {"B", "KB", "MB", "GB", "TB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024.0 && unit + 1 < std::size(units); ++unit) value /= 1024.0;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text;
}

std::int64_t bytes_of(std::span<const Variable> variables) {
  std::int64_t bytes = 0;
  for (const Variable& variable : variables) {
    bytes += variable.shape().num_elements() * static_cast<std::int64_t>(size_of(variable.dtype()));
  }
  return bytes;
}

}  // namespace

std::string Model::summary() const {
  std::vector<Row> rows;
  const std::vector<std::string> inputs = input_names();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    rows.push_back({concat(" ", inputs[i], " (Input)"), batched_shape(input_shapes()[i]), "0"});
  }
  std::map<std::string, std::vector<std::string>> sources;
  // If the table has no inputs, the layers form a chain, so no column for sources is needed.
  for (const auto& [from, to] : inputs.empty() ? std::vector<Edge>() : edges()) {
    sources[to].push_back(from);
  }
  for (const Summary& row : sublayers()) {
    rows.push_back({concat(" ", row.name, " (", row.type_name, ")"),
                    batched_shape(row.output_shape), with_commas(row.num_parameters),
                    join(sources[row.name])});
  }
  for (const Variable& weight : own_weights()) {
    rows.push_back({concat(" ", weight.name(), " (weight)"), weight.shape().to_string(),
                    with_commas(weight.shape().num_elements())});
  }
  std::size_t width = kNameWidth;
  for (const Row& row : rows) width = std::max(width, row.name.size() + 1);
  std::size_t source_width = inputs.empty() ? 0 : std::string_view("Connected to").size();
  for (const Row& row : rows) source_width = std::max(source_width, row.sources.size());
  const std::string thin(width + kShapeWidth + kCountWidth + source_width, '_');
  const std::string thick(thin.size(), '=');
  std::string text = concat(
      "Model: \"", name(), "\"\n", thin, '\n',
      line_of({" Layer (type)", "Output Shape", "Param #", inputs.empty() ? "" : "Connected to"},
              width),
      thick, '\n');
  for (const Row& row : rows) text += line_of(row, width);
  const std::int64_t all = num_parameters();
  const std::int64_t trainable = num_trainable_parameters();
  return text + concat(thick, "\nTotal params: ", with_commas(all),
                       "\nTrainable params: ", with_commas(trainable),
                       "\nNon-trainable params: ", with_commas(all - trainable), '\n',
                       memory_text(), thin, '\n');
}

/// Returns the line about memory. It does not count intermediate results, because the memory that a
/// step needs for them depends on the layers: in recurrent and composed layers, they are orders of
/// magnitude larger than the output.
std::string Model::memory_text() const {
  const std::vector<Variable> weights = variables(), trainable = trainable_variables();
  std::string text = concat("Memory per replica: weights ", bytes_text(bytes_of(weights)),
                            ", gradients ", bytes_text(bytes_of(trainable)));
  if (compiled() && model_state_->compiled->optimizer) {
    const std::vector<Variable> slots = model_state_->compiled->optimizer->state_variables();
    text += concat(", optimizer ", bytes_text(bytes_of(slots)));
  }
  return text + '\n';
}

// Model::to_dot(): the layers as a graph.

namespace {

/// Quotes a name for DOT.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

}  // namespace

std::string Model::to_dot() const {
  std::string text = concat("digraph ", quoted(name()),
                            " {\n  rankdir=TB;\n  node [shape=record, fontname=Helvetica];\n");
  std::set<std::string> layers;
  for (const Summary& row : sublayers()) {
    layers.insert(row.name);
    text += concat("  ", quoted(row.name), " [label=",
                   quoted(concat(row.name, " (", row.type_name, ")|", row.output_shape, "|",
                                 row.num_parameters, " parameters")),
                   "];\n");
  }
  std::string lines;
  for (const auto& [from, to] : edges()) {
    if (layers.insert(from).second)
      text += concat("  ", quoted(from), " [shape=ellipse];\n");  // an input
    lines += concat("  ", quoted(from), " -> ", quoted(to), ";\n");
  }
  return text + lines + "}\n";
}

}  // namespace tutti
