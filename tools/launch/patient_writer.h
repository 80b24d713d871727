// Writes to a reader that may be slow, without ever waiting for it.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace tutti::launch {

/// Keeps what the reader of a pipe does not take yet: who writes decides how long that may be, and
/// goes on with other things meanwhile. Other processes should not write into the same pipe.
class PatientWriter {
 public:
  explicit PatientWriter(int fd) : fd_(fd) {}

  int fd() const { return fd_; }
  /// Dropped when the reader is gone.
  void add(std::string_view text);
  /// Writes what there is room for; into a file on a full disk: nothing. False once nobody reads
  /// any more.
  bool write_some();
  bool is_empty() const { return begin_ == text_.size(); }
  /// Whether so much waits that no more should come.
  bool is_full() const { return text_.size() - begin_ >= kFull; }

 private:
  static constexpr std::size_t kFull = 1 << 20;

  void drop_written();

  int fd_;
  std::string text_;
  std::size_t begin_ = 0;  // of what is not written yet
  bool is_gone_ = false;
};

}  // namespace tutti::launch
