// Which algorithm "auto" gets, by size and number of ranks, from a measured table.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <string_view>

#include "tutti/cross_device_ops/collective.h"

namespace tutti {

/// How ranks reach each other: one thread has all buffers; or with messages, through memory or
/// through the network.
enum class Medium { kLocal, kInProcess, kNetwork };

struct AlgorithmQuery {
  Collective collective = Collective::kAllReduce;
  int size = 2;           // ranks
  std::size_t bytes = 0;  // of one rank's buffer
  DType dtype = DType::kFloat32;
  Medium medium = Medium::kLocal;
};

struct AlgorithmChoice {
  std::string_view name;  // of an algorithm with canonical grade: auto has one set of bits
  std::string why;  // "all_reduce of 4096 bytes among 4 ranks (network): up to 8192 bytes ..."
};

/// A function of its argument alone, so that all ranks choose alike.
AlgorithmChoice choose_algorithm(const AlgorithmQuery& query);

namespace internal {
/// The name alone, without making a text: for every call.
std::string_view chosen_name(const AlgorithmQuery& query);

/// Says in the log (debug) what was chosen when it is not what was chosen before. Threads: any.
class ChoiceLog {
 public:
  void note(const AlgorithmQuery& query, std::string_view name);

 private:
  std::atomic<const char*> last_{nullptr};  // names are literals
};
}  // namespace internal

}  // namespace tutti
