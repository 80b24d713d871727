// Job secrets, which are kept in memory excluded from core dumps, and in files that only their
// owner can read.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/net/job_secret.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "cluster/net/socket.h"
#include "tutti/core/error.h"
#include "tutti/core/random.h"

namespace tutti {
namespace {

constexpr std::size_t kShortest = 32;
constexpr std::size_t kLongest = 4096;

internal::FileDescriptor open_secret(const std::string& path) {
  internal::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.is_open()) return file;
  fail(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUnavailable, "job secret: '", path,
       "' cannot be read: ", std::strerror(errno));
}

void check_file(const std::string& path, const internal::FileDescriptor& file) {
  struct ::stat status {};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    fail(ErrorCode::kInvalidArgument, "job secret: '", path, "' is not a regular file");
  }
  if ((status.st_mode & 077) != 0) {
    fail(ErrorCode::kInvalidArgument, "job secret: other users may read '", path,
         "'; expected mode 0600; run: chmod 600 ", path);
  }
}

bool is_any_address(std::string_view host) {
  return host.empty() || host == "*" || host == "::" || host == "0.0.0.0";
}

}  // namespace

/// A separate memory page, excluded from core dumps.
class JobSecret::Page {
 public:
  explicit Page(std::span<const std::byte> bytes) : size_(bytes.size()) {
    memory_ = ::mmap(nullptr, kLongest, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) {
      fail(ErrorCode::kResourceExhausted, "job secret: the system cannot allocate a memory page");
    }
    (void)::madvise(memory_, kLongest, MADV_DONTDUMP);
    std::memcpy(memory_, bytes.data(), size_);
  }
  ~Page() {
    ::explicit_bzero(memory_, kLongest);
    ::munmap(memory_, kLongest);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(memory_), size_};
  }

 private:
  void* memory_ = nullptr;
  std::size_t size_ = 0;
};

JobSecret::JobSecret(std::span<const std::byte> bytes) {
  if (bytes.size() < kShortest || bytes.size() > kLongest) {
    fail(ErrorCode::kInvalidArgument, "job secret: expected ", kShortest, " to ", kLongest,
         " bytes, got ", bytes.size(), "; try: head -c 32 /dev/urandom");
  }
  page_ = std::make_shared<const Page>(bytes);
}

JobSecret JobSecret::generate() {
  std::array<std::byte, kShortest> bytes{};
  internal::fill_random(bytes);
  JobSecret secret{std::span<const std::byte>(bytes)};
  ::explicit_bzero(bytes.data(), bytes.size());
  return secret;
}

JobSecret JobSecret::from_file(const std::string& path) {
  const internal::FileDescriptor file = open_secret(path);
  check_file(path, file);
  std::array<std::byte, kLongest + 1> bytes{};
  std::size_t size = 0;
  while (size < bytes.size()) {
    const ssize_t count = ::read(file.get(), bytes.data() + size, bytes.size() - size);
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  if (size < kShortest || size > kLongest) {
    fail(ErrorCode::kInvalidArgument, "job secret: expected ", kShortest, " to ", kLongest,
         " bytes in '", path, "', got ", size, "; try: head -c 32 /dev/urandom > ", path);
  }
  JobSecret secret(std::span<const std::byte>(bytes).first(size));
  ::explicit_bzero(bytes.data(), bytes.size());
  return secret;
}

JobSecret JobSecret::from_environment() {
  const char* const path = std::getenv("TUTTI_JOB_SECRET_FILE");
  return path == nullptr || *path == '\0' ? JobSecret() : from_file(path);
}

std::span<const std::byte> JobSecret::bytes() const {
  return page_ ? page_->bytes() : std::span<const std::byte>();
}

void write_job_secret_file(const std::string& path) {
  const internal::FileDescriptor file(
      ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.is_open()) {
    fail(errno == EEXIST ? ErrorCode::kAlreadyExists : ErrorCode::kUnavailable, "job secret: '",
         path, "' cannot be created: ", std::strerror(errno));
  }
  const JobSecret secret = JobSecret::generate();
  const auto bytes = secret.bytes();
  if (::write(file.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) {
    fail(ErrorCode::kUnavailable, "job secret: '", path,
         "' cannot be written: ", std::strerror(errno));
  }
}

bool is_loopback(std::string_view host) {
  const bool is_number = !host.empty() && host.find_first_not_of("0123456789.") == host.npos;
  return host == "localhost" || host == "::1" || (is_number && host.starts_with("127."));
}

void check_exposure(std::string_view who, std::string_view host, const Exposure& exposure) {
  if (is_any_address(host) && !exposure.allow_any_address) {
    fail(ErrorCode::kInvalidArgument, who, ": '", host,
         "' means every interface of this machine; expected a single address; use the one that the "
         "other tasks use, or allow_any_address");
  }
  const bool is_safe = is_loopback(host) || exposure.has_secret || exposure.has_tls;
  if (is_safe || exposure.allow_insecure_network) return;
  fail(ErrorCode::kInvalidArgument, who, ": other machines reach '", host,
       "', and the job has neither a secret nor TLS; try: head -c 32 /dev/urandom > job.secret && "
       "chmod 600 job.secret && export TUTTI_JOB_SECRET_FILE=$PWD/job.secret (or, on a closed "
       "network, allow_insecure_network)");
}

}  // namespace tutti
