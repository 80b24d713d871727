// Functions of the local parts of tensors on a mesh, with explicit collectives.
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

/// Context of a function of local_map(): this position's coordinates, and collectives over one axis
/// of the mesh, all differentiable. All positions make the same calls with values of one shape;
/// each function below combines the values of the positions that differ in `axis` only. Valid
/// during the call and, for gradients, until the step ends.
///
/// All functions throw kNotFound for an unknown axis, and kInvalidArgument for a dimension, an
/// index or a size that does not fit.
class LocalMapContext {
 public:
  /// Returns the number of positions (of blocks, if MeshOptions::blocks is set) along the axis.
  int size(std::string_view axis) const;
  /// Returns this position's index along the axis.
  int index(std::string_view axis) const;

  /// Returns the sum of all values.
  Tensor all_reduce(const Tensor& x, std::string_view axis,
                    const SourceLocation& where = SourceLocation::current()) const;
  /// Returns all values, concatenated along `dim` by index.
  Tensor all_gather(const Tensor& x, std::string_view axis, int dim,
                    const SourceLocation& where = SourceLocation::current()) const;
  /// Divides the sum of all values along `dim`; returns the part that index() numbers.
  Tensor reduce_scatter(const Tensor& x, std::string_view axis, int dim,
                        const SourceLocation& where = SourceLocation::current()) const;
  /// Divides each value along `split_dim` and sends part i to index i. Returns the received parts,
  /// concatenated along `concat_dim`.
  Tensor all_to_all(const Tensor& x, std::string_view axis, int split_dim, int concat_dim,
                    const SourceLocation& where = SourceLocation::current()) const;
  /// Sends the value to index() + shift, cyclically; returns the received value.
  Tensor send_receive(const Tensor& x, std::string_view axis, int shift,
                      const SourceLocation& where = SourceLocation::current()) const;
  /// Returns the value of index `root`.
  Tensor broadcast(const Tensor& x, std::string_view axis, int root,
                   const SourceLocation& where = SourceLocation::current()) const;
  /// Returns the sum of all values at index `root`, and zeros elsewhere.
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

/// Function of local tensors: this position's parts of the inputs.
using LocalFunction =
    std::function<std::vector<Tensor>(LocalMapContext& context, const std::vector<Tensor>& inputs)>;

/// In a step of a MeshStrategy, calls `fn` on every position with its parts of the inputs, which
/// are relaid to `in_layouts`, and returns tensors of `out_layouts` whose parts are the results. In
/// `fn`, operations compute with local tensors, and only the context exchanges values. The global
/// shape of a result is the local one times the sizes of the axes of its layout; over all other
/// axes, the results must be equal. Differentiable. `fn` may use values that depend on variables as
/// inputs only, and its random operations draw the same numbers on every position.
///
/// Elsewhere calls `fn` once with the inputs; all axes have one position.
///
/// Collective within the step. Throws kInvalidArgument for another number of layouts than of
/// tensors, layouts that the mesh or a shape does not allow, results whose shapes or dtypes differ
/// between positions, and other tensors from outside in `fn`. Both jax.shard_map and PyTorch's
/// local_map do this.
std::vector<Tensor> local_map(const LocalFunction& fn, const std::vector<Tensor>& inputs,
                              const std::vector<Layout>& in_layouts,
                              const std::vector<Layout>& out_layouts,
                              const SourceLocation& where = SourceLocation::current());

}  // namespace tutti
