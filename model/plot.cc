// Model::to_dot: the layers as a graph for people.
// SPDX-License-Identifier: Apache-2.0
#include <set>

#include "tutti/model/model.h"

namespace tutti {
namespace {

/// A name in quotes, as DOT wants it.
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
