// Images: decoding, encoding and resizing.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/image.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/file_kind.h"
#include "core/names.h"
#include "data/input_file.h"

#ifdef TUTTI_WITH_PNG
#include <png.h>
#endif

#ifdef TUTTI_WITH_JPEG
#include <jpeglib.h>
// jerror.h needs the declarations of jpeglib.h.
#include <jerror.h>
#endif

namespace tutti {

using internal::fail_at;

// Image files: code that does not depend on the format.

namespace {

std::int64_t channels_of(ColorMode mode) {
  if (mode == ColorMode::kGrayscale) return 1;
  return mode == ColorMode::kRgb ? 3 : 4;
}

// Returns the luminance with the weights of ITU-R BT.601, in 16-bit fixed point.
std::uint8_t gray_of(const std::uint8_t* rgb) {
  return static_cast<std::uint8_t>((19595u * rgb[0] + 38470u * rgb[1] + 7471u * rgb[2] + 32768u) >>
                                   16);
}

void convert_pixel(const std::uint8_t* from, std::int64_t from_channels, std::uint8_t* to,
                   std::int64_t to_channels) {
  const bool from_gray = from_channels <= 2;
  if (to_channels == 1) {
    to[0] = from_gray ? from[0] : gray_of(from);
    return;
  }
  for (int i = 0; i < 3; ++i) to[i] = from_gray ? from[0] : from[i];
  const bool has_alpha = from_channels % 2 == 0;
  if (to_channels == 4) to[3] = has_alpha ? from[from_channels - 1] : 255;
}

struct Format {
  std::string_view begin;
  const char* name;
};

// Returns the name of a known format that is not supported, or nullptr.
const char* name_of_format(std::string_view bytes) {
  static constexpr std::array<Format, 5> kFormats = {{{"GIF8", "GIF"},
                                                      {"BM", "BMP"},
                                                      {"RIFF", "WebP"},
                                                      {{"II*\0", 4}, "TIFF"},
                                                      {{"MM\0*", 4}, "TIFF"}}};
  for (const Format& format : kFormats) {
    if (bytes.starts_with(format.begin)) return format.name;
  }
  return nullptr;
}

// The following functions are unused in builds without libpng and libjpeg.

/// Throws kResourceExhausted, naming `source`, if the image exceeds options.max_pixels. Must be
/// called before tutti or a library allocates memory for pixels or rows.
[[maybe_unused]] void require_pixels(std::int64_t height, std::int64_t width,
                                     const std::string& source, const DecodeImageOptions& options) {
  TUTTI_CHECK(height > 0 && width > 0, source, ": expected a non-empty image, got ", height, " x ",
              width);
  if (height > options.max_pixels / width) {
    fail(ErrorCode::kResourceExhausted, source, ": offset 0: expected at most ", options.max_pixels,
         " pixels, got ", height, " x ", width, "; raise DecodeImageOptions::max_pixels");
  }
}

/// Converts `image`, uint8 [height, width, 1 to 4], to the channels of `mode`.
[[maybe_unused]] Tensor to_color_mode(const Tensor& image, ColorMode mode) {
  const Shape& shape = image.shape();
  if (mode == ColorMode::kUnchanged || shape[2] == channels_of(mode)) return image;
  MutableTensor converted(shape.with_dim(2, channels_of(mode)), DType::kUInt8, image.device());
  const std::uint8_t* from = image.host_span<std::uint8_t>().data();
  std::uint8_t* to = converted.span<std::uint8_t>().data();
  for (std::int64_t i = 0; i < shape[0] * shape[1]; ++i) {
    convert_pixel(from, shape[2], to, channels_of(mode));
    from += shape[2];
    to += channels_of(mode);
  }
  return converted.freeze();
}

/// Throws kInvalidArgument, naming `who`, unless `image` is a non-empty uint8 tensor [height,
/// width, channels].
[[maybe_unused]] void require_image(const Tensor& image, const char* who) {
  if (image.dtype() == DType::kUInt8 && image.rank() == 3 && image.num_elements() > 0) return;
  fail(ErrorCode::kInvalidArgument, who,
       ": expected an image, uint8 [height, width, channels], got ", image.dtype(), " of shape ",
       image.shape(), "; call cast(), or pass one image of the batch");
}

}  // namespace

Tensor decode_image(std::string_view bytes, const std::string& source, DecodeImageOptions options) {
  if (bytes.starts_with("\x89PNG")) return decode_png(bytes, source, options);
  if (bytes.starts_with("\xff\xd8\xff")) return decode_jpeg(bytes, source, options);
  if (const char* name = name_of_format(bytes)) {
    fail(ErrorCode::kUnimplemented, source, ": offset 0: expected a PNG or JPEG image, got ", name,
         "; convert the file");
  }
  fail_at(source, 0, "expected a PNG or JPEG image, got ", internal::describe_file(bytes));
}

Tensor read_image(const std::string& path, DecodeImageOptions options) {
  return decode_image(internal::read_file_for("read_image", path), path, options);
}

// Resizing.

namespace {

/// Range of the image along one axis.
struct Window {
  std::int64_t begin = 0;
  std::int64_t size = 0;
};

/// Source of a new pixel along one axis: (1 - weight) * lower + weight * upper.
struct Source {
  std::int64_t lower = 0, upper = 0;
  float weight = 0.0f;
};

// Returns the sources of all new pixels along one axis, computed in float32 as in tf.
std::vector<Source> sources_of(Window window, std::int64_t new_size, Interpolation how) {
  const float scale = static_cast<float>(window.size) / static_cast<float>(new_size);
  const std::int64_t last = window.size - 1;
  std::vector<Source> sources;
  for (std::int64_t i = 0; i < new_size; ++i) {
    const float center = (static_cast<float>(i) + 0.5f) * scale;
    Source source;
    if (how == Interpolation::kNearest) {
      source.lower = source.upper = std::min(static_cast<std::int64_t>(std::floor(center)), last);
    } else {
      const float floor = std::floor(center - 0.5f);
      source.lower = std::clamp<std::int64_t>(static_cast<std::int64_t>(floor), 0, last);
      source.upper = std::clamp<std::int64_t>(static_cast<std::int64_t>(floor) + 1, 0, last);
      source.weight = center - 0.5f - floor;
    }
    source.lower += window.begin;
    source.upper += window.begin;
    sources.push_back(source);
  }
  return sources;
}

template <class T>
void resize_rows(const T* pixels, const Shape& shape, const std::vector<Source>& rows,
                 const std::vector<Source>& columns, float* to) {
  const std::int64_t channels = shape[2], row_size = shape[1] * channels;
  const auto between = [](float a, float b, float weight) { return a + (b - a) * weight; };
  for (const Source& row : rows) {
    const T* top = pixels + row.lower * row_size;
    const T* bottom = pixels + row.upper * row_size;
    for (const Source& column : columns) {
      const std::int64_t left = column.lower * channels, right = column.upper * channels;
      for (std::int64_t c = 0; c < channels; ++c) {
        const auto value = [&](const T* from, std::int64_t place) {
          return static_cast<float>(from[place + c]);
        };
        const float above = between(value(top, left), value(top, right), column.weight);
        const float below = between(value(bottom, left), value(bottom, right), column.weight);
        *to++ = between(above, below, row.weight);
      }
    }
  }
}

// Returns the range of `wanted` pixels in the middle of `length` pixels; all of them if `wanted` is
// larger.
Window middle(std::int64_t length, std::int64_t wanted) {
  const std::int64_t size = std::clamp<std::int64_t>(wanted, 1, length);
  return {(length - size) / 2, size};
}

}  // namespace

Tensor resize_image(const Tensor& image, ImageSize size, ResizeImageOptions options) {
  const bool known = image.dtype() == DType::kUInt8 || image.dtype() == DType::kFloat32;
  internal::require(
      known && image.rank() == 3 && image.num_elements() != 0,
      "resize_image: expected an image, uint8 or float32 [height, width, channels], got ",
      image.dtype(), " of shape ", image.shape());
  internal::require(size.height >= 1 && size.width >= 1,
                    "resize_image: expected a size of at least 1 x 1, got ", size.height, " x ",
                    size.width);
  const Shape& shape = image.shape();
  Window rows{0, shape[0]}, columns{0, shape[1]};
  if (options.crop_to_aspect_ratio) {
    rows = middle(shape[0], shape[1] * size.height / size.width);
    columns = middle(shape[1], shape[0] * size.width / size.height);
  }
  MutableTensor resized({size.height, size.width, shape[2]}, DType::kFloat32, image.device());
  const auto from_rows = sources_of(rows, size.height, options.interpolation);
  const auto from_columns = sources_of(columns, size.width, options.interpolation);
  float* to = resized.span<float>().data();
  if (image.dtype() == DType::kUInt8) {
    resize_rows(image.host_span<std::uint8_t>().data(), shape, from_rows, from_columns, to);
  } else {
    resize_rows(image.host_span<float>().data(), shape, from_rows, from_columns, to);
  }
  return resized.freeze();
}

// libpng reports errors with longjmp(). Therefore, libpng functions that can fail are called only
// in member functions of PngReader that call setjmp() and have no variables with destructors.

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
      fail(ErrorCode::kResourceExhausted, source_, ": cannot start libpng");
    }
  }
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader& operator=(PngReader&&) = delete;

  Tensor run() {
    if (!read_header()) fail_damaged();
    const std::int64_t height = png_get_image_height(png_, info_);
    const std::int64_t width = png_get_image_width(png_, info_);
    require_pixels(height, width, source_, options_);
    if (!start_rows()) fail_damaged();
    MutableTensor image({height, width, png_get_channels(png_, info_)}, DType::kUInt8, Device{});
    require_plausible(image.num_bytes());
    const std::size_t row_bytes = image.num_bytes() / static_cast<std::size_t>(height);
    TUTTI_CHECK(row_bytes == png_get_rowbytes(png_, info_), "libpng: expected rows of ", row_bytes,
                " bytes, got ", png_get_rowbytes(png_, info_));
    std::vector<png_bytep> rows;
    for (std::int64_t row = 0; row < height; ++row) {
      rows.push_back(image.span<std::uint8_t>().data() + static_cast<std::size_t>(row) * row_bytes);
    }
    if (!read_rows(rows.data())) fail_damaged();
    return to_color_mode(image.freeze(), options_.color_mode);
  }

 private:
  // Returns false on failure, with the reason in message_.
  bool read_header() {
    if (setjmp(jump_)) return false;
    png_set_read_fn(png_, this, on_read);
    png_set_user_limits(png_, PNG_UINT_31_MAX,
                        PNG_UINT_31_MAX);  // only max_pixels limits the image size
    png_read_info(png_, info_);
    return true;
  }

  // libpng allocates memory for rows here, so the caller must have checked their length.
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

  // Throws if the file is too short for the image: deflate compresses by a factor of at most 1032.
  void require_plausible(std::size_t unpacked) const {
    constexpr std::size_t kLargestRatio = 1032;
    constexpr std::size_t kBitsPerByte = 8;  // uncompressed, a pixel has at least one bit
    constexpr std::size_t kExpansion = kBitsPerByte * 4;
    if (unpacked / kLargestRatio / kExpansion <= bytes_.size()) return;
    fail_at(source_, offset_, "the file ends early; expected an image of ", unpacked,
            " bytes, got ", bytes_.size(), " compressed bytes");
  }

  [[noreturn]] void fail_damaged() const {
    fail_at(source_, offset_, "expected a PNG image, got bytes that libpng refuses: ", message_,
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
  require_image(image, "encode_png");
  constexpr std::int64_t kLargestSide = PNG_UINT_31_MAX;
  const Shape& shape = image.shape();
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.format = format_of(shape[2]);
  internal::require(shape[0] <= kLargestSide && shape[1] <= kLargestSide / 4,
                    "encode_png: expected a height below 2^31 and a width below 2^29, got shape ",
                    shape);
  header.height = static_cast<png_uint_32>(shape[0]);
  header.width = static_cast<png_uint_32>(shape[1]);
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(header), '\0');
  png_alloc_size_t size = bytes.size();
  const int done =
      png_image_write_to_memory(&header, bytes.data(), &size, 0, image.bytes().data(), 0, nullptr);
  const std::string message = header.message;
  png_image_free(&header);
  if (!done)
    fail(ErrorCode::kInternal, "encode_png: libpng rejects an image of shape ", shape, ": ",
         message);
  bytes.resize(size);
  return bytes;
}

