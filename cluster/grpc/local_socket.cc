// Folders of mode 0700, locks, free numbers.
// SPDX-License-Identifier: Apache-2.0
#include "cluster/grpc/local_socket.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>

#include "core/process_probe.h"
#include "tutti/core/error.h"

namespace tutti::internal {
namespace {

constexpr int kFirstFreePort = 32768;  // as Linux gives them
constexpr std::size_t kNumFreePorts = 28232, kTries = 1000;

/// Processes find each other here whatever TMPDIR each has; it counts where /tmp takes no files.
std::string user_folder() {
  const char* const folder = ::access("/tmp", W_OK | X_OK) == 0 ? nullptr : std::getenv("TMPDIR");
  return concat(folder ? folder : "/tmp", "/tutti-", ::geteuid());
}

std::string network_folder() {
  std::error_code error;
  const std::string link = std::filesystem::read_symlink("/proc/self/ns/net", error).string();
  const std::size_t begin = link.find('['), end = link.find(']');  // "net:[4026531840]"
  if (error || begin == link.npos || end == link.npos) return concat(user_folder(), "/net");
  return concat(user_folder(), "/", link.substr(begin + 1, end - begin - 1));
}

/// A path in a folder that others may write to is no one's own.
void make_private_folder(const std::string& path) {
  struct stat found {};
  const bool is_made = ::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST;
  const bool is_private = is_made && ::lstat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode) &&
                          found.st_uid == ::geteuid() && (found.st_mode & 0777) == 0700;
  if (is_private) return;
  const int reason = errno;
  fail(ErrorCode::kUnavailable, "local socket: ", path, ": expected a folder of user ", ::geteuid(),
       " with mode 0700, got ",
       is_made ? concat("one of user ", found.st_uid, "; remove it")
               : concat(std::strerror(reason),
                        "; try TMPDIR=FOLDER, the same for all processes, "
                        "with one that this user can write to"));
}

/// Sockets and locks of processes that were killed.
void remove_orphans(const std::string& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (entry->path().extension() != ".lock") continue;
    const FileDescriptor lock(::open(entry->path().c_str(), O_RDWR | O_CLOEXEC));
    if (!lock.is_open() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) continue;
    ::unlink(std::filesystem::path(entry->path()).replace_extension().c_str());
    ::unlink(entry->path().c_str());
  }
}

std::string read_owner(const FileDescriptor& lock) {
  std::array<char, 32> text{};
  const ssize_t size = ::pread(lock.get(), text.data(), text.size() - 1, 0);
  std::int64_t pid = 0;
  if (size <= 0 || std::from_chars(text.data(), text.data() + size, pid).ec != std::errc()) {
    return "another process";
  }
  return process_text(pid);
}

}  // namespace

std::string local_socket_path(const Endpoint& endpoint) {
  const std::string host = endpoint.host == "localhost" ? "127.0.0.1" : endpoint.host;
  return concat(network_folder(), "/", host, "_", endpoint.port);
}

bool has_local_socket(const Endpoint& endpoint) {
  struct stat found {};
  return ::stat(local_socket_path(endpoint).c_str(), &found) == 0 && S_ISSOCK(found.st_mode);
}

LocalSocketClaim::LocalSocketClaim(const Endpoint& endpoint) : endpoint_(endpoint) {
  make_private_folder(user_folder());
  make_private_folder(network_folder());
  remove_orphans(network_folder());
  std::string owner;
  if (endpoint.port != 0) {
    path_ = local_socket_path(endpoint_);
    owner = try_to_lock();
  } else {
    // Where a process begins to look differs, so that many at once do not meet.
    const std::size_t begin = std::hash<std::string>{}(this_process().unique);
    for (std::size_t i = 0; i < kTries && !lock_.is_open(); ++i) {
      endpoint_.port = kFirstFreePort + static_cast<int>((begin + i) % kNumFreePorts);
      path_ = local_socket_path(endpoint_);
      owner = try_to_lock();
    }
  }
  if (lock_.is_open()) return;
  fail(ErrorCode::kUnavailable, "grpc: listening at ", endpoint_.to_string(),
       " failed: Address already in use by ", owner,
       "; end that process or try another port (0 takes a free one)");
}

std::string LocalSocketClaim::try_to_lock() {
  const std::string path = concat(path_, ".lock");
  for (;;) {
    FileDescriptor lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock.is_open()) {
      fail(ErrorCode::kUnavailable, "local socket: ", path, ": ", std::strerror(errno));
    }
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return read_owner(lock);
    // One that ended meanwhile may have removed the file that this descriptor stands for.
    struct stat held {
    }, named{};
    const bool is_named = ::fstat(lock.get(), &held) == 0 && ::stat(path.c_str(), &named) == 0 &&
                          held.st_ino == named.st_ino;
    if (!is_named) continue;
    const std::string pid = std::to_string(::getpid());
    (void)!::ftruncate(lock.get(), 0);
    (void)!::pwrite(lock.get(), pid.data(), pid.size(), 0);
    ::unlink(path_.c_str());  // of one that was killed
    lock_ = std::move(lock);
    return "";
  }
}

LocalSocketClaim::~LocalSocketClaim() {
  ::unlink(path_.c_str());
  ::unlink(concat(path_, ".lock").c_str());
}

}  // namespace tutti::internal
