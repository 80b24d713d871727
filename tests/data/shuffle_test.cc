// Orders: shuffled elements, and files by pattern.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/data/dataset_values.h"
#include "tutti/core/random.h"
#include "tutti/data/records.h"

namespace tutti {
namespace shuffle_test {

using namespace data_test;
using testing::ElementsAre;
using testing::UnorderedElementsAreArray;

using Numbers = std::vector<std::int64_t>;

TEST(Shuffle, IsAPermutationForEveryBufferSize) {
  for (std::int64_t buffer : {1, 2, 3, 7, 99, 100, 101, 1000}) {
    const Numbers order = scalars_of(Dataset::range(100).shuffle(buffer, 5));
    EXPECT_THAT(order, UnorderedElementsAreArray(first_numbers(100))) << "buffer " << buffer;
    EXPECT_EQ(order == first_numbers(100), buffer == 1) << "buffer " << buffer;
  }
}

TEST(Shuffle, IsEqualBySeedAndEpochAndDiffersOtherwise) {
  const Dataset dataset = Dataset::range(100).shuffle(100, 5);
  EXPECT_EQ(scalars_of(dataset, 3), scalars_of(Dataset::range(100).shuffle(100, 5), 3));
  EXPECT_NE(scalars_of(dataset, 3), scalars_of(dataset, 4));
  EXPECT_NE(scalars_of(dataset, 3), scalars_of(Dataset::range(100).shuffle(100, 6), 3));
}

TEST(Shuffle, WithoutReshufflingEveryEpochHasTheSameOrder) {
  const Dataset dataset =
      Dataset::range(50).shuffle(20, ShuffleOptions{.seed = 2, .reshuffle_each_iteration = false});
  EXPECT_EQ(scalars_of(dataset, 0), scalars_of(dataset, 9));
  EXPECT_NE(scalars_of(dataset, 0), first_numbers(50));
}

// A buffer of b elements has seen elements 0 .. i + b - 1 when place i is drawn: no element comes
// more than b - 1 places early.
TEST(Shuffle, ASmallBufferMovesElementsForwardByLessThanItsSize) {
  constexpr std::int64_t kBuffer = 10;
  const Numbers order = scalars_of(Dataset::range(200).shuffle(kBuffer, 1));
  std::int64_t most = 0;
  for (std::size_t place = 0; place < order.size(); ++place) {
    const std::int64_t early = order[place] - static_cast<std::int64_t>(place);
    EXPECT_LT(early, kBuffer);
    most = std::max(most, early);
  }
  EXPECT_GT(most, 0);
}

// Each element is equally likely in each place: 6000 shuffles of 4 elements; every count is
// binomial with mean 1500 and standard deviation 33.5.
TEST(Shuffle, PutsEveryElementIntoEveryPlaceEquallyOften) {
  const Dataset dataset = Dataset::range(4).shuffle(4, 17);
  int counts[4][4] = {};
  for (std::uint64_t epoch = 0; epoch < 6000; ++epoch) {
    const Numbers order = scalars_of(dataset, epoch);
    for (std::size_t place = 0; place < 4; ++place) ++counts[place][order[place]];
  }
  for (auto& place : counts) {
    for (int count : place) EXPECT_NEAR(count, 1500, 5 * 33.5);
  }
}

// The order is promised to stay: runs that are resumed by a later version must see the same data.
TEST(Shuffle, KeepsItsOrderFromVersionToVersion) {
  RandomStream random(RandomKey{.seed = 42, .purpose = kShufflePurpose, .a = 1});
  Numbers left = first_numbers(8), expected;
  for (std::uint64_t draw = 0; !left.empty(); ++draw) {
    const auto place = static_cast<std::size_t>(random.below(draw, left.size()));
    expected.push_back(left[place]);
    left[place] = left.back();
    left.pop_back();
  }
  EXPECT_EQ(scalars_of(Dataset::range(8).shuffle(8, 42), 1), expected);
}

TEST(Shuffle, KeepsCardinalityAndRefusesABufferOfNothing) {
  EXPECT_EQ(Dataset::range(8).shuffle(3, 1).cardinality(), 8);
  EXPECT_EQ(Dataset::range(8).repeat().shuffle(3, 1).cardinality(), kInfinite);
  EXPECT_ERROR(Dataset::range(8).shuffle(0, 1), kInvalidArgument, "Dataset::shuffle", "at least 1",
               "got 0");
}

TEST(Shuffle, OfTheEmptyDatasetIsEmpty) {
  EXPECT_THAT(scalars_of(Dataset::range(0).shuffle(10, 1)), ElementsAre());
}

TEST(Shuffle, RepeatGivesEachPassItsOwnOrder) {
  const Dataset below = Dataset::range(20).shuffle(20, 3);
  const Numbers both = scalars_of(below.repeat(2));
  Numbers expected = scalars_of(below, 0);
  const Numbers second = scalars_of(below, 1);
  expected.insert(expected.end(), second.begin(), second.end());
  EXPECT_EQ(both, expected);
  // The next epoch of the repeated dataset goes on counting.
  const Numbers later = scalars_of(below.repeat(2), 1);
  EXPECT_TRUE(std::equal(later.begin(), later.begin() + 20, scalars_of(below, 2).begin()));
}

std::string folder_of(const std::vector<std::string>& names) {
  const std::string folder = empty_folder() + "/";
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
    EXPECT_ERROR(list_files(pattern), kNotFound, "no file matches '" + pattern + "'", "expected",
                 "try");
  }
}

}  // namespace shuffle_test
}  // namespace tutti