#else

Tensor decode_png(std::string_view, const std::string& source, DecodeImageOptions) {
  fail(ErrorCode::kUnimplemented, source,
       ": expected a build that can read PNG images, got one without libpng; run apt-get install "
       "libpng-dev and build with TUTTI_PNG=ON");
}

std::string encode_png(const Tensor&) {
  fail(ErrorCode::kUnimplemented,
       "encode_png: expected a build that can write PNG images, got one without libpng; run "
       "apt-get install libpng-dev and build with TUTTI_PNG=ON");
}

#endif

// libjpeg reports errors with a function that must not return and therefore calls longjmp().
// libjpeg functions that can fail are called only in member functions that call setjmp() and have
// no variables with destructors.

#ifdef TUTTI_WITH_JPEG
namespace {

/// Error state for libjpeg. Its first member is libjpeg's error manager, so a pointer to the
/// manager is also a pointer to this state.
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
  // Makes a truncated file an error: libjpeg would only warn and fill the remaining pixels with
  // grey.
  static void on_message(j_common_ptr info, int level) {
    if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) on_error(info);
  }
};

/// Progress monitor that stops decoding a file with too many scans.
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
  Reader& operator=(Reader&&) = delete;

  Tensor run() {
    if (bytes_.empty()) {
      fail_at(source_, 0, "expected a JPEG image, got an empty file");
    }
    if (!read_header()) fail_damaged();
    choose_colors();
    const bool is_cmyk = info_.out_color_space == JCS_CMYK;
    const std::int64_t channels = is_cmyk ? 4 : info_.out_color_space == JCS_RGB ? 3 : 1;
    require_pixels(info_.image_height, info_.image_width, source_, options_);
    MutableTensor image({info_.image_height, info_.image_width, channels}, DType::kUInt8, Device{});
    if (!read_rows(image.span<std::uint8_t>().data(), info_.image_width * channels)) fail_damaged();
    const Tensor pixels = is_cmyk ? without_cmyk(image) : image.freeze();
    return to_color_mode(pixels, options_.color_mode);
  }

 private:
  // Returns false on failure, with the reason in errors_.message.
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
      info_.out_color_space = JCS_GRAYSCALE;  // reads values as stored, without conversion
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
         ": expected a JPEG image, got bytes that libjpeg refuses: ", errors_.message,
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
  Writer& operator=(Writer&&) = delete;

  std::string run(const Tensor& image, int quality) {
    if (!write(image.shape(), image.host_span<std::uint8_t>().data(), quality)) {
      fail(ErrorCode::kInternal, "encode_jpeg: libjpeg rejects an image of shape ", image.shape(),
           ": ", errors_.message);
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
  unsigned char* buffer_ = nullptr;  // libjpeg allocates it with malloc()
  unsigned long size_ = 0;
};

}  // namespace

