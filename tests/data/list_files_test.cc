// Files by pattern: which ones, in which order, and patterns that match nothing.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/records.h"

#include <algorithm>

#include "tests/data/dataset_values.h"

namespace tutti {
namespace list_files_test {

using data_test::empty_folder;
using data_test::expect_error;
using data_test::write_bytes;
using testing::ElementsAre;

std::string folder_of(const std::vector<std::string>& names) {
  const std::string folder = empty_folder("") + "/";
  for (const std::string& name : names) {
    std::filesystem::create_directories(std::filesystem::path(folder + name).parent_path());
    write_bytes(folder + name, "x");
  }
  return folder;
}

TEST(ListFiles, GivesMatchesInAscendingOrder) {
  const std::string f = folder_of({"b.rec", "a.rec", "B.rec", "a.txt", ".hidden.rec", "c1/x.rec",
                                   "c2/x.rec", "c3/y.rec", "a[1].rec"});
  EXPECT_THAT(list_files(f + "*.rec"),
              ElementsAre(f + "B.rec", f + "a.rec", f + "a[1].rec", f + "b.rec"));
  EXPECT_THAT(list_files(f + "?.rec"), ElementsAre(f + "B.rec", f + "a.rec", f + "b.rec"));
  EXPECT_THAT(list_files(f + "c[1-2]/*"), ElementsAre(f + "c1/x.rec", f + "c2/x.rec"));
  EXPECT_THAT(list_files(f + "c*/x.rec"), ElementsAre(f + "c1/x.rec", f + "c2/x.rec"));
  EXPECT_THAT(list_files(f + "a\\[1\\].rec"), ElementsAre(f + "a[1].rec"));
  EXPECT_THAT(list_files(f + "a.txt"), ElementsAre(f + "a.txt"));
  EXPECT_THAT(list_files(f + ".*.rec"), ElementsAre(f + ".hidden.rec"));
}

TEST(ListFiles, ShufflesBySeedAlone) {
  const std::string f = folder_of({"0", "1", "2", "3", "4", "5", "6", "7"});
  const std::vector<std::string> sorted = list_files(f + "*");
  const std::vector<std::string> drawn = list_files(f + "*", {.shuffle = true, .seed = 1});
  EXPECT_NE(drawn, sorted);
  EXPECT_EQ(drawn, list_files(f + "*", {.shuffle = true, .seed = 1}));
  EXPECT_NE(drawn, list_files(f + "*", {.shuffle = true, .seed = 2}));
  EXPECT_THAT(drawn, testing::UnorderedElementsAreArray(sorted));
}

TEST(ListFiles, RefusesPatternsThatMatchNothing) {
  const std::string f = folder_of({"a.rec"});
  for (const std::string& pattern : {f + "*.csv", f + "a.rec/*", f + "nowhere/*", std::string()}) {
    expect_error(ErrorCode::kNotFound, {"no file matches '" + pattern + "'", "expected", "try"},
                 [&] { list_files(pattern); });
  }
}

}  // namespace list_files_test
}  // namespace tutti
