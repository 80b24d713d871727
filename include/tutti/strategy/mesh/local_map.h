// Runs a function on the local parts of tensors on a mesh, with explicit collectives.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "tutti/core/source_location.h"
#include "tutti/strategy/mesh/device_mesh.h"
#include "tutti/tensor/tensor.h"

namespace tutti {

namespace internal {
class MeshPosition;
}

/// Context that local_map() passes to its function: this position's coordinates, and differentiable
/// collectives over one axis of the mesh. All positions must make the same calls, with values of
/// equal shape; each collective combines the values of positions that differ only along `axis`.
/// Valid during the call and, for gradients, until the step ends.
///
/// All functions throw kNotFound for an unknown axis, and kInvalidArgument for an invalid
/// dimension, index or size.
class LocalMapContext {
 public:
  /// Returns the number of positions (of blocks, if MeshOptions::blocks is set) along the axis.
  int size(std::string_view axis) const;
  /// Returns this position's index along the axis.
  int index(std::string_view axis) const;

  /// Returns the sum of all positions' values.
  Tensor all_reduce(const Tensor& x, std::string_view axis,
                    const SourceLocation& where = SourceLocation::current()) const;
  /// Returns all positions' values, concatenated along `dim` in index() order.
  Tensor all_gather(const Tensor& x, std::string_view axis, int dim,
                    const SourceLocation& where = SourceLocation::current()) const;
  /// Adds the values of all positions, splits the sum along `dim` into size() equal parts, and
  /// returns part index().
  Tensor reduce_scatter(const Tensor& x, std::string_view axis, int dim,
                        const SourceLocation& where = SourceLocation::current()) const;
  /// Splits each value along `split_dim` and sends part i to the position with index() i. Returns
  /// the received parts, concatenated along `concat_dim`.
  Tensor all_to_all(const Tensor& x, std::string_view axis, int split_dim, int concat_dim,
                    const SourceLocation& where = SourceLocation::current()) const;
  /// Sends the value to the position with index index() + shift, cyclically; returns the received
  /// value.
  Tensor send_receive(const Tensor& x, std::string_view axis, int shift,
                      const SourceLocation& where = SourceLocation::current()) const;
  /// Returns the value at the position with index `root`.
  Tensor broadcast(const Tensor& x, std::string_view axis, int root,
                   const SourceLocation& where = SourceLocation::current()) const;
  /// At the position with index `root`, returns the sum of all positions' values. At the other
  /// positions, returns zeros.
  Tensor reduce(const Tensor& x, std::string_view axis, int root,
                const SourceLocation& where = SourceLocation::current()) const;

 private:
  friend std::vector<Tensor> local_map(
      const std::function<std::vector<Tensor>(LocalMapContext&, const std::vector<Tensor>&)>& fn,
      const std::vector<Tensor>& inputs, const std::vector<Layout>& in_layouts,
      const std::vector<Layout>& out_layouts, const SourceLocation& where);
  using Exchange = std::function<Tensor(internal::MeshPosition& position, std::uint8_t axes)>;
  using Backward = std::function<Tensor(const Tensor& gradient)>;

  explicit LocalMapContext(internal::MeshPosition* position) : position_(position) {}
  /// Returns the result of the exchange, or `x` if the axis has one position.
  Tensor exchanged(const Tensor& x, std::string_view axis, const SourceLocation& where,
                   const Exchange& exchange, const Backward& backward) const;
  void check_index(std::string_view axis, int index, const char* name,
                   const SourceLocation& where) const;

  internal::MeshPosition* position_;  // nullptr: outside a step of a mesh strategy
};

/// Function that local_map() calls; `inputs` are this position's parts of the global inputs.
using LocalFunction =
    std::function<std::vector<Tensor>(LocalMapContext& context, const std::vector<Tensor>& inputs)>;

/// In a step of a MeshStrategy, changes the layouts of the inputs to `in_layouts` and calls `fn` on
/// every position with that position's parts. Returns tensors with `out_layouts` whose parts are
/// the results of `fn`. In `fn`, operations compute with local tensors, and only the context
/// exchanges values. Each global dimension of a result is the local one times the size of its axis
/// in the layout; results must be equal along all axes that the layout does not use.
/// Differentiable. Values that depend on variables must be passed to `fn` as inputs. Random
/// operations in `fn` draw the same numbers on every position.
///
/// Outside such a step, calls `fn` once with the full inputs; every axis has one position.
///
/// Collective within the step. Throws kInvalidArgument if the numbers of layouts and tensors
/// differ, if the mesh or a shape does not allow a layout, if shapes or dtypes of results differ
/// between positions, or if `fn` uses an outside tensor that is not an input. Throws kNotFound if a
/// layout names an axis that the mesh lacks. Corresponds to jax.shard_map and PyTorch's local_map.
std::vector<Tensor> local_map(const LocalFunction& fn, const std::vector<Tensor>& inputs,
                              const std::vector<Layout>& in_layouts,
                              const std::vector<Layout>& out_layouts,
                              const SourceLocation& where = SourceLocation::current());

}  // namespace tutti
