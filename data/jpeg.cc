// JPEG pictures, on libjpeg.
// SPDX-License-Identifier: Apache-2.0
#include "core/file_kind.h"
#include "data/image_pixels.h"
#include "tutti/data/image.h"

#ifdef TUTTI_WITH_JPEG
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <jpeglib.h>
// Behind jpeglib.h, which it needs.
#include <jerror.h>
#endif

// libjpeg reports errors by a function that must not return: it jumps out of libjpeg. So each
// member function that calls setjmp() has no variables with destructors, and nothing else calls
// libjpeg's functions that can fail.

namespace tutti {

#ifdef TUTTI_WITH_JPEG
namespace {

/// Where libjpeg reports errors: its own table of functions first, so that one pointer is both.
struct Errors {
  jpeg_error_mgr table;
  std::jmp_buf jump;
  char message[JMSG_LENGTH_MAX];

  jpeg_error_mgr* start() {
    message[0] = '\0';
    jpeg_std_error(&table);
    table.error_exit = on_error;
    table.emit_message = on_message;
    return &table;
  }
  [[noreturn]] static void on_error(j_common_ptr info) {
    auto* errors = reinterpret_cast<Errors*>(info->err);
    (*info->err->format_message)(info, errors->message);
    std::longjmp(errors->jump, 1);
  }
  // Where a file is cut, libjpeg would warn and paint the rest grey.
  static void on_message(j_common_ptr info, int level) {
    if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) on_error(info);
  }
};

/// Ends files that are read again and again in ever finer scans.
struct ScanLimit {
  static constexpr int kMostScans = 500;
  jpeg_progress_mgr table;

