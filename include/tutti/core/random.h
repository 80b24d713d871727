// Counter-based random numbers: a value is a pure function of a key and an index.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

/// Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC
/// 2011), with the published test vectors in tests/core/random_test.cc.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// What a stream of random numbers is keyed by. Two different keys give independent streams.
/// `purpose` keeps initialisers, dropout and shuffles apart; a, b and c are for example (step,
/// replica, call site).
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint32_t purpose = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t c = 0;

  bool operator==(const RandomKey&) const = default;
};

/// The values of RandomKey::purpose.
enum RandomPurpose : std::uint32_t {
  kInitializerPurpose = 1,
  kDropoutPurpose = 2,
  kShufflePurpose = 3,
  kUserPurpose = 4,
  kAugmentPurpose = 5,
};

/// Random access to the stream of one key: element i does not depend on which elements were asked
/// for before.
class RandomStream {
 public:
  explicit RandomStream(const RandomKey& key);

  /// bits(i) is word i % 4 of Philox block i / 4; bits64(i) is made of bits(2 i) and bits(2 i + 1).
  /// The functions below read the same stream: take one kind of number from one key.
  std::uint32_t bits(std::uint64_t index) const;
  std::uint64_t bits64(std::uint64_t index) const;
  /// In [0, 1), multiples of 2^-24 (float) or 2^-53 (double).
  float uniform(std::uint64_t index) const;
  double uniform64(std::uint64_t index) const;
  /// Standard normal (Box-Muller on block `index`, computed in double, so that all platforms agree
  /// to rounding).
  double normal(std::uint64_t index) const;
  /// In [0, bound), without bias worth the name (multiply-shift on 64 bits). `bound` > 0.
  std::uint64_t below(std::uint64_t index, std::uint64_t bound) const;

  /// Elements first, first + 1, ... of uniform(); the fast form for whole tensors.
  void fill_uniform(std::uint64_t first, std::span<float> values) const;

 private:
  std::array<std::uint32_t, 4> block(std::uint64_t number) const;

  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 2> high_;  // upper half of the counter: the rest of the key, hashed
};

namespace internal {

/// A permutation (Fisher, Yates), by numbers 2, 3, ... of the stream.
template <class T>
void shuffle(std::vector<T>& values, const RandomStream& random) {
  for (std::size_t left = values.size(); left > 1; --left) {
    std::swap(values[left - 1], values[static_cast<std::size_t>(random.below(left, left))]);
  }
}

}  // namespace internal

/// Where random numbers of a step come from: (seed, step, replica) plus the call site that asks.
/// One per replica thread; a value. See docs/determinism.md.
struct RandomContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t replica = 0;
};

/// The current RandomContext of this thread; outside a replica {global seed, 0, 0}.
const RandomContext& current_random_context();

/// 0, 1, 2, ... for each `call_site` within the current RandomContextScope of this thread (outside
/// every scope: since set_random_seed()): tells the calls of one layer in one step apart.
std::uint64_t next_call_ordinal(std::uint64_t call_site);

/// Makes `context` current on this thread until destroyed; call ordinals start at 0.
class RandomContextScope {
 public:
  explicit RandomContextScope(const RandomContext& context);
  ~RandomContextScope();
  RandomContextScope(const RandomContextScope&) = delete;
  RandomContextScope& operator=(const RandomContextScope&) = delete;

 private:
  friend const RandomContext& current_random_context();
  friend std::uint64_t next_call_ordinal(std::uint64_t call_site);

  RandomContextScope* previous_;
  RandomContext context_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> ordinals_;  // (call site, next ordinal)
};

/// Sets the seed that initialisers, dropout and strategies use from now on (default 0; a strategy
/// that was restored from a checkpoint keeps the seed of that), and starts the counters of
/// variables and layers anew, so that building the same model again gives the same weights
/// (tf.random.set_seed). Call it while no replica runs.
void set_random_seed(std::uint64_t seed);
std::uint64_t random_seed();

/// Counters since the last set_random_seed(): the number of the next variable and of the next
/// layer.
std::uint64_t next_variable_number();
std::uint64_t next_layer_number();

/// While it lives all variables that this thread makes have one number, that of the first: parts of
/// one variable, with the initial values of the whole. Not nested.
class OneVariableNumber {
 public:
  OneVariableNumber();
  ~OneVariableNumber();
  OneVariableNumber(const OneVariableNumber&) = delete;
  OneVariableNumber& operator=(const OneVariableNumber&) = delete;

 private:
  friend std::uint64_t next_variable_number();
  std::optional<std::uint64_t> number_;
};

namespace internal {
/// With bytes of the operating system that nobody can guess.
void fill_random(std::span<std::byte> bytes);
/// A number that tells this run of something from every other one, from there; not 0.
std::uint64_t new_run_nonce();
/// 32 hexadecimal digits, likewise.
std::string new_unique_name();
}  // namespace internal

}  // namespace tutti
