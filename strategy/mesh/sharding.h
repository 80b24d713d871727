// Shardings of tensors across the positions of a mesh.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/strategy/mesh/device_mesh.h"
#include "tutti/tensor/shape.h"

namespace tutti::internal {

/// Set of mesh axes: bit i is axis i.
using AxisSet = std::uint8_t;

/// Distribution of a tensor over the positions of a mesh. A mesh axis occurs at most once.
struct Sharding {
  /// For each dimension, the mesh axes over which it is split into equal parts; the parts are in
  /// the order of the mesh positions.
  std::array<AxisSet, Shape::kMaxRank> dims{};
  /// Mesh axes over which the positions' values must be summed to give the tensor.
  AxisSet partial = 0;

  AxisSet& operator[](int dim) { return dims[static_cast<std::size_t>(dim)]; }
  AxisSet operator[](int dim) const { return dims[static_cast<std::size_t>(dim)]; }
  /// Returns the mesh axes over which at least one dimension is sharded.
  AxisSet cut() const;
  /// Returns true if each position has all elements.
  bool is_whole() const { return partial == 0 && cut() == 0; }
  bool operator==(const Sharding&) const = default;
};

/// Coordinates of the positions of a mesh. The positions on one device (its blocks) are numbered
/// consecutively and form a box in the mesh. A value type.
class MeshGrid {
 public:
  /// Creates the grid of `mesh` on a device mesh with the same axes, whose sizes must divide those
  /// of `mesh`.
  MeshGrid(DeviceMesh mesh, DeviceMesh devices)
      : mesh_(std::move(mesh)), devices_(std::move(devices)) {}

  const DeviceMesh& mesh() const { return mesh_; }
  int num_positions() const { return mesh_.num_positions(); }
  /// Returns the axis with this name. Throws kNotFound, listing all names, if there is none.
  AxisSet axis(std::string_view name) const;
  /// Returns all axes along which the mesh has more than one position.
  AxisSet all_axes() const;
  /// Returns the number of positions that differ only in these axes.
  int size(AxisSet axes) const;
  /// Returns the index of the position in its group(): row-major in the coordinates of `axes`.
  int index(int position, AxisSet axes) const;
  /// Returns the positions that differ from `position` only along these axes, in index() order.
  std::vector<int> group(int position, AxisSet axes) const;

  /// Returns the sharding of a tensor of shape `shape` with this layout, without axes of size 1.
  /// Throws kInvalidArgument, beginning with `who`, if the layout does not have one entry per
  /// dimension, if it names an axis twice, or if a dimension cannot be divided evenly; kNotFound
  /// for an unknown axis.
  Sharding sharding_of(const Layout& layout, const Shape& shape, const std::string& who) const;
  /// Returns the shape of each position's part of a tensor with this `shape`.
  Shape local_shape(const Shape& shape, const Sharding& sharding) const;
  /// Returns true if each dimension is divisible by the number of its parts.
  bool divides(const Shape& shape, const Sharding& sharding) const;
  /// Returns a string such as "[data, -] partial over model".
  std::string describe(const Sharding& sharding, int rank) const;

 private:
  std::string names(AxisSet axes) const;
  DeviceMesh mesh_, devices_;
};

}  // namespace tutti::internal
