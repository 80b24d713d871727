// Packing and adding: the part of a GradientRound that touches every element.
// SPDX-License-Identifier: Apache-2.0
//
// A *piece* is a run of elements of one variable; pieces are worked on in *blocks* that stay in the
// cache, so that rounding for the wire and the search for values that are not finite cost little
// beside the addition. Infinities and NaNs survive every sum, so the sum alone is searched; where
// it has some, the replicas' gradients tell whose they were.
#include <algorithm>
#include <cstring>

#include "tutti/strategy/gradient_round.h"

namespace tutti::internal {
namespace {

constexpr std::size_t kBlockBytes = std::size_t{64} << 10;

}  // namespace

bool GradientRound::compresses(std::size_t bucket) const {
  return residuals_ && plan_->buckets[bucket].dtype == DType::kFloat32;
}

const std::byte* GradientRound::gradient_at(std::size_t replica, const Piece& piece) const {
  const Tensor& gradient = gradients_[replica][piece.item.variable].dense();
  return gradient.bytes().data() + piece.offset() * size_of(gradient.dtype());
}

void GradientRound::stage(int replica, std::size_t bucket, const BucketPlan::Item& item) {
  const auto r = static_cast<std::size_t>(replica);
  if (on_gpus_) return pack(replica, bucket);
  const DType dtype = plan_->buckets[bucket].dtype;
  const std::size_t block = kBlockBytes / size_of(dtype);
  const std::size_t last = item.first + item.count;
  for (std::size_t begin = item.first; begin < last; begin += block) {
    const Piece piece{item, bucket, begin, std::min(last, begin + block)};
    std::byte* const place = element(bucket, r, begin);
    std::memcpy(place, gradient_at(r, piece), piece.count() * size_of(dtype));
    if (policy_ == NonFinitePolicy::kZero && count_non_finite(dtype, place, piece.count()) > 0) {
      note(item, piece.offset() + *first_non_finite(dtype, place, piece.count()), replica);
      clear_non_finite(dtype, place, piece.count());
    }
    if (!compresses(bucket)) continue;
    float* const values = reinterpret_cast<float*>(place);
    compress_with_feedback(compression_, values, residuals_->at(r, bucket, begin), values,
                           piece.count());
  }
}

template <class Visitor>
void GradientRound::for_dense_pieces(const Task& task, const Visitor& visitor) {
  const BucketPlan::Bucket& bucket = plan_->buckets[task.bucket];
  for (std::size_t i = 0; i < bucket.items.size(); ++i) {
    const BucketPlan::Item& item = bucket.items[i];
    const std::size_t begin = std::max(task.slice.begin, item.first);
    const std::size_t end = std::min(task.slice.end, item.first + item.count);
    if (begin >= end || buckets_[task.bucket].kinds[i] != Kind::kDense) continue;
    visitor(Piece{item, task.bucket, begin, end});
  }
}

void GradientRound::reduce_slice(const Task& task) {
  if (!canonical_) return reduce_copies(task);
  if (team_) {
    return for_dense_pieces(task, [&](const Piece& piece) { add_for_workers(piece); });
  }
  const bool by_blocks = policy_ != NonFinitePolicy::kIgnore || compresses(task.bucket);
  const std::size_t block = kBlockBytes / size_of(plan_->buckets[task.bucket].dtype);
  std::vector<std::vector<float>> sent(compresses(task.bucket) ? num_replicas_ : 0,
                                       std::vector<float>(block));
  for_dense_pieces(task, [&](const Piece& piece) {
    if (!by_blocks) return reduce_in_tree_order(piece);
    for (std::size_t begin = piece.begin; begin < piece.end; begin += block) {
      add_block({piece.item, piece.bucket, begin, std::min(piece.end, begin + block)}, sent);
    }
  });
}

void GradientRound::reduce_in_tree_order(const Piece& piece) {
  std::vector<const std::byte*> inputs;
  for (std::size_t r = 0; r < num_replicas_; ++r) inputs.push_back(gradient_at(r, piece));
  reduce_along_tree(ReduceOp::kSum, plan_->buckets[piece.bucket].dtype, inputs,
                    element(piece.bucket, 0, piece.begin), piece.count());
}

void GradientRound::add_block(const Piece& piece, std::vector<std::vector<float>>& sent) {
  const DType dtype = plan_->buckets[piece.bucket].dtype;
  std::byte* const sum = element(piece.bucket, 0, piece.begin);
  if (sent.empty()) {
    reduce_in_tree_order(piece);
  } else {
    std::vector<const std::byte*> inputs;
    for (std::size_t r = 0; r < num_replicas_; ++r) {
      std::byte* const values = reinterpret_cast<std::byte*>(sent[r].data());
      const std::byte* gradient = gradient_at(r, piece);
      if (policy_ == NonFinitePolicy::kZero) {
        std::memcpy(values, gradient, piece.count() * sizeof(float));
        if (clear_non_finite(dtype, values, piece.count()) > 0) note_first(piece);
        gradient = values;
      }
      compress_with_feedback(compression_, reinterpret_cast<const float*>(gradient),
                             residuals_->at(r, piece.bucket, piece.begin), sent[r].data(),
                             piece.count());
      inputs.push_back(values);
    }
    reduce_along_tree(ReduceOp::kSum, dtype, inputs, sum, piece.count());
  }
  if (policy_ == NonFinitePolicy::kIgnore || count_non_finite(dtype, sum, piece.count()) == 0) {
    return;
  }
  note_first(piece);
  if (policy_ == NonFinitePolicy::kZero) repair_block(piece);
}

/// The sum once more, of gradients with zeros where they are not finite.
void GradientRound::repair_block(const Piece& piece) {
  const DType dtype = plan_->buckets[piece.bucket].dtype;
  std::byte* const sum = element(piece.bucket, 0, piece.begin);
  if (!compresses(piece.bucket)) {
    const std::size_t num_bytes = piece.count() * size_of(dtype);
    std::vector<std::vector<std::byte>> finite(num_replicas_, std::vector<std::byte>(num_bytes));
    std::vector<const std::byte*> inputs;
    for (std::size_t r = 0; r < num_replicas_; ++r) {
      std::memcpy(finite[r].data(), gradient_at(r, piece), num_bytes);
      clear_non_finite(dtype, finite[r].data(), piece.count());
      inputs.push_back(finite[r].data());
    }
    reduce_along_tree(ReduceOp::kSum, dtype, inputs, sum, piece.count());
  }
  clear_non_finite(dtype, sum, piece.count());  // finite values may have an infinite sum
}

void GradientRound::reduce_copies(const Task& task) {
  const DType dtype = plan_->buckets[task.bucket].dtype;
  std::vector<ReplicaBuffer> buffers;
  for (std::size_t r = 0; r < num_replicas_; ++r) {
    buffers.push_back({element(task.bucket, r, task.slice.begin), task.slice.end - task.slice.begin,
                       dtype, services_.replica_devices[r]});
  }
  if (services_.ops.sliceable()) {
    services_.ops.all_reduce_in_place(ReduceOp::kSum, buffers, services_.communication);
  } else {
    MutexLock lock(services_.ops_mutex);
    services_.ops.all_reduce_in_place(ReduceOp::kSum, buffers, services_.communication);
  }
  if (policy_ == NonFinitePolicy::kIgnore) return;
  for_dense_pieces(task, [&](const Piece& piece) {
    const std::byte* const sum = element(task.bucket, 0, piece.begin);
    if (count_non_finite(dtype, sum, piece.count()) == 0) return;
    note_first(piece);
    for (std::size_t r = 0; policy_ == NonFinitePolicy::kZero && r < num_replicas_; ++r) {
      clear_non_finite(dtype, element(task.bucket, r, piece.begin), piece.count());
    }
  });
}

/// The first element of the piece that is not finite: of a replica, or else of the sum.
void GradientRound::note_first(const Piece& piece) {
  const DType dtype = plan_->buckets[piece.bucket].dtype;
  bool any = false;
  for (std::size_t r = 0; r < num_replicas_; ++r) {
    Gradient& gradient = gradients_[r][piece.item.variable];
    if (!gradient.is_dense()) continue;  // another worker's is
    if (on_gpus_) gradient = gradient.dense().to(Device{});
    const auto found = first_non_finite(dtype, gradient_at(r, piece), piece.count());
    if (!found) continue;
    note(piece.item, piece.offset() + *found, first_replica() + static_cast<int>(r));
    any = true;
  }
  if (any) return;
  const auto found = first_non_finite(dtype, element(piece.bucket, 0, piece.begin), piece.count());
  if (found) note(piece.item, piece.offset() + *found, NonFiniteValue::kSum);
}

}  // namespace tutti::internal
