// Implements FileKeyValueStore with one file per key, which renaming replaces atomically.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/key_value_stores.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "core/file.h"
#include "tutti/cluster/net/job_durations.h"
#include "tutti/core/error.h"

namespace tutti {
namespace {

// Returns a number that, together with the process id, makes a file name that no other writer uses.
int next_temporary_number() {
  static std::atomic<int> number{0};
  return number.fetch_add(1);
}

}  // namespace

FileKeyValueStore::FileKeyValueStore(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (std::filesystem::is_directory(folder_)) return;
  fail(ErrorCode::kUnavailable, name(),
       ": expected a folder, or a path where one can be created, got: ", error.message());
}

std::string FileKeyValueStore::name() const { return concat("file store '", folder_, "'"); }

std::string FileKeyValueStore::path_of(std::string_view key) const {
  internal::check_store_key(name(), key);
  // Keys contain no '~', so replacing '/' with it cannot make two keys share a file; the prefix
  // avoids "." and "..".
  std::string file = "key=";
  file += key;
  std::ranges::replace(file, '/', '~');
  return folder_ + "/" + file;
}

void FileKeyValueStore::set(std::string_view key, std::string_view value) {
  const std::string path = path_of(key);
  internal::check_store_value(name(), key, value);
  const std::string temporary = concat(folder_, "/new=", ::getpid(), "-", next_temporary_number());
  const FileSizeLimitScope error_instead_of_signal;
  std::ofstream file(temporary, std::ios::binary);
  file.write(value.data(), static_cast<std::streamsize>(value.size()));
  file.close();
  const char* const action = file ? "renaming" : "writing";
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const int reason = errno;
  std::remove(temporary.c_str());
  fail(ErrorCode::kUnavailable, name(), ": ", action, " the value of '", key,
       "' failed: ", std::strerror(reason));
}

std::optional<std::string> FileKeyValueStore::get(std::string_view key) {
  const std::string path = path_of(key);
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    if (errno == ENOENT) return std::nullopt;
    fail(ErrorCode::kUnavailable, name(), ": reading the value of '", key,
         "' failed: ", std::strerror(errno));
  }
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string FileKeyValueStore::wait(std::string_view key, TimePoint deadline) {
  Clock& clock = Clock::system();
  Duration pause = durations::kStorePause;
  for (;;) {
    if (std::optional<std::string> value = get(key)) return *std::move(value);
    const TimePoint now = clock.now();
    if (now >= deadline) {
      fail(ErrorCode::kDeadlineExceeded, name(), ": no process set the key '", key,
           "' before the deadline");
    }
    clock.sleep_until(std::min(deadline, deadline_after(now, pause)));
    pause = std::min<Duration>(2 * pause, std::chrono::milliseconds(50));
  }
}

}  // namespace tutti
