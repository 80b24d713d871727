// Counter-based random numbers: a value is a pure function of a key and an index.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace tutti {

/// Computes Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2,
/// 3", SC 2011). The published test vectors are in tests/core/random_test.cc.
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key);

/// Key of a stream of random numbers; different keys give independent streams. `purpose` separates
/// initialisers, dropout and shuffles; a, b and c are for example (step, replica, call site).
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint32_t purpose = 0;
  std::uint64_t a = 0;
  std::uint64_t b = 0;
  std::uint64_t c = 0;

  bool operator==(const RandomKey&) const = default;
};

/// Values of RandomKey::purpose.
enum RandomPurpose : std::uint32_t {
  kInitializerPurpose = 1,
  kDropoutPurpose = 2,
  kShufflePurpose = 3,
  kUserPurpose = 4,
  kAugmentPurpose = 5,
};

/// Random-access stream of a key's random numbers: element i does not depend on earlier reads.
class RandomStream {
 public:
  explicit RandomStream(const RandomKey& key);

  /// Returns word i % 4 of Philox block i / 4; bits64(i) consists of bits(2 i) and bits(2 i + 1).
  /// The functions below read the same stream, so take only one kind of number from a key.
  std::uint32_t bits(std::uint64_t index) const;
  std::uint64_t bits64(std::uint64_t index) const;
  /// Returns a number in [0, 1), a multiple of 2^-24 (float) or 2^-53 (double).
  float uniform(std::uint64_t index) const;
  double uniform64(std::uint64_t index) const;
  /// Returns a standard normal number (Box-Muller on block `index`, computed in double, so that all
  /// platforms agree up to rounding).
  double normal(std::uint64_t index) const;
  /// Returns a number in [0, bound), bound > 0, with negligible bias (64-bit multiply-shift).
  std::uint64_t below(std::uint64_t index, std::uint64_t bound) const;

  /// Writes uniform(first), uniform(first + 1), ... to `values`. Faster than calling uniform() for
  /// each value.
  void fill_uniform(std::uint64_t first, std::span<float> values) const;

 private:
  std::array<std::uint32_t, 4> block(std::uint64_t number) const;

  std::array<std::uint32_t, 2> key_;
  std::array<std::uint32_t, 2> high_;  // upper half of the counter: a second hash of the key
};

namespace internal {

/// Shuffles `values` (Fisher-Yates), using numbers 2, 3, ... of the stream.
template <class T>
void shuffle(std::vector<T>& values, const RandomStream& random) {
  for (std::size_t left = values.size(); left > 1; --left) {
    std::swap(values[left - 1], values[static_cast<std::size_t>(random.below(left, left))]);
  }
}

}  // namespace internal

/// Step-dependent part of a random key; the call site adds the rest. One per replica thread. A
/// value type. See docs/determinism.md.
struct RandomContext {
  std::uint64_t seed = 0;
  std::uint64_t step = 0;
  std::uint32_t replica = 0;
};

/// Returns this thread's current RandomContext; outside a replica, {global seed, 0, 0}.
const RandomContext& current_random_context();

/// Returns 0, 1, 2, ... for successive calls with the same `call_site`, to distinguish the calls to
/// one layer in a step. Counts within this thread's RandomContextScope; outside any scope, counts
/// from the last set_random_seed().
std::uint64_t next_call_ordinal(std::uint64_t call_site);

/// Scope in which `context` is this thread's RandomContext; call ordinals start at 0.
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

/// Sets the seed of initialisers, dropout and strategies (default 0; a strategy restored from a
/// checkpoint keeps the checkpoint's seed). Resets the counters of variables and layers, so that
/// building the same model again gives the same weights, as in tf.random.set_seed. Call it while no
/// replica runs.
void set_random_seed(std::uint64_t seed);
std::uint64_t random_seed();

/// Return the number of the next variable and of the next layer since the last set_random_seed().
std::uint64_t next_variable_number();
std::uint64_t next_layer_number();

namespace internal {
/// Fills `bytes` with unpredictable bytes from the operating system.
void fill_random(std::span<std::byte> bytes);
/// Returns a nonzero random number that distinguishes one run from another.
std::uint64_t new_run_nonce();
/// Returns 32 random hexadecimal digits.
std::string new_unique_name();
}  // namespace internal

}  // namespace tutti
