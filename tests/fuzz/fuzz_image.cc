// Fuzzes the decoders of pictures: any bytes give a picture of the wanted channels or an Error.
// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "tutti/core/error.h"
#include "tutti/data/image.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (tutti::ColorMode mode : {tutti::ColorMode::kUnchanged, tutti::ColorMode::kGrayscale}) {
    try {
      tutti::DecodeImageOptions options;
      options.color_mode = mode;
      options.max_pixels = 1 << 16;
      const tutti::Tensor image = tutti::decode_image(bytes, "fuzz", options);
      const std::int64_t channels = image.shape()[2];
      const bool fits = mode == tutti::ColorMode::kUnchanged ? channels <= 4 : channels == 1;
      if (!fits || image.shape()[0] * image.shape()[1] > options.max_pixels) std::abort();
    } catch (const tutti::Error&) {
    }
  }
  return 0;
}
