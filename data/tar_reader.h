// Reader of the files in a tar file.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "data/input_file.h"
#include "tutti/data/tar.h"

namespace tutti::internal {

inline constexpr std::size_t kTarBlock = 512;

/// One regular file in a tar file.
struct TarEntry {
  std::string name;
  std::uint64_t offset = 0;  // offset of the file's header
  std::uint64_t size = 0;
};

/// Reader of the regular files in tar files. Formats: POSIX (ustar, pax), GNU (long names) and
/// older ones. Tar files may be concatenated. Not thread-safe. Throws the errors of tar_dataset();
/// after an error, nothing more can be read.
class TarReader {
 public:
  explicit TarReader(InputFile file, InputLimits limits = {})
      : file_(std::move(file)), limits_(limits) {}

  const std::string& source() const { return file_.source(); }
  /// Returns the next file, or nullopt at the end.
  std::optional<TarEntry> next();
  /// Returns the content of the file that next() returned last; may be called once. next() skips
  /// unread content.
  std::string read();

 private:
  /// Name and size from preceding records, which override those in the header.
  struct Extra {
    std::optional<std::string> name;
    std::optional<std::uint64_t> size;
  };
  bool read_header(std::string& block);
  std::string read_content(std::uint64_t size, const char* what);
  void skip_content();
  void parse_pax(std::string_view records, Extra& extra);
  bool read_extra(char type, std::uint64_t size, Extra& extra);
  std::uint64_t number_at(std::string_view block, std::size_t offset, std::size_t length) const;
  std::uint64_t octal_at(std::string_view block, std::size_t offset, std::size_t length) const;
  std::string wrong_checksum(std::string_view block) const;
  void require_tar(std::string_view block) const;
  bool find_next_archive(std::string& block);

  InputFile file_;
  InputLimits limits_;
  std::uint64_t header_ = 0;   // offset of the last header
  std::uint64_t content_ = 0;  // number of unread bytes of the last file
  std::uint64_t padding_ = 0;  // number of padding bytes after the content
  bool ended_ = false;
};

/// Returns the key of the sample to which a file belongs and the file's extension, or nullopt if
/// the file belongs to no sample.
std::optional<std::pair<std::string, std::string>> split_tar_name(std::string_view name);

/// Groups the files of a reader into samples.
class TarSampleReader {
 public:
  explicit TarSampleReader(TarReader reader) : reader_(std::move(reader)) {}

  /// Returns the next sample, or nullopt at the end.
  std::optional<TarSample> next();
  /// Skips up to `count` samples without reading their files; returns the number of skipped
  /// samples.
  std::int64_t skip(std::int64_t count);

 private:
  bool find_first();
  template <class Take>
  void take_sample(Take take);

  TarReader reader_;
  // First file of the next sample, with unread content.
  std::optional<TarEntry> entry_;
  std::string key_, extension_;
};

}  // namespace tutti::internal
