// The C++20 view of the pins, and of the few macros that compute.
#include <gtest/gtest.h>

#include <cstring>

#include "abi_0_2_pins.h"
#include "abi_0_3_pins.h"

namespace {

BP_NOTE(BP_VERSION(0, 1), BP_VERSION(0, 3), "pins", "Backplane tests", "1.2", BP_SANITIZER_NONE);

TEST(PluginApi, VersionsComputeAndCompare) {
  EXPECT_EQ(BP_VERSION_MAJOR(BP_VERSION(3, 7)), 3u);
  EXPECT_EQ(BP_VERSION_MINOR(BP_VERSION(3, 7)), 7u);
  EXPECT_LT(BP_VERSION(0, 65535), BP_VERSION(1, 0));
}

TEST(PluginApi, HasTellsWhetherAFieldIsThere) {
  const std::size_t size = offsetof(bp_claim, workspace_bytes);
  EXPECT_TRUE(BP_HAS(size, bp_claim, launch_ns));
  EXPECT_FALSE(BP_HAS(size, bp_claim, workspace_bytes));
  EXPECT_FALSE(BP_HAS(size + 7, bp_claim, workspace_bytes));
  EXPECT_TRUE(BP_HAS(size + 8, bp_claim, workspace_bytes));
}

// What a reader of ELF notes finds: the sizes say where the owner ends and how much follows.
TEST(PluginApi, TheNoteIsAnElfNote) {
  EXPECT_EQ(bp_plugin_note.name_size, sizeof(bp_note::owner));
  EXPECT_EQ(bp_plugin_note.description_size, sizeof(bp_note) - offsetof(bp_note, plugin_min));
  EXPECT_STREQ(bp_plugin_note.owner, "backplane");
  EXPECT_STREQ(bp_plugin_note.plugin_name, "pins");
  EXPECT_EQ(bp_plugin_note.plugin_max, BP_VERSION(0, 3));
}

}  // namespace
