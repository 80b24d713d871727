// Implements shardings and the coordinates of positions.
// SPDX-License-Identifier: Apache-2.0
#include "strategy/mesh/sharding.h"

#include "core/names.h"
#include "tutti/core/error.h"

namespace tutti::internal {

AxisSet Sharding::cut() const {
  AxisSet all = 0;
  for (const AxisSet axes : dims) all |= axes;
  return all;
}

AxisSet MeshGrid::axis(std::string_view name) const {
  return static_cast<AxisSet>(1 << mesh_.index_of(name));
}

AxisSet MeshGrid::all_axes() const {
  AxisSet axes = 0;
  for (std::size_t i = 0; i < mesh_.axes().size(); ++i) {
    if (mesh_.axes()[i].size > 1) axes |= static_cast<AxisSet>(1 << i);
  }
  return axes;
}

int MeshGrid::size(AxisSet axes) const {
  int count = 1;
  for (std::size_t i = 0; i < mesh_.axes().size(); ++i) {
    if ((axes >> i & 1) != 0) count *= mesh_.axes()[i].size;
  }
  return count;
}

int MeshGrid::index(int position, AxisSet axes) const {
  const int blocks = num_positions() / devices_.num_positions();
  int device = position / blocks, block = position % blocks;
  int index = 0, factor = 1;
  for (std::size_t i = mesh_.axes().size(); i-- > 0;) {
    const int size = mesh_.axes()[i].size, num_devices = devices_.axes()[i].size;
    const int blocks_here = size / num_devices;
    if ((axes >> i & 1) != 0) {
      index += (device % num_devices * blocks_here + block % blocks_here) * factor;
      factor *= size;
    }
    device /= num_devices;
    block /= blocks_here;
  }
  return index;
}

std::vector<int> MeshGrid::group(int position, AxisSet axes) const {
  const AxisSet rest = static_cast<AxisSet>(~axes);
  const int own = index(position, rest);
  std::vector<int> members(static_cast<std::size_t>(size(axes)));
  for (int other = 0; other < num_positions(); ++other) {
    if (index(other, rest) == own) members[static_cast<std::size_t>(index(other, axes))] = other;
  }
  return members;
}

Sharding MeshGrid::sharding_of(const Layout& layout, const Shape& shape,
                               const std::string& who) const {
  require(layout.axes.size() == static_cast<std::size_t>(shape.rank()), who, ": the layout ",
          layout.to_string(), " has ", layout.axes.size(),
          " dimensions; expected one for each dimension of ", shape);
  Sharding sharding;
  for (int d = 0; d < shape.rank(); ++d) {
    const std::string& name = layout.axes[static_cast<std::size_t>(d)];
    if (name.empty()) continue;
    const AxisSet bit = axis(name);
    const int size = this->size(bit);
    require((sharding.cut() & bit) == 0, who, ": the layout ", layout.to_string(),
            " has the axis '", name, "' twice; expected each axis at most once");
    require(shape.dim(d) % size == 0, who, ": dimension ", d, " of ", shape,
            " is not divisible by the ", size, " positions of the axis '", name,
            "'; try another layout or mesh");
    if (size > 1) sharding[d] = bit;
  }
  return sharding;
}

Shape MeshGrid::local_shape(const Shape& shape, const Sharding& sharding) const {
  Shape local = shape;
  for (int d = 0; d < shape.rank(); ++d) {
    if (sharding[d] != 0) local = local.with_dim(d, shape.dim(d) / size(sharding[d]));
  }
  return local;
}

bool MeshGrid::divides(const Shape& shape, const Sharding& sharding) const {
  for (int d = 0; d < shape.rank(); ++d) {
    if (shape.dim(d) % size(sharding[d]) != 0) return false;
  }
  return true;
}

std::string MeshGrid::names(AxisSet axes) const {
  std::vector<std::string> all;
  for (std::size_t i = 0; i < mesh_.axes().size(); ++i) {
    if ((axes >> i & 1) != 0) all.push_back(mesh_.axes()[i].name);
  }
  return all.empty() ? "-" : join(all, "+");
}

std::string MeshGrid::describe(const Sharding& sharding, int rank) const {
  std::vector<std::string> dims;
  for (int d = 0; d < rank; ++d) dims.push_back(names(sharding[d]));
  return concat("[", join(dims), "]",
                sharding.partial == 0 ? "" : " partial over " + names(sharding.partial));
}

}  // namespace tutti::internal
