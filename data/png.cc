// PNG pictures, on libpng.
// SPDX-License-Identifier: Apache-2.0
#include "core/file_kind.h"
#include "data/image_pixels.h"
#include "tutti/data/image.h"

#ifdef TUTTI_WITH_PNG
#include <png.h>

#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>
#endif

// libpng reports errors by jumping out of its functions. So each member function of PngReader that
// calls setjmp() has no variables with destructors, and nothing else calls libpng's functions that
// can fail.

namespace tutti {

#ifdef TUTTI_WITH_PNG
namespace {

class PngReader {
 public:
  PngReader(std::string_view bytes, const std::string& source, const DecodeImageOptions& options)
      : bytes_(bytes), source_(source), options_(options) {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error, on_warning);
    if (png_) info_ = png_create_info_struct(png_);
    if (!info_) {
      png_destroy_read_struct(&png_, &info_, nullptr);
      fail(ErrorCode::kResourceExhausted, source_, ": libpng does not start");
    }
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  Tensor run() {
    if (!read_header()) fail_damaged();
    const std::int64_t height = png_get_image_height(png_, info_);
    const std::int64_t width = png_get_image_width(png_, info_);
    internal::require_pixels(height, width, source_, options_);
    if (!start_rows()) fail_damaged();
    MutableTensor image({height, width, png_get_channels(png_, info_)}, DType::kUInt8, Device{});
    require_plausible(image.num_bytes());
    const std::size_t row_bytes = image.num_bytes() / static_cast<std::size_t>(height);
    TUTTI_CHECK(row_bytes == png_get_rowbytes(png_, info_), "libpng: rows of ", row_bytes);
    std::vector<png_bytep> rows;
    for (std::int64_t row = 0; row < height; ++row) {
      rows.push_back(image.span<std::uint8_t>().data() + static_cast<std::size_t>(row) * row_bytes);
    }
    if (!read_rows(rows.data())) fail_damaged();
    return internal::to_color_mode(image.freeze(), options_.color_mode);
  }

 private:
  // False: it failed, see message_.
  bool read_header() {
    if (setjmp(jump_)) return false;
    png_set_read_fn(png_, this, on_read);
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // max_pixels is the limit
    png_read_info(png_, info_);
    return true;
  }

  // Here libpng takes memory for rows: their length must have been looked at.
  bool start_rows() {
    if (setjmp(jump_)) return false;
    png_set_strip_16(png_);
    png_set_expand(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
    return true;
  }

  bool read_rows(png_bytepp rows) {
    if (setjmp(jump_)) return false;
    png_read_image(png_, rows);
    png_read_end(png_, nullptr);
    return true;
  }

  // Deflate packs at most 1032 to 1.
  void require_plausible(std::size_t unpacked) const {
    constexpr std::size_t kLargestRatio = 1032;
    constexpr std::size_t kBitsPerByte = 8;  // a pixel may take a bit of the file, 16 without tRNS
    constexpr std::size_t kExpansion = kBitsPerByte * 4;
    if (unpacked / kLargestRatio / kExpansion <= bytes_.size()) return;
    fail(ErrorCode::kDataLoss, source_, ": offset ", offset_,
         ": the file ends early; expected a picture of ", unpacked, " bytes, got ", bytes_.size(),
         " packed ones");
  }

  [[noreturn]] void fail_damaged() const {
    fail(ErrorCode::kDataLoss, source_, ": offset ", offset_,
         ": expected a PNG picture, got bytes that libpng refuses: ", message_,
         bytes_.starts_with("\x89PNG") ? "" : internal::kind_note(bytes_));
  }

  [[noreturn]] static void on_error(png_structp png, png_const_charp message) {
    auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
    std::snprintf(reader->message_, sizeof(reader->message_), "%s", message);
    std::longjmp(reader->jump_, 1);
  }
  static void on_warning(png_structp, png_const_charp) {}

  static void on_read(png_structp png, png_bytep to, std::size_t count) {
    auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > reader->bytes_.size() - reader->offset_) png_error(png, "the file ends early");
    std::memcpy(to, reader->bytes_.data() + reader->offset_, count);
    reader->offset_ += count;
  }

  std::string_view bytes_;
  const std::string& source_;
  const DecodeImageOptions& options_;
  std::size_t offset_ = 0;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_;
  char message_[160] = "";
};

png_uint_32 format_of(std::int64_t channels) {
  static constexpr png_uint_32 kFormats[] = {PNG_FORMAT_GRAY, PNG_FORMAT_GA, PNG_FORMAT_RGB,
                                             PNG_FORMAT_RGBA};
  if (channels >= 1 && channels <= 4) return kFormats[channels - 1];
  fail(ErrorCode::kInvalidArgument, "encode_png: expected 1 to 4 channels, got ", channels);
}

}  // namespace

Tensor decode_png(std::string_view bytes, const std::string& source, DecodeImageOptions options) {
  return PngReader(bytes, source, options).run();
}

std::string encode_png(const Tensor& image) {
  internal::require_image(image, "encode_png");
  constexpr std::int64_t kLargestSide = PNG_UINT_31_MAX;
  const Shape& shape = image.shape();
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.format = format_of(shape[2]);
  if (shape[0] > kLargestSide || shape[1] > kLargestSide / 4) {
    fail(ErrorCode::kInvalidArgument, "encode_png: expected sides below 2^29, got ", shape);
  }
  header.height = static_cast<png_uint_32>(shape[0]);
  header.width = static_cast<png_uint_32>(shape[1]);
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(header), '\0');
  png_alloc_size_t size = bytes.size();
  const int done =
      png_image_write_to_memory(&header, bytes.data(), &size, 0, image.bytes().data(), 0, nullptr);
  const std::string message = header.message;
  png_image_free(&header);
  if (!done) fail(ErrorCode::kInternal, "encode_png: libpng refuses ", shape, ": ", message);
  bytes.resize(size);
  return bytes;
}

#else

Tensor decode_png(std::string_view, const std::string& source, DecodeImageOptions) {
  fail(ErrorCode::kUnimplemented, source,
       ": this build reads no PNG pictures; expected libpng, got none; try apt-get install "
       "libpng-dev and build with TUTTI_PNG=ON");
}

std::string encode_png(const Tensor&) {
  fail(ErrorCode::kUnimplemented,
       "encode_png: this build writes no PNG pictures; expected libpng, got none; try apt-get "
       "install libpng-dev and build with TUTTI_PNG=ON");
}

#endif

}  // namespace tutti
