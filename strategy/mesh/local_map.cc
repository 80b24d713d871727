// Implements local_map(): shards of global tensors, collectives, and their gradients.
// SPDX-License-Identifier: Apache-2.0
//
// Within the function, gradients are *partial*: positions that hold the same value each compute one
// summand of its gradient. Therefore the gradient of a collective is the transposed collective. If
// several positions hold the same shard of a result, only the first of them receives its gradient,
// and the other positions receive zeros. If several positions hold the same shard of an input, its
// gradient is the partial sum of their local gradients.
#include "tutti/strategy/mesh/local_map.h"

#include <string>
#include <utility>

#include "autograd/recording.h"
#include "core/call_site.h"
#include "core/names.h"
#include "strategy/mesh/mesh_position.h"
#include "tutti/autograd/gradient_tape.h"

namespace tutti {
namespace {

using internal::AxisSet;
using internal::ExchangeKind;
using internal::MeshPosition;
using internal::Sharding;

void require_step(const MeshPosition* position) {
  if (position == MeshPosition::current()) return;
  fail(ErrorCode::kFailedPrecondition,
       "local_map: the context or a gradient was used outside the step; use them only on the "
       "position's thread, before the step ends");
}

/// Returns compute(), and records that its gradient with respect to `x` is `backward`.
template <class Compute, class Backward>
Tensor with_gradient(MeshPosition* position, const Tensor& x, const Compute& compute,
                     Backward backward) {
  require_step(position);
  Tensor y;
  {
    const GradientTape::StopRecording stop;
    y = compute().alias();  // has a different id from x, even if nothing was exchanged
  }
  record_custom_gradient(
      std::span(&x, 1), std::span(&y, 1),
      [position, backward = std::move(backward)](std::span<const Tensor> gradients) {
        require_step(position);
        return std::vector<Gradient>{backward(gradients[0])};
      });
  return y;
}

Tensor entered(MeshPosition& position, const Tensor& x, const Sharding& sharding);

/// Returns the global tensor; `local` is this position's part of it.
Tensor left(MeshPosition& position, const Tensor& local, const Sharding& sharding,
            const TensorSpec& spec) {
  return with_gradient(
      &position, local,
      [&] {
        return position.tensor_of({sharding, local, spec});
      },
      [&position, sharding](const Tensor& gradient) {
        Sharding summed = sharding;
        summed.partial = 0;
        const Tensor own = entered(position, gradient, summed);
        // Axes over which the gradient is replicated.
        const auto copies = static_cast<AxisSet>(~(sharding.cut() | sharding.partial));
        const bool is_first = position.grid().index(position.number(), copies) == 0;
        return is_first ? own : Tensor::zeros(own.shape(), own.dtype(), own.device());
      });
}

/// Returns this position's part of a global tensor.
Tensor entered(MeshPosition& position, const Tensor& x, const Sharding& sharding) {
  return with_gradient(
      &position, x, [&] { return position.local_as(position.part_of(x), sharding); },
      [&position, sharding, spec = TensorSpec{x.shape(), x.dtype()}](const Tensor& gradient) {
        Sharding partial = sharding;
        partial.partial = position.grid().all_axes() & static_cast<AxisSet>(~sharding.cut());
        return left(position, gradient, partial, spec);
      });
}

std::string who(std::string_view function, const SourceLocation& where) {
  return concat(function, " at ", to_string(where));
}

/// Returns the spec and the sharding of the global tensor to which a result belongs.
std::pair<TensorSpec, Sharding> whole_of(const internal::MeshGrid& grid, const Tensor& local,
                                         const Layout& layout, const std::string& who) {
  Shape shape = local.shape();
  for (std::size_t d = 0; d < layout.axes.size() && std::cmp_less(d, shape.rank()); ++d) {
    if (layout.axes[d].empty()) continue;
    const int dim = static_cast<int>(d);
    shape = shape.with_dim(dim, shape.dim(dim) * grid.size(grid.axis(layout.axes[d])));
  }
  return {{shape, local.dtype()}, grid.sharding_of(layout, shape, who)};
}

}  // namespace

int LocalMapContext::size(std::string_view axis) const {
  return position_ ? position_->grid().size(position_->grid().axis(axis)) : 1;
}

int LocalMapContext::index(std::string_view axis) const {
  if (!position_) return 0;
  return position_->grid().index(position_->number(), position_->grid().axis(axis));
}

Tensor LocalMapContext::exchanged(const Tensor& x, std::string_view axis,
                                  const SourceLocation& where, const Exchange& exchange,
                                  const Backward& backward) const {
  const CallSite site(where);
  const bool is_alone = size(axis) == 1;
  return with_gradient(
      position_, x,
      [&] { return is_alone ? x : exchange(*position_, position_->grid().axis(axis)); }, backward);
}

void LocalMapContext::check_index(std::string_view axis, int index, const char* name,
                                  const SourceLocation& where) const {
  internal::require(index >= 0 && index < size(axis), who(name, where),
                    ": root: expected an index from 0 to ", size(axis) - 1, " along '", axis,
                    "', got ", index);
}

Tensor LocalMapContext::all_reduce(const Tensor& x, std::string_view axis,
                                   const SourceLocation& where) const {
  return exchanged(
      x, axis, where,
      [&x](MeshPosition& position, AxisSet axes) {
        return position.summed({.axes = axes, .own = x});
      },
      [context = *this, axis = std::string(axis), where](const Tensor& gradient) {
        return context.all_reduce(gradient, axis, where);
      });
}

Tensor LocalMapContext::all_gather(const Tensor& x, std::string_view axis, int dim,
                                   const SourceLocation& where) const {
  dim = x.shape().normalized_axis(dim, who("all_gather", where));
  return exchanged(
      x, axis, where,
      [&x, dim](MeshPosition& position, AxisSet axes) {
        return position.joined(position.exchange(x, axes), dim);
      },
      [context = *this, axis = std::string(axis), dim, where](const Tensor& gradient) {
        return context.reduce_scatter(gradient, axis, dim, where);
      });
}

namespace {

/// Returns `dim` as a non-negative index. Throws kInvalidArgument if `parts` does not divide that
/// dimension of x.
int divisible_dim(const Tensor& x, int dim, int parts, const std::string& who) {
  dim = x.shape().normalized_axis(dim, who);
  internal::require(x.shape().dim(dim) % parts == 0, who, ": dimension ", dim, " of ", x.shape(),
                    " cannot be divided evenly among the ", parts, " positions of the axis");
  return dim;
}

}  // namespace

Tensor LocalMapContext::reduce_scatter(const Tensor& x, std::string_view axis, int dim,
                                       const SourceLocation& where) const {
  dim = divisible_dim(x, dim, size(axis), who("reduce_scatter", where));
  return exchanged(
      x, axis, where,
      [&x, dim](MeshPosition& position, AxisSet axes) {
        return position.summed({.axes = axes, .parts = axes, .dim = dim, .own = x});
      },
      [context = *this, axis = std::string(axis), dim, where](const Tensor& gradient) {
        return context.all_gather(gradient, axis, dim, where);
      });
}

Tensor LocalMapContext::all_to_all(const Tensor& x, std::string_view axis, int split_dim,
                                   int concat_dim, const SourceLocation& where) const {
  split_dim = divisible_dim(x, split_dim, size(axis), who("all_to_all", where));
  concat_dim = x.shape().normalized_axis(concat_dim, who("all_to_all", where));
  return exchanged(
      x, axis, where,
      [&x, split_dim, concat_dim](MeshPosition& position, AxisSet axes) {
        return position.all_to_all(x, concat_dim, split_dim, axes);
      },
      [context = *this, axis = std::string(axis), split_dim, concat_dim,
       where](const Tensor& gradient) {
        return context.all_to_all(gradient, axis, concat_dim, split_dim, where);
      });
}

Tensor LocalMapContext::send_receive(const Tensor& x, std::string_view axis, int shift,
                                     const SourceLocation& where) const {
  const int count = size(axis);
  shift = (shift % count + count) % count;
  return exchanged(
      x, axis, where,
      [&x, shift, count](MeshPosition& position, AxisSet axes) {
        if (shift == 0) return x;
        std::vector<int> senders;
        for (int i = 0; i < count; ++i) senders.push_back((i + count - shift) % count);
        return position.received(x, axes, ExchangeKind::kSendReceive, senders);
      },
      [context = *this, axis = std::string(axis), shift, where](const Tensor& gradient) {
        return context.send_receive(gradient, axis, -shift, where);
      });
}

Tensor LocalMapContext::broadcast(const Tensor& x, std::string_view axis, int root,
                                  const SourceLocation& where) const {
  check_index(axis, root, "broadcast", where);
  return exchanged(
      x, axis, where,
      [&x, root](MeshPosition& position, AxisSet axes) {
        const auto count = static_cast<std::size_t>(position.grid().size(axes));
        return position.received(x, axes, ExchangeKind::kBroadcast, std::vector(count, root));
      },
      [context = *this, axis = std::string(axis), root, where](const Tensor& gradient) {
        return context.reduce(gradient, axis, root, where);
      });
}

Tensor LocalMapContext::reduce(const Tensor& x, std::string_view axis, int root,
                               const SourceLocation& where) const {
  check_index(axis, root, "reduce", where);
  return exchanged(
      x, axis, where,
      [&x, root](MeshPosition& position, AxisSet axes) {
        const Tensor sum = position.summed({.axes = axes, .root = root, .own = x});
        const bool is_root = position.grid().index(position.number(), axes) == root;
        return is_root ? sum : Tensor::zeros(sum.shape(), sum.dtype(), sum.device());
      },
      [context = *this, axis = std::string(axis), root, where](const Tensor& gradient) {
        return context.broadcast(gradient, axis, root, where);
      });
}

std::vector<Tensor> local_map(const LocalFunction& fn, const std::vector<Tensor>& inputs,
                              const std::vector<Layout>& in_layouts,
                              const std::vector<Layout>& out_layouts, const SourceLocation& where) {
  const CallSite site(where);
  const std::string name = who("local_map", where);
  const auto require_count = [&](const char* what, std::size_t layouts, std::size_t tensors) {
    internal::require(layouts == tensors, name, ": expected ", tensors, " layouts, one per ", what,
                      ", got ", layouts);
  };
  require_count("input", in_layouts.size(), inputs.size());
  MeshPosition* const position = MeshPosition::current();
  LocalMapContext context(position);
  internal::TapeBoundary boundary;
  std::vector<Tensor> locals = inputs;
  for (std::size_t i = 0; position && i < inputs.size(); ++i) {
    const Sharding sharding =
        position->grid().sharding_of(in_layouts[i], inputs[i].shape(), concat(name, ": input ", i));
    locals[i] = entered(*position, inputs[i], sharding);
  }
  std::vector<Tensor> results;
  if (!position) {
    results = fn(context, locals);
    require_count("result", out_layouts.size(), results.size());
  } else {
    const MeshPosition::LocalScope local(*position, name);
    boundary.close(name);
    results = fn(context, locals);
    require_count("result", out_layouts.size(), results.size());
    position->require_same_specs(results);
    for (std::size_t i = 0; i < results.size(); ++i) {
      internal::require(
          position->part_of(results[i]).sharding.is_whole(), name, ": result ", i,
          " is a sharded tensor from outside the function; try passing it as an input");
      const auto [spec, sharding] =
          whole_of(position->grid(), results[i], out_layouts[i], concat(name, ": result ", i));
      results[i] = left(*position, results[i], sharding, spec);
    }
  }
  return results;
}

}  // namespace tutti
