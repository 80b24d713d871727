// Philox 4x32-10, and the mapping from a RandomKey to a Philox key and counter.
// SPDX-License-Identifier: Apache-2.0
//
// A Philox *block* is four 32-bit *words*, a function of a 128-bit counter and a 64-bit key. Word i
// of a stream comes from block i / 4. The lower half of the counter is that block number. The upper
// half and the Philox key are two independent 64-bit hashes of the RandomKey (splitmix64, chained
// over its five fields).
#include "tutti/core/random.h"

#include <sys/random.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <numbers>
#include <system_error>

#include "core/names.h"
#include "core/thread_random.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

constexpr std::uint32_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
constexpr int kRounds = 10;

constexpr std::uint32_t low(std::uint64_t value) { return static_cast<std::uint32_t>(value); }
constexpr std::uint32_t high(std::uint64_t value) {
  return static_cast<std::uint32_t>(value >> 32);
}

std::uint64_t splitmix64(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

std::uint64_t hash_key(const RandomKey& key, std::uint64_t start) {
  std::uint64_t hash = start;
  for (std::uint64_t field :
       {key.seed, static_cast<std::uint64_t>(key.purpose), key.a, key.b, key.c}) {
    hash = splitmix64(hash ^ splitmix64(field + start));
  }
  return hash;
}

float to_uniform(std::uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1p-24f; }
double to_uniform64(std::uint64_t bits) { return static_cast<double>(bits >> 11) * 0x1p-53; }

/// Number of blocks computed in parallel, so that the compiler can vectorize each step of a round.
constexpr std::size_t kLanes = 16;
using Lanes = std::uint32_t[kLanes];

void philox_round(Lanes& w0, Lanes& w1, Lanes& w2, Lanes& w3, std::uint32_t key0,
                  std::uint32_t key1) {
  for (std::size_t i = 0; i < kLanes; ++i) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * w0[i];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * w2[i];
    w0[i] = high(product1) ^ w1[i] ^ key0;
    w1[i] = low(product1);
    w2[i] = high(product0) ^ w3[i] ^ key1;
    w3[i] = low(product0);
  }
}

/// Computes the uniform numbers of kLanes blocks, starting at `block`.
void uniform_lanes(std::uint64_t block, std::array<std::uint32_t, 2> upper,
                   std::array<std::uint32_t, 2> key, float* values) {
  Lanes w0, w1, w2, w3;
  for (std::size_t i = 0; i < kLanes; ++i) {
    w0[i] = low(block + i);
    w1[i] = high(block + i);
    w2[i] = upper[0];
    w3[i] = upper[1];
  }
  for (int round = 0; round < kRounds; ++round) {
    philox_round(w0, w1, w2, w3, key[0], key[1]);
    key[0] += kWeyl0;
    key[1] += kWeyl1;
  }
  for (std::size_t i = 0; i < kLanes; ++i) {
    values[4 * i + 0] = to_uniform(w0[i]);
    values[4 * i + 1] = to_uniform(w1[i]);
    values[4 * i + 2] = to_uniform(w2[i]);
    values[4 * i + 3] = to_uniform(w3[i]);
  }
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t product0 = std::uint64_t{kMultiplier0} * counter[0];
    const std::uint64_t product1 = std::uint64_t{kMultiplier1} * counter[2];
    counter = {high(product1) ^ counter[1] ^ key[0], low(product1),
               high(product0) ^ counter[3] ^ key[1], low(product0)};
    key = {key[0] + kWeyl0, key[1] + kWeyl1};
  }
  return counter;
}

RandomStream::RandomStream(const RandomKey& key) {
  // The constants are hexadecimal digits of pi ("nothing-up-my-sleeve numbers").
  const std::uint64_t first = hash_key(key, 0x243F6A8885A308D3);
  const std::uint64_t second = hash_key(key, 0x13198A2E03707344);
  key_ = {low(first), high(first)};
  high_ = {low(second), high(second)};
}

std::array<std::uint32_t, 4> RandomStream::block(std::uint64_t number) const {
  return philox4x32({low(number), high(number), high_[0], high_[1]}, key_);
}

std::uint32_t RandomStream::bits(std::uint64_t index) const { return block(index / 4)[index % 4]; }

std::uint64_t RandomStream::bits64(std::uint64_t index) const {
  const auto words = block(index / 2);
  const std::size_t first = index % 2 * 2;
  return words[first] | std::uint64_t{words[first + 1]} << 32;
}

float RandomStream::uniform(std::uint64_t index) const { return to_uniform(bits(index)); }

double RandomStream::uniform64(std::uint64_t index) const { return to_uniform64(bits64(index)); }

