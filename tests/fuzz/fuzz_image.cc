// Fuzzes the image decoders: any input yields an image with the requested channels, or an Error.
// SPDX-License-Identifier: Apache-2.0
#include "data/input_file.h"
#include "tests/fuzz/fuzz_target.h"
#include "tutti/data/image.h"

namespace {

void decode(const std::string& bytes, tutti::ColorMode mode) {
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

/// Recomputes the checksums of a PNG file's chunks, so that the decoder parses damaged contents.
void repair_checksums(std::string& bytes) {
  std::size_t place = 8;
  while (bytes.size() >= 12 && place <= bytes.size() - 12) {
    std::size_t length = 0;
    for (int i = 0; i < 4; ++i) length = length << 8 | static_cast<std::uint8_t>(bytes[place + i]);
    length = std::min(length, bytes.size() - 12 - place);
    const std::size_t sum_place = place + 8 + length;
    const std::uint32_t sum = tutti::internal::crc32(bytes.substr(place + 4, 4 + length));
    for (int i = 0; i < 4; ++i) bytes[sum_place + i] = static_cast<char>(sum >> (24 - 8 * i));
    place = sum_place + 4;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  decode(bytes, tutti::ColorMode::kGrayscale);
  if (bytes.starts_with("\x89PNG")) repair_checksums(bytes);
  decode(bytes, tutti::ColorMode::kUnchanged);
  return 0;
}
