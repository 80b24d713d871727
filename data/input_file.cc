// Files read piece by piece.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/input_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "tutti/core/error.h"
#include "tutti/data/input_limits.h"

namespace tutti::internal {

// What reading a file may cost.

void require_within(const InputLimits& limits, std::uint64_t unpacked, std::uint64_t packed,
                    const std::string& source) {
  constexpr std::uint64_t kAlwaysFine = std::uint64_t{1} << 28;
  if (unpacked > static_cast<std::uint64_t>(std::max<std::int64_t>(limits.max_bytes, 0))) {
    fail(ErrorCode::kResourceExhausted, source, ": expected at most ", limits.max_bytes,
         " bytes, got ", unpacked, " or more; try InputLimits::max_bytes, where they are right");
  }
  if (unpacked <= kAlwaysFine || packed == 0) return;
  if (unpacked / packed <
      static_cast<std::uint64_t>(std::max<std::int64_t>(limits.max_expansion, 1))) {
    return;
  }
  fail(ErrorCode::kResourceExhausted, source, ": ", packed, " compressed bytes become ", unpacked,
       " or more; expected less than ", limits.max_expansion,
       " times as many; try InputLimits::max_expansion, where they are right");
}

namespace {

constexpr std::size_t kChunk = std::size_t{1} << 16;

[[noreturn]] void fail_with_errno(const std::string& path) {
  const int reason = errno;
  fail(reason == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
       "InputFile: cannot read '", path, "': ", std::generic_category().message(reason));
}

}  // namespace

InputFile::InputFile(const std::string& path, const InputLimits& limits)
    : source_(path), file_(std::fopen(path.c_str(), "rbe")) {
  if (!file_) fail_with_errno(path);
  struct stat information {};
  if (::fstat(::fileno(file_.get()), &information) == 0 && S_ISREG(information.st_mode)) {
    size_ = static_cast<std::uint64_t>(information.st_size);
  }
  std::setvbuf(file_.get(), nullptr, _IONBF, 0);  // buffer_ is one already
  refill();
  if (!is_gzip(buffer_)) return;
  std::string packed;
  while (place_ < buffer_.size() || refill()) {
    packed += buffer_;
    place_ = buffer_.size();
  }
  *this = of_bytes(gunzip(packed, path, limits), path);
}

InputFile InputFile::of_bytes(std::string bytes, std::string source) {
  InputFile file;
  file.source_ = std::move(source);
  file.size_ = bytes.size();
  file.buffer_ = std::move(bytes);
  return file;
}

bool InputFile::refill() {
  if (!file_) return false;
  buffer_.resize(kChunk);
  place_ = 0;
  const std::size_t count = std::fread(buffer_.data(), 1, kChunk, file_.get());
  const bool failed = count == 0 && std::ferror(file_.get()) != 0;
  buffer_.resize(count);
  if (failed) fail_with_errno(source_);
  return count > 0;
}

std::uint64_t InputFile::read(std::string& to, std::uint64_t count) {
  std::uint64_t done = 0;
  while (done < count && (place_ < buffer_.size() || refill())) {
    const std::uint64_t step = std::min<std::uint64_t>(count - done, buffer_.size() - place_);
    to.append(buffer_, place_, static_cast<std::size_t>(step));
    place_ += static_cast<std::size_t>(step);
    done += step;
  }
  offset_ += done;
  return done;
}

std::uint64_t InputFile::skip(std::uint64_t count) {
  std::uint64_t done = std::min<std::uint64_t>(count, buffer_.size() - place_);
  place_ += static_cast<std::size_t>(done);
  offset_ += done;
  if (file_ && size_ && done < count && offset_ < *size_) {
    const std::uint64_t step = std::min(count - done, *size_ - offset_);
    if (::fseeko(file_.get(), static_cast<off_t>(step), SEEK_CUR) != 0) fail_with_errno(source_);
    offset_ += step;
    done += step;
  }
  while (done < count && get() >= 0) ++done;  // pipes, and files that grow
  return done;
}

}  // namespace tutti::internal
