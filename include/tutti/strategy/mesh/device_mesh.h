// Device meshes, and layouts of tensors over them.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/tensor/shape.h"

namespace tutti {

/// Named axis of a mesh, with its size.
struct MeshAxis {
  std::string name;
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

/// Logical array of devices with named axes: `DeviceMesh{{"data", 2}, {"model", 4}}`. Its positions
/// are numbered in row-major order, so positions along the last axis have consecutive numbers. A
/// value type. Corresponds to keras.distribution.DeviceMesh.
class DeviceMesh {
 public:
  /// Throws kInvalidArgument for zero or more than eight axes, an empty or repeated name, and a
  /// size below 1.
  DeviceMesh(std::initializer_list<MeshAxis> axes) : DeviceMesh(std::vector<MeshAxis>(axes)) {}
  explicit DeviceMesh(std::vector<MeshAxis> axes);
  /// Parses text such as "data=2,model=4". Throws kInvalidArgument, showing this format, for any
  /// other text.
  static DeviceMesh parse(std::string_view text);

  const std::vector<MeshAxis>& axes() const { return axes_; }
  /// Returns the index of the axis. Throws kNotFound, listing all names, if there is no such axis.
  int index_of(std::string_view axis) const;
  /// Returns the product of the axis sizes.
  int num_positions() const;
  /// Returns text such as "data=2,model=4".
  std::string to_string() const;
  bool operator==(const DeviceMesh&) const = default;

 private:
  std::vector<MeshAxis> axes_;
};

/// Name of the mesh axis over which each dimension of a tensor is sharded; empty: the dimension is
/// not sharded. `Layout{"", "model"}` shards the columns of a matrix. Corresponds to
/// keras.distribution.TensorLayout.
struct Layout {
  Layout() = default;
  Layout(std::initializer_list<const char*> names) : axes(names.begin(), names.end()) {}

  std::vector<std::string> axes;

  /// Returns text such as "[-, model]".
  std::string to_string() const;
  bool operator==(const Layout&) const = default;
};

/// Layouts of variables, keyed by name. A key is a name, or a regular expression that is searched
/// for in names; variables that no key matches are not sharded. Corresponds to
/// keras.distribution.LayoutMap.
class LayoutMap {
 public:
  LayoutMap() = default;
  LayoutMap(std::initializer_list<std::pair<std::string, Layout>> entries);
  /// Adds a key. Throws kAlreadyExists if the key exists, and kInvalidArgument if it is not a valid
  /// regular expression.
  void set(std::string key, Layout layout);
  /// Returns the layout of the variable; nullopt if no key matches. A key equal to the name takes
  /// precedence over regular expressions. Throws kInvalidArgument, naming the expressions, if
  /// several match.
  std::optional<Layout> find(std::string_view variable) const;
  const std::vector<std::pair<std::string, Layout>>& entries() const { return entries_; }

 private:
  std::vector<std::pair<std::string, Layout>> entries_;
};

}  // namespace tutti