  static void on_progress(j_common_ptr info) {
    const auto* reader = reinterpret_cast<j_decompress_ptr>(info);
    if (reader->input_scan_number <= kMostScans) return;
    auto* errors = reinterpret_cast<Errors*>(info->err);
    std::snprintf(errors->message, sizeof(errors->message), "more than %d scans", kMostScans);
    std::longjmp(errors->jump, 1);
  }
};

void cmyk_to_rgb(const std::uint8_t* from, std::uint8_t* to, std::int64_t count, bool inverted) {
  for (std::int64_t i = 0; i < count; ++i, from += 4, to += 3) {
    for (int channel = 0; channel < 3; ++channel) {
      const int ink = inverted ? from[channel] : 255 - from[channel];
      const int black = inverted ? from[3] : 255 - from[3];
      to[channel] = static_cast<std::uint8_t>(ink * black / 255);
    }
  }
}

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& source, const DecodeImageOptions& options)
      : bytes_(bytes), source_(source), options_(options) {}
  ~Reader() { jpeg_destroy_decompress(&info_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  Tensor run() {
    if (bytes_.empty()) {
      fail(ErrorCode::kDataLoss, source_, ": offset 0: expected a JPEG picture, got an empty file");
    }
    if (!read_header()) fail_damaged();
    choose_colors();
    const bool is_cmyk = info_.out_color_space == JCS_CMYK;
    const std::int64_t channels = is_cmyk ? 4 : info_.out_color_space == JCS_RGB ? 3 : 1;
    internal::require_pixels(info_.image_height, info_.image_width, source_, options_);
    MutableTensor image({info_.image_height, info_.image_width, channels}, DType::kUInt8, Device{});
    if (!read_rows(image.span<std::uint8_t>().data(), info_.image_width * channels)) fail_damaged();
    const Tensor pixels = is_cmyk ? without_cmyk(image) : image.freeze();
    return internal::to_color_mode(pixels, options_.color_mode);
  }

 private:
  // False: it failed, see errors_.message.
  bool read_header() {
    info_.err = errors_.start();
    if (setjmp(errors_.jump)) return false;
    jpeg_create_decompress(&info_);
    limit_.table.progress_monitor = ScanLimit::on_progress;
    info_.progress = &limit_.table;
    jpeg_mem_src(&info_, reinterpret_cast<const unsigned char*>(bytes_.data()),
                 static_cast<unsigned long>(bytes_.size()));
    jpeg_read_header(&info_, TRUE);
    return true;
  }

  void choose_colors() {
    const J_COLOR_SPACE stored = info_.jpeg_color_space;
    const bool wants_gray = options_.color_mode == ColorMode::kGrayscale;
    if (stored == JCS_CMYK || stored == JCS_YCCK) {
      info_.out_color_space = JCS_CMYK;
    } else if (stored == JCS_GRAYSCALE || (wants_gray && stored == JCS_YCbCr)) {
      info_.out_color_space = JCS_GRAYSCALE;  // what is stored, without detour over colours
    } else {
      info_.out_color_space = JCS_RGB;
    }
  }

  bool read_rows(std::uint8_t* pixels, std::int64_t row_bytes) {
    if (setjmp(errors_.jump)) return false;
    jpeg_start_decompress(&info_);
    while (info_.output_scanline < info_.output_height) {
      JSAMPROW row = pixels + row_bytes * info_.output_scanline;
      jpeg_read_scanlines(&info_, &row, 1);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }

  Tensor without_cmyk(const MutableTensor& image) const {
    MutableTensor rgb(image.shape().with_dim(2, 3), DType::kUInt8, Device{});
    const Shape& shape = image.shape();
    cmyk_to_rgb(image.span<std::uint8_t>().data(), rgb.span<std::uint8_t>().data(),
                shape[0] * shape[1], info_.saw_Adobe_marker);
    return rgb.freeze();
  }

  [[noreturn]] void fail_damaged() const {
    const std::size_t left = info_.src ? info_.src->bytes_in_buffer : bytes_.size();
    fail(ErrorCode::kDataLoss, source_, ": offset ",
         bytes_.size() - std::min<std::size_t>(left, bytes_.size()),
         ": expected a JPEG picture, got bytes that libjpeg refuses: ", errors_.message,
         bytes_.starts_with("\xff\xd8") ? "" : internal::kind_note(bytes_));
  }

  std::string_view bytes_;
  const std::string& source_;
  const DecodeImageOptions& options_;
  Errors errors_;
  ScanLimit limit_{};
  jpeg_decompress_struct info_{};
};

class Writer {
 public:
  Writer() { info_.err = errors_.start(); }
  ~Writer() {
    jpeg_destroy_compress(&info_);
    std::free(buffer_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  std::string run(const Tensor& image, int quality) {
    if (!write(image.shape(), image.host_span<std::uint8_t>().data(), quality)) {
      fail(ErrorCode::kInternal, "encode_jpeg: libjpeg refuses ", image.shape(), ": ",
           errors_.message);
    }
    return std::string(reinterpret_cast<const char*>(buffer_), size_);
  }

 private:
  bool write(const Shape& shape, const std::uint8_t* pixels, int quality) {
    if (setjmp(errors_.jump)) return false;
    jpeg_create_compress(&info_);
    jpeg_mem_dest(&info_, &buffer_, &size_);
    info_.image_height = static_cast<JDIMENSION>(shape.begin()[0]);
    info_.image_width = static_cast<JDIMENSION>(shape.begin()[1]);
    info_.input_components = static_cast<int>(shape.begin()[2]);
    info_.in_color_space = info_.input_components == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&info_);
    jpeg_set_quality(&info_, quality, TRUE);
    jpeg_start_compress(&info_, TRUE);
    while (info_.next_scanline < info_.image_height) {
      const std::size_t row_bytes =
          std::size_t{info_.image_width} * static_cast<std::size_t>(info_.input_components);
      JSAMPROW row = const_cast<JSAMPROW>(pixels + row_bytes * info_.next_scanline);
      jpeg_write_scanlines(&info_, &row, 1);
    }
    jpeg_finish_compress(&info_);
    return true;
  }

  Errors errors_;
  jpeg_compress_struct info_{};
  unsigned char* buffer_ = nullptr;  // libjpeg's, by malloc()
  unsigned long size_ = 0;
};

}  // namespace

Tensor decode_jpeg(std::string_view bytes, const std::string& source, DecodeImageOptions options) {
  return Reader(bytes, source, options).run();
}

std::string encode_jpeg(const Tensor& image, EncodeJpegOptions options) {
  internal::require_image(image, "encode_jpeg");
  const Shape& shape = image.shape();
  if (shape[2] != 1 && shape[2] != 3) {
    fail(ErrorCode::kInvalidArgument, "encode_jpeg: expected 1 or 3 channels, got ", shape[2]);
  }
  if (shape[0] > JPEG_MAX_DIMENSION || shape[1] > JPEG_MAX_DIMENSION) {
    fail(ErrorCode::kInvalidArgument, "encode_jpeg: expected sides of at most ", JPEG_MAX_DIMENSION,
         ", got ", shape);
  }
  if (options.quality < 1 || options.quality > 100) {
    fail(ErrorCode::kInvalidArgument, "encode_jpeg: expected a quality from 1 to 100, got ",
         options.quality);
  }
  return Writer().run(image, options.quality);
}

#else

Tensor decode_jpeg(std::string_view, const std::string& source, DecodeImageOptions) {
  fail(ErrorCode::kUnimplemented, source,
       ": this build reads no JPEG pictures; expected libjpeg, got none; try apt-get install "
       "libjpeg-dev and build with TUTTI_JPEG=ON");
}

std::string encode_jpeg(const Tensor&, EncodeJpegOptions) {
  fail(ErrorCode::kUnimplemented,
       "encode_jpeg: this build writes no JPEG pictures; expected libjpeg, got none; try apt-get "
       "install libjpeg-dev and build with TUTTI_JPEG=ON");
}

#endif

}  // namespace tutti