Tensor decode_jpeg(std::string_view bytes, const std::string& source, DecodeImageOptions options) {
  return Reader(bytes, source, options).run();
}

std::string encode_jpeg(const Tensor& image, EncodeJpegOptions options) {
  require_image(image, "encode_jpeg");
  const Shape& shape = image.shape();
  internal::require(shape[2] == 1 || shape[2] == 3, "encode_jpeg: expected 1 or 3 channels, got ",
                    shape[2]);
  internal::require(shape[0] <= JPEG_MAX_DIMENSION && shape[1] <= JPEG_MAX_DIMENSION,
                    "encode_jpeg: expected sides of at most ", JPEG_MAX_DIMENSION, ", got ", shape);
  internal::require(options.quality >= 1 && options.quality <= 100,
                    "encode_jpeg: expected a quality from 1 to 100, got ", options.quality);
  return Writer().run(image, options.quality);
}

#else

Tensor decode_jpeg(std::string_view, const std::string& source, DecodeImageOptions) {
  fail(ErrorCode::kUnimplemented, source,
       ": expected a build that can read JPEG images, got one without libjpeg; run apt-get install "
       "libjpeg-dev and build with TUTTI_JPEG=ON");
}

std::string encode_jpeg(const Tensor&, EncodeJpegOptions) {
  fail(ErrorCode::kUnimplemented,
       "encode_jpeg: expected a build that can write JPEG images, got one without libjpeg; run "
       "apt-get install libjpeg-dev and build with TUTTI_JPEG=ON");
}

#endif

}  // namespace tutti
