// The archive of the CIFAR-10 home page is told from others by its size and MD5.
// SPDX-License-Identifier: Apache-2.0
#include "examples/cifar10/published_archive.h"

#include <gtest/gtest.h>

#include <sstream>

namespace tutti {
namespace published_archive_test {

using namespace examples::cifar10;

ArchiveIdentity identity_of_text(const std::string& text) {
  std::istringstream in(text);
  return identity_of(in);
}

// RFC 1321, A.5; and lengths around the end of a block.
TEST(PublishedArchive, DigestsMatchTheStandard) {
  std::string digits;
  for (int i = 0; i < 8; ++i) digits += "1234567890";
  const std::pair<std::string, const char*> vectors[] = {
      {"", "d41d8cd98f00b204e9800998ecf8427e"},
      {"a", "0cc175b9c0f1b6a831c399e269772661"},
      {"abc", "900150983cd24fb0d6963f7d28e17f72"},
      {"message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
      {digits, "57edf4a22be3c955ac49da2e2107b67a"},
      {std::string(55, 'a'), "ef1772b6dff9a122358552954ad0df65"},
      {std::string(56, 'a'), "3b0c8ac703f828b04c6c197006d17218"},
      {std::string(64, 'a'), "014842d480b571495a4a0363793f7367"},
  };
  for (const auto& [text, md5] : vectors) {
    const ArchiveIdentity found = identity_of_text(text);
    EXPECT_EQ(found.md5, md5);
    EXPECT_EQ(found.bytes, static_cast<std::int64_t>(text.size()));
  }
}

TEST(PublishedArchive, OtherArchiveIsReported) {
  EXPECT_EQ(describe({170'052'171, "c32a1d4ab5d03f1284b67883e8d87530"}),
            "170052171 bytes, MD5 c32a1d4ab5d03f1284b67883e8d87530: the published archive");
  for (const ArchiveIdentity& other :
       {ArchiveIdentity{170'052'171, "d32a1d4ab5d03f1284b67883e8d87530"},
        ArchiveIdentity{170'052'170, kPublishedArchive.md5}, identity_of_text("abc")}) {
    EXPECT_NE(describe(other).find(": not the published archive; expected 170052171 bytes, MD5 "
                                   "c32a1d4ab5d03f1284b67883e8d87530"),
              std::string::npos)
        << describe(other);
  }
}

}  // namespace published_archive_test
}  // namespace tutti
