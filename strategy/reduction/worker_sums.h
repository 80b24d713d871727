// What all sums over several workers have in common.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "strategy/reduction/bucket_sums.h"
#include "tutti/core/sync.h"
#include "tutti/cross_device_ops/communicator.h"

namespace tutti::internal {

/// Gives buckets to the team in their order, whatever the order in which replicas fill them, and
/// takes them from it once all are given. worker_sums.cc explains what travels with a bucket.
/// Derived classes call wait_for_sums() before memory of partial sums goes away.
class WorkerSums : public BucketSums {
 public:
  explicit WorkerSums(GivenGradients& given);

  /// Comes with the other workers' kinds.
  void sum_slices(std::size_t) override {}
  void end(std::size_t bucket) override;
  void join() override;

 protected:
  struct Bucket {
    // Per partial sum of the team, on the host: elements, if they travel this way, and counters.
    // The sum over all workers is in the first.
    std::vector<Elements> partials;
    std::size_t first_counter = 0;
    std::string name;  // of the sum
    CollectiveHandle sum;
  };

  /// Whether the bucket's partial sums are on the host and may go.
  virtual bool can_go(std::size_t /*bucket*/) const { return true; }
  /// Makes that so.
  virtual void make_ready(std::size_t /*bucket*/) {}
  /// The bucket's sum was started: what else travels with it follows. `wire`: as in PartialSums.
  virtual void given_away(std::size_t /*bucket*/, std::optional<DType> /*wire*/) {}
  /// Once more: a variable of the bucket was made dense. All workers do.
  virtual void repeat(const BucketPlan::Item& item, std::size_t bucket) = 0;
  /// The sum over all workers is in partials[0]; kinds are those of all.
  virtual void take(std::size_t bucket) = 0;
  /// All buckets are taken.
  virtual void finish() {}

  /// Into the counters: called when replicas have filled the bucket.
  void count_kinds(std::size_t bucket);
  /// partials[0] in the type of the gradients: `rounded`, of that type, where it is another.
  void round_sum(std::size_t bucket, const Elements& rounded);
  void search_sum(std::size_t bucket);
  void sum_again(const BucketPlan::Item& item, std::span<const Elements> partials);
  /// For the sum over all workers.
  void wait(CollectiveHandle& sum);
  void share_findings();
  void wait_for_sums();

  WorkerTeam& team_;
  std::vector<Bucket> buckets_;

 private:
  /// Gives buckets in their order: those that are summed and may go, or all, for which it waits.
  void give(bool all);
  void give_bucket(std::size_t bucket);
  void take_bucket(std::size_t bucket);
  void take_early(std::size_t bucket);
  bool has_slices(std::size_t bucket) const;
  void take_item(std::size_t bucket, const BucketPlan::Item& item, double num_dense,
                 double num_sparse);
  std::size_t first_number() const;
  void tell_numbers();
  void take_numbers();
  std::vector<IndexedSlices> slices_of_all_replicas(std::size_t variable);

  Mutex mutex_;
  std::vector<bool> summed_ TUTTI_GUARDED_BY(mutex_);      // by this worker, per bucket
  std::size_t next_to_give_ TUTTI_GUARDED_BY(mutex_) = 0;  // bucket
  std::vector<char> taken_;      // per bucket; early while others are given
  std::uint64_t digest_ = 0;     // of this worker, as it was told
  std::vector<double> numbers_;  // behind the counters of one bucket, as they were told
  bool digests_differ_ = false;
};

}  // namespace tutti::internal
