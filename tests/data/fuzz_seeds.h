// Files in tests/fuzz/seeds: images written by Python's zlib (PNG) and Pillow (JPEG), arrays.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gmock/gmock.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/file.h"
#include "tutti/data/npy.h"
#include "tutti/tensor/tensor.h"

namespace tutti::fuzz_seeds {

inline std::string seed_bytes(const std::string& name) {
  return read_file(std::string(TUTTI_FUZZ_SEEDS) + "/image/" + name);
}

/// Channels of pixel (x, y) of all PNG images, which are 5 wide and 4 high.
using Pixel = std::function<std::vector<int>(int x, int y)>;
inline int red(int x, int) { return 50 * x; }
inline int green(int, int y) { return 60 * y; }
inline int blue(int x, int y) { return 10 * x + 20 * y; }
inline int alpha(int x, int) { return 255 - 30 * x; }

inline Tensor picture_of(const Pixel& pixel, int width = 5, int height = 4) {
  std::vector<std::uint8_t> values;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      for (int value : pixel(x, y)) values.push_back(static_cast<std::uint8_t>(value));
    }
  }
  const auto channels = static_cast<std::int64_t>(pixel(0, 0).size());
  return Tensor::from<std::uint8_t>({height, width, channels}, values);
}

/// Returns the values of one pixel.
inline std::vector<int> pixel_at(const Tensor& image, std::int64_t x, std::int64_t y) {
  const Shape& shape = image.shape();
  const auto values = image.host_span<std::uint8_t>();
  std::vector<int> pixel;
  for (std::int64_t c = 0; c < shape[2]; ++c) {
    pixel.push_back(values[static_cast<std::size_t>((y * shape[1] + x) * shape[2] + c)]);
  }
  return pixel;
}

/// Expects that the .npz file `name` holds [1 .. 6] as "a" and a second array in Fortran order.
inline void expect_arrays_of_python(const std::string& name) {
  using ::testing::ElementsAre;
  const NamedTensors read = read_npz(std::string(TUTTI_FUZZ_SEEDS) + "/npy/" + name);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].first, "a");
  EXPECT_THAT(read[0].second.to_doubles(), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_EQ(read[1].second.shape(), (Shape{2, 2}));
  EXPECT_THAT(read[1].second.to_doubles(), ElementsAre(1, 3, 2, 4));  // in Fortran order
}

}  // namespace tutti::fuzz_seeds
