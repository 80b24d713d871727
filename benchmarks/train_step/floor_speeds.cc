// Prints, as JSON, the maximum speed of one thread for oneDNN's matrix product and for copies.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include <dnnl.hpp>

#include "tutti/core/clock.h"

namespace {

/// Minimum measuring time for each size, in seconds.
constexpr double kSeconds = 0.15;

/// Returns the rate of the fastest tenth of all calls, in calls per second.
template <class Call>
double fastest_rate(const Call& call) {
  const tutti::Clock& clock = tutti::Clock::system();
  call();  // not timed, because the first call touches new memory
  std::vector<double> seconds;
  double sum = 0.0;
  while (sum < kSeconds) {
    const auto begin = clock.now();
    call();
    seconds.push_back(std::chrono::duration<double>(clock.now() - begin).count());
    sum += seconds.back();
  }
  std::ranges::sort(seconds);
  return 1.0 / seconds[seconds.size() / 10];
}

/// Returns the rate, in floating-point operations per second, of a float32 product [size, size] x
/// [size, size], whose operands have the layouts that oneDNN prefers.
double product_rate(const dnnl::engine& engine, dnnl::stream& stream, std::int64_t size) {
  const dnnl::memory::desc any({size, size}, dnnl::memory::data_type::f32,
                               dnnl::memory::format_tag::any);
  const dnnl::matmul::primitive_desc description({any, any, any}, engine);
  const dnnl::matmul product(description);
  const auto filled = [&](const dnnl::memory::desc& layout) {
    dnnl::memory memory(layout, engine);
    auto* const values = static_cast<float*>(memory.get_data_handle());
    std::fill_n(values, layout.get_size() / sizeof(float), 0.5F);
    return memory;
  };
  const dnnl::memory a = filled(description.src_desc()), b = filled(description.weights_desc()),
                     c = filled(description.dst_desc());
  const double calls = fastest_rate([&] {
    product.execute(stream, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}});
    stream.wait();
  });
  return calls * 2.0 * static_cast<double>(size * size * size);
}

/// Returns the bytes read and written per second by copies of `num_bytes`.
double copy_rate(std::size_t num_bytes) {
  const std::vector<char> from(num_bytes, 1);
  std::vector<char> to(num_bytes);
  return fastest_rate([&] { std::memcpy(to.data(), from.data(), num_bytes); }) * 2.0 *
         static_cast<double>(num_bytes);
}

}  // namespace

int main() {
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(engine);
  double products = 0.0, copies = 0.0;
  for (const std::int64_t size : {256, 512, 1024, 2048})
    products = std::max(products, product_rate(engine, stream, size));
  for (const std::size_t mebibytes : {1, 4, 16, 64})
    copies = std::max(copies, copy_rate(mebibytes << 20));
  std::printf("{\"flops\": %.6g, \"bytes\": %.6g}\n", products, copies);
  return 0;
}
