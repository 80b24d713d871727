// Collectives on tensors of several replicas: gather, all_gather, reduce_scatter, all_to_all.
// SPDX-License-Identifier: Apache-2.0
#include "core/names.h"
#include "cross_device_ops/device_work.h"
#include "tutti/cross_device_ops/cross_device_ops.h"
#include "tutti/tensor/device_scope.h"
#include "tutti/tensor/dispatch.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {
namespace {

using internal::require;

/// Returns the sum of the lengths along `axis`. kInvalidArgument for values that do not fit.
std::int64_t concatenated_length(std::string_view who, const PerReplica<Tensor>& value, int axis) {
  const Tensor& first = value[0];
  std::int64_t length = 0;
  for (std::size_t r = 0; r < value.size(); ++r) {
    const Tensor& own = value[r];
    require(own.rank() == first.rank() && own.dtype() == first.dtype(), who,
            ": expected rank and type of replica 0, ", first.dtype(), " ", first.shape(), ", got ",
            own.dtype(), " ", own.shape(), " from replica ", r);
    for (int d = 0; d < first.rank(); ++d) {
      require(d == axis || own.shape()[d] == first.shape()[d], who, ": Shape mismatch: dimension ",
              d, " must be equal in both shapes when gathering along axis ", axis, "; expected ",
              first.shape(), " as in replica 0, got ", own.shape(), " from replica ", r);
    }
    length += own.shape()[axis];
  }
  return length;
}

void require_dimension(std::string_view who, const PerReplica<Tensor>& value) {
  require(value.size() > 0, who, ": expected a value of one replica or more, got none");
  require(value[0].rank() > 0, who,
          ": scalars cannot be concatenated; expected a rank of 1 or more; try expand_dims()");
}

std::vector<ReplicaBuffer> input_buffers(const PerReplica<Tensor>& value) {
  std::vector<ReplicaBuffer> buffers;
  for (const Tensor& own : value) buffers.push_back(internal::buffer_of(own));
  return buffers;
}

/// Results under construction: one per replica, with rows[r] rows, on the device of its value.
class Outputs {
 public:
  Outputs(const PerReplica<Tensor>& value, std::span<const std::int64_t> rows) {
    for (std::size_t r = 0; r < value.size(); ++r) {
      const Tensor& own = value[r];
      tensors_.emplace_back(own.shape().with_dim(0, rows[r]), own.dtype(), own.device());
      buffers_.push_back(internal::buffer_of(tensors_.back()));
    }
  }
  std::span<const ReplicaBuffer> buffers() const { return buffers_; }
  PerReplica<Tensor> freeze() {
    std::vector<Tensor> results;
    for (MutableTensor& tensor : tensors_) results.push_back(tensor.freeze());
    return PerReplica<Tensor>(std::move(results));
  }

 private:
  std::vector<MutableTensor> tensors_;
  std::vector<ReplicaBuffer> buffers_;
};

/// Returns the number of rows of each of `parts` equal parts of replica `replica`'s `rows` rows.
std::int64_t equal_part(std::string_view who, std::int64_t rows, std::size_t parts,
                        std::size_t replica) {
  const auto v = static_cast<std::int64_t>(parts);
  require(rows % v == 0, who, ": equal parts need a first dimension that is a multiple of ", v,
          ", got ", rows, " from replica ", replica, "; try lengths");
  return rows / v;
}

/// Requires `expected` lengths, none of them negative.
void require_lengths(std::string_view who, std::span<const std::int64_t> lengths,
                     std::size_t expected) {
  require(lengths.size() == expected, who, ": expected ", expected, " lengths, or none, got ",
          lengths.size());
  for (const std::int64_t length : lengths) {
    require(length >= 0, who, ": expected lengths of 0 or more, got ", length);
  }
}

}  // namespace

Tensor CrossDeviceOps::gather(const PerReplica<Tensor>& value, int axis, Device destination) {
  require_dimension("gather", value);
  const int concatenated = value[0].shape().normalized_axis(axis, "gather");
  concatenated_length("gather", value, concatenated);
  const SeparateObservers unseen;
  const NoDeviceScope where_it_is;
  std::vector<Tensor> near;
  for (const Tensor& own : value) near.push_back(own.to(destination));
  return concat(near, concatenated);
}

Tensor CrossDeviceOps::gather(const PerReplica<IndexedSlices>&, int, Device) {
  fail(ErrorCode::kUnimplemented,
       "gather: gather does not support IndexedSlices; expected PerReplica<Tensor>; try "
       "IndexedSlices::to_dense() first");
}

PerReplica<Tensor> CrossDeviceOps::all_gather(const PerReplica<Tensor>& value) {
  require_dimension("all_gather", value);
  const std::vector<std::int64_t> rows(value.size(), concatenated_length("all_gather", value, 0));
  Outputs outputs(value, rows);
  all_gather(input_buffers(value), outputs.buffers());
  return outputs.freeze();
}

PerReplica<Tensor> CrossDeviceOps::reduce_scatter(ReduceOp op, const PerReplica<Tensor>& value,
                                                  std::span<const std::int64_t> lengths) {
  require_dimension("reduce_scatter", value);
  concatenated_length("reduce_scatter", value, 0);
  const std::int64_t all_rows = value[0].shape()[0];
  std::vector<std::int64_t> rows(lengths.begin(), lengths.end());
  if (lengths.empty()) {
    rows.assign(value.size(), equal_part("reduce_scatter", all_rows, value.size(), 0));
  }
  require_lengths("reduce_scatter", rows, value.size());
  Outputs outputs(value, rows);
  reduce_scatter(op, input_buffers(value), outputs.buffers());
  return outputs.freeze();
}

PerReplica<Tensor> CrossDeviceOps::all_to_all(const PerReplica<Tensor>& value,
                                              std::span<const std::int64_t> lengths) {
  require_dimension("all_to_all", value);
  concatenated_length("all_to_all", value, 0);
  const std::size_t v = value.size();
  std::vector<std::int64_t> sent(lengths.begin(), lengths.end());  // [V * V]: rows from r to s
  if (lengths.empty()) {
    for (std::size_t r = 0; r < v; ++r) {
      sent.insert(sent.end(), v, equal_part("all_to_all", value[r].shape()[0], v, r));
    }
  }
  require_lengths("all_to_all", sent, v * v);
  std::vector<std::int64_t> received(v);
  std::vector<std::size_t> counts;
  const std::int64_t row_elements = value[0].shape().without_axis(0).num_elements();
  for (std::size_t i = 0; i < sent.size(); ++i) {
    received[i % v] += sent[i];
    counts.push_back(static_cast<std::size_t>(sent[i] * row_elements));
  }
  Outputs outputs(value, received);
  all_to_all(input_buffers(value), outputs.buffers(), counts);
  return outputs.freeze();
}

}  // namespace tutti
