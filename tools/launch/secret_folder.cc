// The secret of a job: random bytes of the kernel in a private file.
// SPDX-License-Identifier: Apache-2.0
#include "tools/launch/secret_folder.h"

#include <fcntl.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "tutti/core/error.h"

namespace tutti::launch {
namespace {

std::string folder_for_private_files() {
  for (const char* const name : {"XDG_RUNTIME_DIR", "TMPDIR"}) {
    const char* const value = std::getenv(name);
    if (value && *value == '/' && ::access(value, W_OK | X_OK) == 0) return value;
  }
  return "/tmp";
}

std::string random_digits() {
  std::array<unsigned char, 32> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    fail(ErrorCode::kUnavailable, "run: the system gives no random numbers");
  }
  std::string digits;
  for (const unsigned char byte : bytes) {
    digits += "0123456789abcdef"[byte >> 4];
    digits += "0123456789abcdef"[byte & 15];
  }
  return digits;
}

}  // namespace

SecretFolder::SecretFolder() : folder_(folder_for_private_files() + "/tutti-XXXXXX") {
  if (!::mkdtemp(folder_.data())) {  // mode 0700
    fail(ErrorCode::kUnavailable, "run: cannot make folder ", folder_, ": ", ::strerror(errno));
  }
  const std::string text = random_digits() + "\n";
  const int fd = ::open(file().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int reason = errno;
  if (fd >= 0) ::close(fd);
  if (written) return;
  ::unlink(file().c_str());
  ::rmdir(folder_.c_str());
  fail(ErrorCode::kUnavailable, "run: cannot write ", file(), ": ", ::strerror(reason));
}

SecretFolder::~SecretFolder() {
  ::unlink(file().c_str());
  ::rmdir(folder_.c_str());
}

}  // namespace tutti::launch