double RandomStream::normal(std::uint64_t index) const {
  const auto words = block(index);
  const double u = to_uniform64(words[0] | std::uint64_t{words[1]} << 32);
  const double v = to_uniform64(words[2] | std::uint64_t{words[3]} << 32);
  // 1 - u is in (0, 1], so the logarithm is finite.
  return std::sqrt(-2.0 * std::log(1.0 - u)) * std::cos(2.0 * std::numbers::pi * v);
}

std::uint64_t RandomStream::below(std::uint64_t index, std::uint64_t bound) const {
  __extension__ using Uint128 = unsigned __int128;
  return static_cast<std::uint64_t>((Uint128{bits64(index)} * bound) >> 64);
}

void RandomStream::fill_uniform(std::uint64_t first, std::span<float> values) const {
  float buffer[4 * kLanes];
  std::size_t done = 0;
  while (done < values.size()) {
    const std::uint64_t index = first + done;
    const std::size_t skip = index % 4;
    const std::size_t count = std::min(4 * kLanes - skip, values.size() - done);
    if (skip == 0 && count == 4 * kLanes) {
      uniform_lanes(index / 4, high_, key_, values.data() + done);
    } else {
      uniform_lanes(index / 4, high_, key_, buffer);
      std::copy_n(buffer + skip, count, values.data() + done);
    }
    done += count;
  }
}

namespace {

std::atomic<std::uint64_t> global_seed{0};
std::atomic<std::uint64_t> variable_counter{0};
std::atomic<std::uint64_t> layer_counter{0};
std::atomic<std::uint64_t> seed_changes{0};
thread_local RandomContextScope* current_scope = nullptr;
thread_local internal::NumbersFromZero* own_numbers = nullptr;
thread_local RandomContext outside_replicas;
thread_local std::uint64_t num_draws = 0;

using Ordinals = std::vector<std::pair<std::uint64_t, std::uint64_t>>;

/// Returns the counters that this thread uses outside all scopes; set_random_seed() resets them.
Ordinals& outside_ordinals() {
  thread_local Ordinals ordinals;
  thread_local std::uint64_t seen_changes = 0;
  const std::uint64_t changes = seed_changes.load();
  if (std::exchange(seen_changes, changes) != changes) ordinals.clear();
  return ordinals;
}

}  // namespace

std::uint64_t internal::num_random_draws() { return num_draws; }
void internal::note_random_step() { ++num_draws; }

const RandomContext& current_random_context() {
  ++num_draws;
  if (current_scope != nullptr) return current_scope->context_;
  outside_replicas.seed = random_seed();
  return outside_replicas;
}

std::uint64_t next_call_ordinal(std::uint64_t call_site) {
  ++num_draws;
  Ordinals& ordinals = current_scope ? current_scope->ordinals_ : outside_ordinals();
  for (auto& [site, next] : ordinals)
    if (site == call_site) return next++;
  ordinals.emplace_back(call_site, 1);
  return 0;
}

RandomContextScope::RandomContextScope(const RandomContext& context)
    : previous_(current_scope), context_(context) {
  current_scope = this;
}

RandomContextScope::~RandomContextScope() { current_scope = previous_; }

void set_random_seed(std::uint64_t seed) {
  global_seed.store(seed);
  variable_counter.store(0);
  layer_counter.store(0);
  seed_changes.fetch_add(1);
}

std::uint64_t random_seed() { return global_seed.load(); }

std::uint64_t next_variable_number() {
  return own_numbers ? own_numbers->next_variable++ : variable_counter.fetch_add(1);
}

std::uint64_t next_layer_number() {
  return own_numbers ? own_numbers->next_layer++ : layer_counter.fetch_add(1);
}

internal::NumbersFromZero::NumbersFromZero() {
  TUTTI_CHECK(!own_numbers, "NumbersFromZero: expected one per thread, got a second");
  own_numbers = this;
}

internal::NumbersFromZero::~NumbersFromZero() { own_numbers = nullptr; }

void internal::fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::getrandom(bytes.data(), bytes.size(), 0);
    if (count > 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
    if (count < 0 && errno != EINTR) {
      fail(ErrorCode::kUnavailable, "getrandom: expected random bytes from the system, got error: ",
           std::generic_category().message(errno));
    }
  }
}

std::string internal::new_unique_name() {
  std::array<std::byte, 16> bytes{};
  fill_random(bytes);
  return hex_of(bytes);
}

std::uint64_t internal::new_run_nonce() {
  std::uint64_t nonce = 0;
  while (nonce == 0) fill_random(std::as_writable_bytes(std::span(&nonce, 1)));
  return nonce;
}

}  // namespace tutti
