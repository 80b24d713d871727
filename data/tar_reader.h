// The files in a tar file.
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
  std::uint64_t offset = 0;  // of its header
  std::uint64_t size = 0;
};

/// Walks over the regular files: of tars by POSIX (ustar, pax), by GNU (long names) and older ones,
/// also of several that were concatenated.
/// Used by one thread. Errors as tar_dataset(); after one, nothing more can be read.
class TarReader {
 public:
  explicit TarReader(InputFile file, InputLimits limits = {})
      : file_(std::move(file)), limits_(limits) {}

  const std::string& source() const { return file_.source(); }
  /// The next file; nothing at the end.
  std::optional<TarEntry> next();
  /// The content of the file that next() gave last. Once; next() leaves it out where nobody asks.
  std::string read();

 private:
  /// What records in front of a header say about it.
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
  std::uint64_t content_ = 0;  // bytes of the last file that were not read
  std::uint64_t padding_ = 0;  // bytes behind them
  bool ended_ = false;
};

/// The key of a sample and the extension of its file; nothing for files that belong to none.
std::optional<std::pair<std::string, std::string>> split_tar_name(std::string_view name);

/// Groups the files of a reader.
class TarSampleReader {
 public:
  explicit TarSampleReader(TarReader reader) : reader_(std::move(reader)) {}

  /// The next sample; nothing at the end.
  std::optional<TarSample> next();
  /// Leaves out up to `count` samples without reading their files; gives how many there were.
  std::int64_t skip(std::int64_t count);

 private:
  bool find_first();
  template <class Take>
  void take_sample(Take take);

  TarReader reader_;
  // The first file of the next sample, whose content was not read.
  std::optional<TarEntry> entry_;
  std::string key_, extension_;
};

}  // namespace tutti::internal
