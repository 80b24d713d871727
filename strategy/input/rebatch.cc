// How a global batch is cut into one piece per replica.
// SPDX-License-Identifier: Apache-2.0
//
// Vocabulary: a *batch* is what the user's dataset yields; a *piece* is what one replica gets of
// it.
#include "tutti/strategy/input/rebatch.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "data/forwarding_source.h"
#include "tutti/tensor/ops/shape_ops.h"

namespace tutti {

std::vector<std::int64_t> replica_rows(std::int64_t rows, int num_replicas) {
  const std::int64_t full = (rows + num_replicas - 1) / num_replicas;
  std::vector<std::int64_t> sizes;
  for (std::int64_t left = rows; std::ssize(sizes) < num_replicas; left -= sizes.back()) {
    sizes.push_back(std::min(left, full));
  }
  return sizes;
}

std::vector<std::int64_t> weighted_replica_rows(std::int64_t rows,
                                                std::span<const double> weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<std::int64_t> sizes;
  std::vector<double> remainders;
  for (double weight : weights) {
    const double share = static_cast<double>(rows) * weight / total;
    sizes.push_back(static_cast<std::int64_t>(std::floor(share)));
    remainders.push_back(share - std::floor(share));
  }
  std::vector<std::size_t> order(weights.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, [&](auto a, auto b) { return remainders[a] > remainders[b]; });
  std::int64_t left = rows - std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
  for (std::size_t i = 0; left > 0; i = (i + 1) % order.size(), --left) ++sizes[order[i]];
  return sizes;
}

std::vector<std::int64_t> batch_sizes_for_worker(std::int64_t global_batch_size, int num_workers,
                                                 int replicas_per_worker, int worker) {
  if (global_batch_size < 0 || num_workers < 1 || replicas_per_worker < 1 || worker < 0 ||
      worker >= num_workers) {
    fail(ErrorCode::kInvalidArgument,
         "batch_sizes_for_worker: expected a batch of 0 or more rows and 0 <= worker < workers, "
         "got batch ",
         global_batch_size, ", workers ", num_workers, ", replicas per worker ",
         replicas_per_worker, ", worker ", worker);
  }
  const std::int64_t n = std::int64_t{num_workers} * replicas_per_worker;
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(n), global_batch_size / n);
  for (std::int64_t i = 0; i < global_batch_size % n; ++i) ++sizes[static_cast<std::size_t>(i)];
  // std::ranges::rotate would be shorter, but clang++ 14 cannot compile it.
  std::rotate(sizes.begin(), sizes.begin() + std::ptrdiff_t{worker} * replicas_per_worker,
              sizes.end());
  return sizes;
}

namespace {

Element joined(const std::vector<Element>& parts) {
  if (parts.size() == 1) return parts.front();
  std::vector<Tensor> tensors;
  for (std::size_t c = 0; c < parts.front().size(); ++c) {
    std::vector<Tensor> column;
    for (const Element& part : parts) column.push_back(part[c]);
    tensors.push_back(concat(column, 0));
  }
  return Element(std::move(tensors), parts.front().names());
}

void require_rows(const Element& element) {
  for (const Tensor& tensor : element.tensors()) {
    if (tensor.rank() == 0) {
      fail(ErrorCode::kInvalidArgument,
           "rebatch: the dataset yields scalars; expected batches, got shape ", tensor.shape(),
           "; try dataset.batch(global_batch_size) first");
    }
  }
}

struct Rebatching {
  std::vector<std::int64_t> sizes;
  BatchOptions options;
};

// Yields pieces of the given sizes from the stream of rows.
class RebatchIterator final : public ElementIterator {
 public:
  RebatchIterator(std::unique_ptr<ElementIterator> input, const Rebatching& rebatching)
      : input_(std::move(input)), sizes_(rebatching.sizes), options_(rebatching.options) {}

  std::optional<Element> next() override {
    const std::int64_t size = sizes_[turn_ % sizes_.size()];
    if (size == 0) return empty_piece();
    std::vector<Element> parts;
    std::int64_t taken = 0;
    while (taken < size && fill()) {
      const std::int64_t count = std::min(size - taken, batch_->rows() - first_);
      parts.push_back(batch_->slice_rows(first_, count));
      first_ += count;
      taken += count;
    }
    if (parts.empty() || (taken < size && options_.drop_remainder)) return std::nullopt;
    ++turn_;
    return joined(parts);
  }

 private:
  // Makes a row available in batch_; keeps the last batch at the end of the data.
  bool fill() {
    while (!batch_ || first_ >= batch_->rows()) {
      std::optional<Element> next = ended_ ? std::nullopt : input_->next();
      if (!next) {
        ended_ = true;
        return false;
      }
      require_rows(*next);
      batch_ = std::move(next);
      first_ = 0;
      trailing_empties_ = 0;
    }
    return true;
  }

  // An empty piece belongs to the rows around it: once the rows are over, those that complete the
  // round of sizes follow.
  std::optional<Element> empty_piece() {
    if (!fill()) {
      if (!batch_ || trailing_empties_ > 0 || options_.drop_remainder) return std::nullopt;
      ++trailing_empties_;
    }
    ++turn_;
    return batch_->slice_rows(0, 0);
  }

  std::unique_ptr<ElementIterator> input_;
  std::vector<std::int64_t> sizes_;
  BatchOptions options_;
  std::optional<Element> batch_;
  std::int64_t first_ = 0;
  std::size_t turn_ = 0;
  int trailing_empties_ = 0;
  bool ended_ = false;
};

class RebatchSource : public internal::Decorator<RebatchSource, RebatchIterator, Rebatching> {
 public:
  using Decorator::Decorator;
  std::optional<std::int64_t> cardinality() const override { return std::nullopt; }
  std::optional<std::int64_t> batch_size() const override { return std::nullopt; }
  std::optional<int> batch_depth() const override { return std::nullopt; }
  bool may_end_in_partial_batch() const override { return !argument().options.drop_remainder; }
};

}  // namespace

Dataset rebatch(const Dataset& dataset, std::vector<std::int64_t> sizes, BatchOptions options) {
  if (sizes.empty() || std::ranges::any_of(sizes, [](auto size) { return size < 0; }) ||
      std::ranges::all_of(sizes, [](auto size) { return size == 0; })) {
    fail(ErrorCode::kInvalidArgument,
         "rebatch: expected sizes of 0 or more rows, at least one of them positive, got [",
         join(sizes), "]");
  }
  return Dataset(std::make_shared<RebatchSource>(dataset.shared_source(),
                                                 Rebatching{std::move(sizes), options}));
}

Dataset rebatch_evenly(const Dataset& dataset, int num_pieces) {
  if (num_pieces < 1) {
    fail(ErrorCode::kInvalidArgument, "rebatch_evenly: expected 1 or more pieces, got ",
         num_pieces);
  }
  return dataset.flat_map([num_pieces](const Element& batch) {
    require_rows(batch);
    const std::vector<std::int64_t> sizes = replica_rows(batch.rows(), num_pieces);
    return Dataset::from_generator([batch, sizes](std::uint64_t) -> Dataset::Generator {
      return [batch, sizes, turn = std::size_t{0}, first = std::int64_t{0}]() mutable {
        std::optional<Element> piece;
        if (turn == sizes.size()) return piece;
        piece = batch.slice_rows(first, sizes[turn]);
        first += sizes[turn++];
        return piece;
      };
    });
  });
}

}  // namespace tutti
