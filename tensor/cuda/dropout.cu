// Dropout: the mask depends only on the key and the element's index, as on the CPU.
// SPDX-License-Identifier: Apache-2.0
#include "tensor/cuda/elements.h"
#include "tensor/cuda/kernels.h"
#include "tensor/cuda/launch.h"

namespace tutti::cuda {
namespace {

// Device versions of functions in core/random.cc.
__device__ __forceinline__ std::uint64_t splitmix64(std::uint64_t value) {
  value += 0x9E3779B97F4A7C15;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EB;
  return value ^ (value >> 31);
}

__device__ __forceinline__ std::uint64_t hash_key(const RandomKey& key, std::uint64_t start) {
  const std::uint64_t fields[] = {key.seed, key.purpose, key.a, key.b, key.c};
  std::uint64_t hash = start;
  for (const std::uint64_t field : fields) hash = splitmix64(hash ^ splitmix64(field + start));
  return hash;
}

struct PhiloxWords {
  std::uint32_t words[4];
};

__device__ __forceinline__ PhiloxWords philox(std::uint64_t block, std::uint64_t upper,
                                              std::uint64_t key) {
  std::uint32_t w0 = static_cast<std::uint32_t>(block),
                w1 = static_cast<std::uint32_t>(block >> 32);
  std::uint32_t w2 = static_cast<std::uint32_t>(upper),
                w3 = static_cast<std::uint32_t>(upper >> 32);
  std::uint32_t key0 = static_cast<std::uint32_t>(key);
  std::uint32_t key1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = std::uint64_t{0xD2511F53} * w0;
    const std::uint64_t product1 = std::uint64_t{0xCD9E8D57} * w2;
    w0 = static_cast<std::uint32_t>(product1 >> 32) ^ w1 ^ key0;
    w1 = static_cast<std::uint32_t>(product1);
    w2 = static_cast<std::uint32_t>(product0 >> 32) ^ w3 ^ key1;
    w3 = static_cast<std::uint32_t>(product0);
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return {{w0, w1, w2, w3}};
}

/// Uses a thread per Philox block of four elements, which are loaded together if `is_wide`.
template <class T>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(RandomKey given, const RandomKey* live, float rate, double scale_, bool is_wide,
                   std::int64_t count, const T* x, T* y) {
  using N = Number<T>;
  const RandomKey random = live != nullptr ? *live : given;
  const std::uint64_t key = hash_key(random, 0x243F6A8885A308D3);
  const std::uint64_t upper = hash_key(random, 0x13198A2E03707344);
  const N scale = static_cast<N>(scale_);
  for (std::int64_t block = thread_number(); block * 4 < count; block += num_threads()) {
    const PhiloxWords draws = philox(static_cast<std::uint64_t>(block), upper, key);
    const std::int64_t first = block * 4;
    const auto dropped = [&](int k, T value) {
      const float draw = static_cast<float>(draws.words[k] >> 8) * 0x1p-24f;
      return element<T>(draw < rate ? N{0} : number(value) * scale);
    };
    if (is_wide && first + 4 <= count) {
      auto pack = *reinterpret_cast<const Pack<T, 4>*>(x + first);
      for (int k = 0; k < 4; ++k) pack.elements[k] = dropped(k, pack.elements[k]);
      *reinterpret_cast<Pack<T, 4>*>(y + first) = pack;
    } else {
      for (int k = 0; k < 4 && first + k < count; ++k) y[first + k] = dropped(k, x[first + k]);
    }
  }
}

template <class T>
void dropout(const KernelCall& call) {
  const auto& attributes = call.attributes_as<DropoutAttributes>();
  const std::int64_t count = call.inputs[0].shape.num_elements();
  if (count == 0) return;
  const T* const x = call.in<T>(0);
  T* const y = call.out<T>(0);
  const bool is_wide = is_aligned(x, sizeof(Pack<T, 4>)) && is_aligned(y, sizeof(Pack<T, 4>));
  // Each thread hashes the key once, so the grid is limited and threads process several Philox
  // blocks.
  const unsigned blocks = std::min(blocks_for(static_cast<std::size_t>(count), 4), 2048u);
  launch(dropout_kernel<T>, blocks, kThreads, call.stream, attributes.key,
         static_cast<const RandomKey*>(call.step_values ? call.step_values : attributes.step_key),
         static_cast<float>(attributes.rate), 1.0 / (1.0 - attributes.rate), is_wide, count, x, y);
}

template <class... Ts>
void set_floating(KernelTable& table) {
  (table.set(OpId::kDropout, dtype_of<Ts>(), dropout<Ts>), ...);
}

}  // namespace

void register_dropout_kernels(KernelTable& table) { set_floating<TUTTI_FLOATING_TYPES>(table); }

}  // namespace tutti::cuda
